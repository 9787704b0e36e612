"""`python -m load.failover`: checks that no id gets two meanings when the primary changes under load.

One drill: publish, take a backup (or cut off a standby), publish more, change the primary to that state,
publish again. With `siblings` and `copies` this happens twice: two standbys, or two copies of the files, that
do not know of each other, lead one after the other; the second standby lacks less than the first. With
`crashes` the primary crashes while its standby lags.

`--unfenced` and `--alike` are the controls: without the fence, and with fences that go on by the clock alone,
the drill must fail.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from load import drill
from load.drill import say
from load.failover.checker import TOLD, check
from load.failover.cluster import CLOCK_AHEAD, Cluster
from load.failover.crowd import Crowd
from load.server import Server
from load.verdict import Verdict
from load.waiting import PATIENCE_S

BEFORE, BETWEEN, AFTER = 200, 40, 200
LAG = 20
HOW = ("standby", "backup", "dump", "siblings", "copies", "crashes")
TWICE = ("siblings", "copies")
CRASHES = 4


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the primary. `behind`: how many messages the new one lacks. Of two that lead one after
    the other, the second begins `apart_s` after the death of the first, whose clock is `ahead_s` ahead of
    its own."""

    how: str
    behind: int
    apart_s: float = 0
    ahead_s: float = 0

    def __str__(self) -> str:
        more = f", {self.apart_s:g} s apart, clocks {self.ahead_s:g} s" if self.how in TWICE else ""
        return f"{self.how}, {self.behind} behind{more}"


async def change(one: Change, nodes: int, *, fenced: bool = True, alike: bool = False) -> Verdict:
    """Change the primary under load."""
    cluster = Cluster()
    servers: list[Server] = []
    try:
        await cluster.start(fenced=fenced, alike=alike)
        if one.how in ("standby", "siblings", "crashes"):
            await asyncio.to_thread(cluster.follow, cluster.standby, one.ahead_s)
        if one.how == "siblings":
            await asyncio.to_thread(cluster.follow, cluster.sibling)
        servers = [_node(cluster) for _ in range(nodes)]
        for server in servers:
            server.start()
            await server.wait_ready()
        crowd = Crowd([server.target for server in servers])
        # Without the fence, or with like ones, some may wait in vain.
        patience_s = PATIENCE_S if fenced and not alike else PATIENCE_S / 6
        return await _run(cluster, crowd, one, patience_s)
    finally:
        for server in servers:
            server.stop()
        cluster.remove()


def _node(cluster: Cluster) -> Server:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    url = f"postgresql://postgres@{hosts}/gapless?target_session_attrs=primary"
    return Server(Path(tempfile.mkdtemp(prefix="node-", dir=cluster.home)), {"database_url": url})


async def _run(cluster: Cluster, crowd: Crowd, one: Change, patience_s: float) -> Verdict:
    await crowd.start()
    try:
        await crowd.publish_until(BEFORE)
        finish = await _BEGIN[one.how](cluster, crowd, one)
        await crowd.publish_until(one.behind)
        await finish()
        await crowd.publish_until(AFTER)
        kept = await crowd.drain(patience_s)
        verdict = check(crowd, kept)
    finally:
        await crowd.stop()
    memory = crowd.memory
    told = {reader.name: reader.told for reader in crowd.readers}
    verdict.checked = (
        f"{one}: {len(memory.confirmed)} confirmed, {len(memory.confirmed - kept)} lost with"
        f" the primary, {memory.refused} refused meanwhile; told: {told}"
    )
    return verdict


Finish = Callable[[], Awaitable[None]]


async def _standby(cluster: Cluster, crowd: Crowd, one: Change) -> Finish:
    await cluster.cut()
    return cluster.promote


async def _backup(cluster: Cluster, crowd: Crowd, one: Change) -> Finish:
    backup = cluster.home / "backup"
    await asyncio.to_thread(cluster.back_up, backup)
    return lambda: asyncio.to_thread(cluster.restore, backup)


