"""Clients that vanish without a word: `python -m load.halfopen` (as root, on Linux).

A client in a network namespace of its own follows two channels, one busy and one silent; then its link
goes down, so that no packet says that it left. Verdict: the server has let both streams go within 15 s; exit
code 1 otherwise.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from load.server import Server, serving
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
    """How many live streams the service counts."""
    answer = await server.get("/metrics")
    found = re.search(rb"^gapless_streams ([0-9.]+)$", answer.body if answer else b"", re.M)
    return int(float(found[1])) if found else -1


async def until(server: Server, count: int, patience_s: float) -> float:
    """Wait for so many streams; the seconds it took, or raises RuntimeError."""
    began = time.monotonic()
    while await streams(server) != count:
        if time.monotonic() - began > patience_s:
            raise RuntimeError(f"{await streams(server)} streams after {patience_s:.0f} s")
        await asyncio.sleep(0.1)
    return time.monotonic() - began


async def chatter(target: Target) -> None:
    """Publish to the busy channel ten times a second."""
    connection = await Connection.open(target)
    request = target.request("POST", "/v1/channels/busy/messages", orjson.dumps({"data": "x" * 100}))
    while True:
        await connection.ask(request)
        await asyncio.sleep(0.1)


async def trial() -> float:
    """Seconds until both streams were let go."""
    with namespace():
        async with serving(host="0.0.0.0", allow_anonymous="1") as server:
            command = ["ip", "netns", "exec", SPACE, sys.executable, "-c", CLIENT, HOST, str(server.port)]
            client = subprocess.Popen(command)
            talking = asyncio.create_task(chatter(server.target))
            try:
                await until(server, 2, 30.0)
                subprocess.run(["ip", "link", "set", "gapless0", "down"], check=True)
                return await until(server, 0, 60.0)
            finally:
                talking.cancel()
                client.kill()
                client.wait()


def main() -> int:
    """Run and say the verdict."""
    if sys.platform != "linux" or os.geteuid() != 0:
        print("needs root on Linux: it makes a network namespace")
        return 2
    try:
        seconds = asyncio.run(trial())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"not shown: {error}")
        return 1
    print(f"both streams were let go {seconds:.1f} s after their client vanished; limit {LIMIT_S:.0f} s")
    return 0 if seconds <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
