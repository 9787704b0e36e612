"""`python -m load.clients`: tests that five foreign clients get each message once and in order.

Each one follows the service through a proxy that cuts every stream after seven messages. Half of the
messages are there before they connect; the rest is published while they reconnect.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from load import drill, install
from load.api import Api
from load.children import Child
from load.clients.proxy import PAGE_PATH, CuttingProxy
from load.drill import say
from load.sequence import check_sequence
from load.server import serving
from load.verdict import Verdict
from load.waiting import until
from load.wire import Target

HERE = Path(__file__).resolve().parent
CHANNEL = "clients.everyone"
NPM = ("eventsource", "eventsource-client")
PYPI = ("playwright", "httpx-sse", "httpx", "aiohttp-sse-client", "aiohttp")
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


async def invite(upstream: Target, total: int, folder: Path, modules: Path) -> list[Guest]:
    """Start the five clients, each behind a proxy of its own."""
    page = (HERE / "page.html").read_bytes().replace(b"SUBSCRIBE", SUBSCRIBE.encode())
    python, node = str(install.python_of("clients")), shutil.which("node") or "node"
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
        command = [*program, f"http://{at.host}:{at.port}{path}", str(total), str(modules)]
        guests.append(Guest(name, proxy, Child(command, folder / f"{number}.log").start()))
    return guests


async def publish(api: Api, numbers: range, per_second: float | None = None) -> None:
    """Publish the numbers one by one, paced or as fast as they are confirmed."""
    for number in numbers:
        await api.call("POST", f"/v1/channels/{CHANNEL}/messages", {"data": {"n": number}})
        await asyncio.sleep(1 / per_second if per_second else 0)


async def run(options: argparse.Namespace, modules: Path) -> Verdict:
    """Each client must get every number once, in order."""
    total, folder = options.messages, drill.home("clients")
    async with serving() as server:
        api = Api(server.target)
        await publish(api, range(total // 2))
        guests = await invite(server.target, total, folder, modules)
        live = asyncio.create_task(publish(api, range(total // 2, total), per_second=10))

        def all_ended() -> bool:
            return all(guest.child.code() is not None for guest in guests)

        with contextlib.suppress(RuntimeError):  # who has not ended by then has not got everything
            await until(all_ended, "all clients have ended", options.patience, every_s=0.5)
        await live
        for guest in guests:
            guest.child.stop(patience=2.0)
            guest.proxy.stop()
    verdict = Verdict()
    for guest in guests:
        got = guest.got()
        say(f"{guest.name}: {len(got)} messages, cut off {guest.proxy.cuts} times")
        check_sequence(guest.name, got, range(total), verdict)
        if sorted(set(got)) != list(range(total)):
            say(guest.child.tail(8))
    shutil.rmtree(folder, ignore_errors=True)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, and run once."""
    parser = drill.parser("clients", __doc__, "", "--messages 100")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds until a client has failed")
    options = parser.parse_args(arguments)

    def play() -> Verdict:
        install.chromium()
        install.pypi("clients", PYPI, "import playwright, httpx_sse, aiohttp_sse_client")
        return uvloop.run(run(options, install.npm("clients", NPM)))

    return drill.conclude(drill.played(play))


if __name__ == "__main__":
    sys.exit(main())
