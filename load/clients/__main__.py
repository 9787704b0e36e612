"""`python -m load.clients [--messages N]`: five foreign clients must get each message once and in order.

Each one follows the service through a proxy that cuts every stream after seven messages. Half of the
messages are there before they connect; the rest is published while they reconnect.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from load.children import Child
from load.clients.install import NODE, PYTHON, install
from load.clients.proxy import PAGE_PATH, CuttingProxy
from load.server import serving
from load.wire import Connection, Target

HERE = Path(__file__).resolve().parent
CHANNEL = "clients.everyone"
SUBSCRIBE = f"/v1/subscribe?channel={CHANNEL}&from=earliest"


@dataclass(slots=True)
class Guest:
    """One foreign client: its program, its own proxy, and what it printed."""

    name: str
    proxy: CuttingProxy
    child: Child

    def got(self) -> list[int]:
        """The numbers of the messages it got, in the order it got them."""
        lines = self.child.log.read_text(errors="replace").splitlines()
        return [int(line) for line in lines if line.isdigit()]


def judge(got: list[int], total: int) -> str:
    """What went wrong, empty when every message came once and in order."""
    if got == list(range(total)):
        return ""
    lost = total - len(set(got) & set(range(total)))
    doubled = len(got) - len(set(got))
    disorder = sum(a > b for a, b in itertools.pairwise(got))
    return f"{lost} lost, {doubled} doubled, {disorder} out of order"


async def invite(upstream: Target, total: int, folder: Path) -> list[Guest]:
    """Start the five clients, each behind a proxy of its own."""
    page = (HERE / "page.html").read_bytes().replace(b"SUBSCRIBE", SUBSCRIBE.encode())
    python, node = str(PYTHON), shutil.which("node") or "node"
    programs = {
        "Chromium EventSource": [python, str(HERE / "chromium_page.py")],
        "npm eventsource": [node, str(HERE / "eventsource.mjs")],
        "npm eventsource-client": [node, str(HERE / "eventsource_client.mjs")],
        "PyPI httpx-sse": [python, str(HERE / "httpx_sse_loop.py")],
        "PyPI aiohttp-sse-client": [python, str(HERE / "aiohttp_sse_loop.py")],
    }
    guests = []
    for number, (name, program) in enumerate(programs.items()):
        proxy = CuttingProxy(upstream, page)
        at = await proxy.start()
        path = PAGE_PATH if name.startswith("Chromium") else SUBSCRIBE
        command = [*program, f"http://{at.host}:{at.port}{path}", str(total), str(NODE)]
        guests.append(Guest(name, proxy, Child(command, folder / f"{number}.log").start()))
    return guests


async def publish(target: Target, numbers: range, per_second: float | None = None) -> None:
    """Publish the numbers one by one, paced or as fast as they are confirmed."""
    connection = await Connection.open(target)
    for number in numbers:
        body = orjson.dumps({"data": {"n": number}})
        answer = await connection.ask(target.request("POST", f"/v1/channels/{CHANNEL}/messages", body))
        if answer.status != 201:
            raise RuntimeError(f"a publish was answered {answer.status} {answer.body[:200]!r}")
        await asyncio.sleep(1 / per_second if per_second else 0)
    connection.close()


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Whether all clients got everything."""
    total, folder = options.messages, Path(tempfile.mkdtemp(prefix="gapless-clients-"))
    async with serving() as server:
        await publish(server.target, range(total // 2))
        guests = await invite(server.target, total, folder)
        live = asyncio.create_task(publish(server.target, range(total // 2, total), per_second=10))
        started = time.monotonic()
        with console.status("clients follow") as status:
            while time.monotonic() - started < options.patience:
                await asyncio.sleep(0.5)
                status.update(", ".join(f"{guest.name} {len(guest.got())}" for guest in guests))
                if all(guest.child.code() is not None for guest in guests):
                    break
        await live
        for guest in guests:
            guest.child.stop(patience=2.0)
            guest.proxy.stop()
    good = report(guests, total, console)
    shutil.rmtree(folder, ignore_errors=True)
    return good


def report(guests: list[Guest], total: int, console: Console) -> bool:
    """Print a line for each client; whether all are good."""
    grid = Table("client", "messages", "times cut off", "verdict")
    good = True
    for guest in guests:
        wrong = judge(guest.got(), total)
        good = good and not wrong
        word = f"[red]{wrong}[/]" if wrong else "[green]each once, in order[/]"
        grid.add_row(guest.name, str(len(guest.got())), str(guest.proxy.cuts), word)
        if wrong:
            console.print(guest.name, guest.child.tail(8), markup=False)
    console.print(grid)
    return good


def main() -> int:
    """Install, run, say how it went."""
    parser = argparse.ArgumentParser(prog="python -m load.clients", description=__doc__)
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds until a client has failed")
    options = parser.parse_args()
    console = Console()
    install(console.print)
    return 0 if uvloop.run(run(options, console)) else 1


if __name__ == "__main__":
    sys.exit(main())
