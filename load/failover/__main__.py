"""`python -m load.failover [--how standby|backup|dump] [--behind N] [--nodes 1|2] [--unfenced]`

One drill: publish, take the moment that will come back, publish on, change the primary, publish again. It
prints a verdict and exits with 1 when an id has two meanings, or a reader lacks something or was not told of
what it lost.
`--unfenced` is the control: the same without the fence must fail.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from load.failover.cluster import Cluster
from load.failover.crowd import Crowd
from load.failover.verdict import breaches
from load.server import Server

BEFORE, AFTER = 200, 200


async def drill(how: str, behind: int, nodes: int, *, fenced: bool = True) -> tuple[list[str], str]:
    """One change of the primary under load; what was broken, and a line that sums it up."""
    cluster = Cluster()
    servers: list[Server] = []
    try:
        await cluster.start(fenced=fenced)
        if how == "standby":
            await asyncio.to_thread(cluster.follow)
        servers = [_node(cluster) for _ in range(nodes)]
        for server in servers:
            server.start()
            await server.wait_ready()
        return await _run(cluster, Crowd([server.url for server in servers]), how, behind)
    finally:
        for server in servers:
            server.stop()
        cluster.remove()


def _node(cluster: Cluster) -> Server:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in (cluster.primary, cluster.standby))
    url = f"postgresql://postgres@{hosts}/gapless?target_session_attrs=primary"
    return Server(Path(tempfile.mkdtemp(prefix="node-", dir=cluster.home)), {"database_url": url})


async def _run(cluster: Cluster, crowd: Crowd, how: str, behind: int) -> tuple[list[str], str]:
    change = {"standby": _standby, "backup": _backup, "dump": _dump}[how]
    await crowd.start()
    try:
        await crowd.publish_until(BEFORE)
        finish = await change(cluster)
        await crowd.publish_until(behind)
        await finish()
        await crowd.publish_until(AFTER)
        kept = await crowd.drain()
        found = list(breaches(crowd, kept))
    finally:
        await crowd.stop()
    memory = crowd.memory
    told = {reader.name: reader.told for reader in crowd.readers}
    return found, (
        f"{how}, {behind} behind: {len(memory.confirmed)} confirmed,"
        f" {len(set(memory.confirmed) - kept)} lost with the primary, {memory.refused} refused meanwhile;"
        f" told: {told}; {len(found)} breaches"
    )


Finish = Callable[[], Awaitable[None]]


async def _standby(cluster: Cluster) -> Finish:
    await cluster.cut()
    return cluster.promote


async def _backup(cluster: Cluster) -> Finish:
    backup = cluster.home / "backup"
    await asyncio.to_thread(cluster.back_up, backup)
    return lambda: asyncio.to_thread(cluster.restore, backup)


async def _dump(cluster: Cluster) -> Finish:
    dump = cluster.home / "dump"
    await asyncio.to_thread(cluster.dump, dump)
    return lambda: cluster.load_dump(dump)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--how", choices=["standby", "backup", "dump"], action="append")
    parser.add_argument("--behind", type=int, action="append", help="messages that are lost (5, 60 and 500)")
    parser.add_argument("--nodes", type=int, action="append", help="services over the database (1 and 2)")
    parser.add_argument("--unfenced", action="store_true", help="without the fence: must fail")
    chosen = parser.parse_args()
    failed = False
    for how in chosen.how or ["standby", "backup", "dump"]:
        for nodes in chosen.nodes or [1, 2]:
            for behind in chosen.behind or [5, 60, 500]:
                found, line = asyncio.run(drill(how, behind, nodes, fenced=not chosen.unfenced))
                print(f"{nodes} node{'s' * (nodes > 1)}, {line}", flush=True)
                for breach in found[:20]:
                    print(f"  {breach}")
                failed |= bool(found)
    print("verdict:", "broken" if failed else "0 ids with two meanings, nothing missed untold")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
