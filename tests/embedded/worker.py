"""A worker in the terms of the supervisor: serves on the socket it is given, says so, stops on SIGTERM.

It answers one request after another with its process id, its place, and the answer of the database.
`WORKER` may say `broken` (ends at once) or `stubborn` (does not stop).
"""

import asyncio
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

import asyncpg

PATIENCE_S = float(os.environ["PATIENCE_S"])
wake_read, wake_write = os.pipe()


def stop(number: int, frame: FrameType | None) -> None:
    """The signal itself wakes `select`. Python runs this between two instructions, which may be too late."""


async def role() -> str:
    try:
        connection = await asyncpg.connect(os.environ["GAPLESS_DATABASE_URL"], timeout=PATIENCE_S)
        told: str = await connection.fetchval("select current_user")
        await connection.close()
    except (OSError, asyncpg.PostgresError) as error:
        return repr(error)
    return told


def answer(connected: socket.socket) -> None:
    with connected:
        connected.settimeout(PATIENCE_S)
        asked = b""
        while b"\r\n\r\n" not in asked:
            part = connected.recv(4096)
            if not part:
                return
            asked += part
        facts = {
            "pid": os.getpid(),
            "restarts": os.environ["GAPLESS_WORKER_RESTARTS"],
            "role": asyncio.run(role()),
            "keepalive": connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        }
        body = json.dumps(facts).encode()
        connected.sendall(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )


def main() -> None:
    if os.environ.get("WORKER") == "broken":
        sys.exit("this worker cannot start")
    listening = socket.socket(fileno=int(os.environ["GAPLESS_LISTEN_FD"]))
    listening.setblocking(False)
    if os.environ.get("WORKER") != "stubborn":
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGTERM, stop)
    os.write(int(os.environ["GAPLESS_READY_FD"]), b"1")
    while True:
        woken, _, _ = select.select([listening.fileno(), wake_read], [], [])
        if wake_read in woken:
            return
        with suppress(BlockingIOError):  # another worker was faster
            answer(listening.accept()[0])


main()
