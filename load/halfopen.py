"""`python -m load.halfopen`: tests clients that vanish silently. It needs root, on Linux.

A client in its own network namespace follows two channels, one busy and one silent. Then its link goes down,
so that no packet says that it left. The server must have closed both streams within 15 s.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from load import drill
from load.server import Server, serving
from load.verdict import Breach, Verdict
from load.waiting import until
from load.wire import Connection, Target

LIMIT_S = 15.0
HOST, PEER, SPACE = "10.201.0.1", "10.201.0.2", "gapless-half-open"
CLIENT = """
import socket, sys, time
for channel in ("busy", "silent"):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    s.sendall(f"GET /v1/subscribe?channel={channel} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
    globals()[channel] = s
time.sleep(600)
"""


@contextmanager
def namespace() -> Iterator[None]:
    """A network namespace joined to this one by one link."""
    commands = [
        f"ip netns add {SPACE}",
        "ip link add gapless0 type veth peer name gapless1",
        f"ip link set gapless1 netns {SPACE}",
        f"ip addr add {HOST}/24 dev gapless0",
        "ip link set gapless0 up",
        f"ip netns exec {SPACE} ip addr add {PEER}/24 dev gapless1",
        f"ip netns exec {SPACE} ip link set gapless1 up",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=False)


async def streams(server: Server) -> int:
    """The number of live streams in the service's metrics; -1 without an answer."""
    answer = await server.get("/metrics")
    found = re.search(rb"^gapless_streams ([0-9.]+)$", answer.body if answer else b"", re.M)
    return int(float(found[1])) if found else -1


async def chatter(target: Target) -> None:
    """Publish to the busy channel ten times a second."""
    connection = await Connection.open(target)
    request = target.request("POST", "/v1/channels/busy/messages", msgspec.json.encode({"data": "x" * 100}))
    while True:
        await connection.ask(request)
        await asyncio.sleep(0.1)


async def trial() -> Verdict:
    """Run the test. Raises RuntimeError or another exception if this machine cannot run it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise RuntimeError("needs root on Linux: it makes a network namespace")
    verdict = Verdict((Breach.SLOW,))
    with namespace():
        async with serving(host="0.0.0.0", allow_anonymous="1") as server:
            command = ["ip", "netns", "exec", SPACE, sys.executable, "-c", CLIENT, HOST, str(server.port)]
            client = subprocess.Popen(command)
            talking = asyncio.create_task(chatter(server.target))
            try:
                await _until(server, 2, 30.0)
                subprocess.run(["ip", "link", "set", "gapless0", "down"], check=True)
                await _let_go(server, verdict)
            finally:
                talking.cancel()
                client.kill()
                client.wait()
    return verdict


async def _let_go(server: Server, verdict: Verdict) -> None:
    try:
        seconds = await _until(server, 0, 4 * LIMIT_S)
    except RuntimeError as error:
        verdict.add(Breach.SLOW, str(error))
        return
    verdict.checked = f"both streams were closed {seconds:.1f} s after their client vanished"
    verdict.add(Breach.SLOW, f"{seconds:.1f} s, the limit is {LIMIT_S:.0f}", count=seconds > LIMIT_S)


async def _until(server: Server, count: int, patience_s: float) -> float:
    async def so_many() -> bool:
        return await streams(server) == count

    return await until(so_many, f"there are {count} streams", patience_s, every_s=0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    drill.parser("halfopen", __doc__, "").parse_args(arguments)
    return drill.conclude(drill.played(lambda: asyncio.run(trial())))


if __name__ == "__main__":
    sys.exit(main())
