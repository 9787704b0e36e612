"""`python -m load.failover`: checks that no id gets two meanings when the primary changes under load.

One drill: publish, take a backup (or cut off a standby), publish more, change the primary to that state,
publish again. `--unfenced` is the control: without the fence the drill must fail.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from load import drill
from load.drill import say
from load.failover.checker import TOLD, check
from load.failover.cluster import Cluster
from load.failover.crowd import Crowd
from load.server import Server
from load.verdict import Verdict
from load.waiting import PATIENCE_S

BEFORE, AFTER = 200, 200
HOW = ("standby", "backup", "dump")


async def change(how: str, behind: int, nodes: int, *, fenced: bool = True) -> Verdict:
    """Change the primary once under load. `behind`: how many messages the new primary lacks."""
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
        crowd = Crowd([server.target for server in servers])
        patience_s = PATIENCE_S if fenced else PATIENCE_S / 6  # Without the fence some may wait in vain.
        return await _run(cluster, crowd, how, behind, patience_s)
    finally:
        for server in servers:
            server.stop()
        cluster.remove()


def _node(cluster: Cluster) -> Server:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in (cluster.primary, cluster.standby))
    url = f"postgresql://postgres@{hosts}/gapless?target_session_attrs=primary"
    return Server(Path(tempfile.mkdtemp(prefix="node-", dir=cluster.home)), {"database_url": url})


async def _run(cluster: Cluster, crowd: Crowd, how: str, behind: int, patience_s: float) -> Verdict:
    begin = {"standby": _standby, "backup": _backup, "dump": _dump}[how]
    await crowd.start()
    try:
        await crowd.publish_until(BEFORE)
        finish = await begin(cluster)
        await crowd.publish_until(behind)
        await finish()
        await crowd.publish_until(AFTER)
        kept = await crowd.drain(patience_s)
        verdict = check(crowd, kept)
    finally:
        await crowd.stop()
    memory = crowd.memory
    told = {reader.name: reader.told for reader in crowd.readers}
    verdict.checked = (
        f"{how}, {behind} behind: {len(memory.confirmed)} confirmed, {len(memory.confirmed - kept)} lost with"
        f" the primary, {memory.refused} refused meanwhile; told: {told}"
    )
    return verdict


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill for each kind of change, number of nodes, and number of lost messages."""
    short = "--how standby --nodes 1 --behind 60"
    parser = drill.parser("failover", __doc__, "", short, f"{short} --unfenced     must fail")
    parser.add_argument("--how", choices=HOW, action="append")
    parser.add_argument("--behind", type=int, action="append", help="messages that are lost (5, 60 and 500)")
    parser.add_argument("--nodes", type=int, action="append", help="services over the database (1 and 2)")
    parser.add_argument("--unfenced", action="store_true", help="without the fence: must fail")
    chosen = parser.parse_args(arguments)
    total = Verdict(TOLD)
    for how in chosen.how or HOW:
        for nodes in chosen.nodes or [1, 2]:
            for behind in chosen.behind or [5, 60, 500]:
                one = change(how, behind, nodes, fenced=not chosen.unfenced)
                verdict = drill.played(partial(asyncio.run, one))
                if verdict is None:
                    return drill.conclude(None)
                say(f"{nodes} nodes, {verdict.checked}: {verdict.line()}")
                total.include(verdict, f"{how}, {nodes} nodes, {behind} behind")
    return drill.conclude(total)


if __name__ == "__main__":
    sys.exit(main())