async def _dump(cluster: Cluster, crowd: Crowd, one: Change) -> Finish:
    dump = cluster.home / "dump"
    await asyncio.to_thread(cluster.dump, dump)
    return lambda: cluster.load_dump(dump)


async def _siblings(cluster: Cluster, crowd: Crowd, one: Change) -> Finish:
    # The one that leads second has received more of the primary than the first.
    await cluster.cut(cluster.standby)
    await crowd.publish_until(LAG)
    await cluster.cut(cluster.sibling)

    async def finish() -> None:
        await cluster.promote()
        await crowd.publish_until(BETWEEN)
        cluster.standby.stop()
        await asyncio.sleep(one.apart_s)
        await cluster.lead(cluster.sibling)

    return finish


async def _copies(cluster: Cluster, crowd: Crowd, one: Change) -> Finish:
    for copy in (cluster.standby, cluster.sibling):
        await asyncio.to_thread(cluster.back_up, copy.data)

    async def finish() -> None:
        cluster.primary.stop()
        await asyncio.to_thread(partial(cluster.standby.start, **{CLOCK_AHEAD: f"{one.ahead_s:g}s"}))
        await crowd.publish_until(BETWEEN)
        cluster.standby.stop()
        await asyncio.sleep(one.apart_s)
        await asyncio.to_thread(cluster.sibling.start)

    return finish


async def _crashes(cluster: Cluster, crowd: Crowd, one: Change) -> Finish:
    await cluster.cut()
    for _ in range(CRASHES):
        await cluster.crash()
        await crowd.publish_until(BETWEEN)
    return cluster.promote


_BEGIN: dict[str, Callable[[Cluster, Crowd, Change], Awaitable[Finish]]] = {
    "standby": _standby,
    "backup": _backup,
    "dump": _dump,
    "siblings": _siblings,
    "copies": _copies,
    "crashes": _crashes,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill for each kind of change, number of nodes, and number of lost messages."""
    short = "--how standby --nodes 1 --behind 60"
    unlike = "--how siblings --nodes 1 --behind 5 --apart 0 --ahead 0"
    must_fail = (f"{short} --unfenced     must fail", f"{unlike} --alike     must fail")
    parser = drill.parser("failover", __doc__, "", short, *must_fail)
    parser.add_argument("--how", choices=HOW, action="append")
    parser.add_argument("--behind", type=int, action="append", help="messages that are lost (5, 60 and 500)")
    parser.add_argument("--nodes", type=int, action="append", help="services over the database (1 and 2)")
    parser.add_argument("--apart", type=float, action="append", help="seconds between two (0, 3 and 20)")
    parser.add_argument("--ahead", type=float, action="append", help="of the first one's clock (0 and 3600)")
    parser.add_argument("--unfenced", action="store_true", help="without the fence: must fail")
    parser.add_argument("--alike", action="store_true", help="fences by the clock alone: must fail")
    chosen = parser.parse_args(arguments)
    total = Verdict(TOLD)
    for one in _changes(chosen):
        for nodes in chosen.nodes or [1, 2]:
            play = change(one, nodes, fenced=not chosen.unfenced, alike=chosen.alike)
            verdict = drill.played(partial(asyncio.run, play))
            if verdict is None:
                return drill.conclude(None)
            say(f"{nodes} nodes, {verdict.checked}: {verdict.line()}")
            total.include(verdict, f"{nodes} nodes, {one}")
    return drill.conclude(total)


def _changes(chosen: argparse.Namespace) -> Iterator[Change]:
    for how in chosen.how or HOW:
        if how not in TWICE:
            yield from (Change(how, behind) for behind in chosen.behind or [5, 60, 500])
            continue
        for apart_s in chosen.apart or [0, 3, 20]:
            for ahead_s in chosen.ahead or [0, 3600]:
                yield from (Change(how, behind, apart_s, ahead_s) for behind in chosen.behind or [5])


if __name__ == "__main__":
    sys.exit(main())
