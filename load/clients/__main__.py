"""`python -m load.clients`: tests that foreign clients get each message once and in order.

Six follow an event stream, and two a WebSocket, whose protocol is that of Centrifugo. One of these also
follows the two streams that replace a WebSocket. Each has a proxy that cuts every connection after seven
messages. Half of the messages are published before the clients connect, and the rest while they reconnect.
With `--nginx` all of it goes through nginx, with the configuration of docs/operations.md, to two workers.
With `--expiring` the clients of Centrifugo have tokens that end after three seconds, one for the connection
and one for the subscription, and each must have renewed both 20 times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from load import drill, install
from load.api import Api
from load.children import CHECKOUT, Child
from load.clients.proxy import PAGE_PATH, CuttingProxy
from load.clients.tokens import Issuer, TokenServer
from load.drill import say
from load.nginx import nginx
from load.sequence import check_sequence
from load.server import serving
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, until
from load.wire import Target

HERE = Path(__file__).resolve().parent
CHANNEL = "clients.everyone"
MESSAGES = f"/v1/channels/{CHANNEL}/messages"
NPM = ("eventsource", "eventsource-client", "event-source-polyfill", "centrifuge", "ws")
PYPI = ("playwright", "httpx-sse", "httpx", "aiohttp-sse-client", "aiohttp", "centrifuge-python")
PROOF = "import playwright, httpx_sse, aiohttp_sse_client, centrifuge"
SUBSCRIBE = f"/v1/subscribe?channel={CHANNEL}&from=earliest"
CHROMIUM = "Chromium EventSource"
PROGRAMS = {
    CHROMIUM: ("chromium_page.py", f"http://{{}}{PAGE_PATH}"),
    "npm eventsource": ("eventsource.mjs", f"http://{{}}{SUBSCRIBE}"),
    "npm eventsource-client": ("eventsource_client.mjs", f"http://{{}}{SUBSCRIBE}"),
    "npm event-source-polyfill": ("eventsource_polyfill.mjs", f"http://{{}}{SUBSCRIBE}"),
    "PyPI httpx-sse": ("httpx_sse_loop.py", f"http://{{}}{SUBSCRIBE}"),
    "PyPI aiohttp-sse-client": ("aiohttp_sse_loop.py", f"http://{{}}{SUBSCRIBE}"),
    "npm centrifuge": ("centrifuge.mjs", "ws://{}/v1/ws"),
    "npm centrifuge, HTTP stream": ("centrifuge.mjs", "http://{}/v1/ws/http_stream"),
    "npm centrifuge, SSE": ("centrifuge.mjs", "http://{}/v1/ws/sse"),
    "PyPI centrifuge-python": ("centrifuge_python.py", "ws://{}/v1/ws"),
}
"""The file of each client, and the URL that it follows. `{}` is the host and port of its proxy."""
WITH_TOKENS = tuple(name for name in PROGRAMS if "centrifuge" in name and "SSE" not in name)
"""The clients of Centrifugo. Over SSE their `connect` is in the URL, where the service takes no token."""
RENEWALS = 20
PURPOSES = ("connection", "subscription")


@dataclass(slots=True)
class Guest:
    """One foreign client: its program, its own proxy, and what it printed."""

    name: str
    proxy: CuttingProxy
    child: Child
    tokens: TokenServer | None = None

    def got(self) -> list[int]:
        """The numbers of the messages it got, in the order it got them."""
        lines = self.child.log.read_text(errors="replace").splitlines()
        return [int(line) for line in lines if line.isdigit()]


async def invite(
    upstream: Target,
    total: int,
    folder: Path,
    modules: Path,
    names: Sequence[str],
    issuer: Issuer | None = None,
) -> list[Guest]:
    """Start the clients, each with its own proxy."""
    page = (HERE / "page.html").read_bytes().replace(b"SUBSCRIBE", SUBSCRIBE.encode())
    python, node = str(install.python_of("clients")), shutil.which("node") or "node"
    guests = []
    for number, name in enumerate(names):
        file, address = PROGRAMS[name]
        proxy = CuttingProxy(upstream, page)
        at = await proxy.start()
        interpreter = python if file.endswith(".py") else node
        url = address.format(f"{at.host}:{at.port}")
        command = [interpreter, str(HERE / file), url, str(total), str(modules), CHANNEL]
        tokens = None
        if issuer is not None:
            tokens = TokenServer(issuer)
            ask_at = await tokens.start()
            command.append(f"http://{ask_at.host}:{ask_at.port}/")
        guests.append(Guest(name, proxy, Child(command, folder / f"{number}.log").start(), tokens))
    return guests


async def publish(api: Api, numbers: range, per_second: float | None = None, token: str = "") -> None:
    """Publish the numbers one by one, at a rate or each after the answer to the last."""
    for number in numbers:
        body = {"data": {"n": number}}
        # Without keys a service refuses every credential, also an empty one.
        if token:
            await api.call("POST", MESSAGES, body, authorization=f"Bearer {token}")
        else:
            await api.call("POST", MESSAGES, body)
        await asyncio.sleep(1 / per_second if per_second else 0)


async def run(options: argparse.Namespace, modules: Path) -> Verdict:
    """Run once: each client must get every number once, in order."""
    total, folder = options.messages or (160 if options.expiring else 500), drill.home("clients")
    issuer = Issuer(folder, CHANNEL) if options.expiring else None
    names = options.only or (WITH_TOKENS if issuer else list(PROGRAMS))
    settings = {"workers": "2" if options.nginx else "1"}
    settings |= {"jwt_keys": str(issuer.file)} if issuer else {}
    token = issuer.token(3600) if issuer else ""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(CHECKOUT, **settings))
        target = stack.enter_context(nginx(server.target)) if options.nginx else server.target
        api = Api(target)
        await publish(api, range(total // 2), token=token)
        guests = await invite(target, total, folder, modules, names, issuer)
        rate = 2.0 if issuer else 10.0
        live = asyncio.create_task(publish(api, range(total // 2, total), per_second=rate, token=token))

        def all_ended() -> bool:
            return all(guest.child.code() is not None for guest in guests)

        with contextlib.suppress(RuntimeError):  # a client that has not ended has not got everything
            await until(all_ended, "all clients have ended", options.patience, every_s=0.5)
        await live
        for guest in guests:
            guest.child.stop(grace_s=2.0)
            await guest.proxy.stop()
            if guest.tokens is not None:
                await guest.tokens.stop()
    verdict = Verdict()
    for guest in guests:
        got = guest.got()
        say(f"{guest.name}: {len(got)} messages, {guest.proxy.cuts} cuts")
        check_sequence(guest.name, got, range(total), verdict)
        if guest.tokens is not None:
            check_renewals(guest.name, guest.tokens.given, verdict)
        if sorted(set(got)) != list(range(total)):
            say(guest.child.tail(8))
    shutil.rmtree(folder, ignore_errors=True)
    return verdict


def check_renewals(name: str, tokens: Mapping[str, int], verdict: Verdict) -> None:
    """Each must have asked for 20 tokens after its first one, for its connection and for its subscription."""
    renewals = {purpose: tokens.get(purpose, 0) - 1 for purpose in PURPOSES}
    said = ", ".join(f"{count} of the {purpose}" for purpose, count in renewals.items())
    say(f"{name}: renewed {said}")
    if min(renewals.values()) < RENEWALS:
        verdict.add(Breach.SHORT, f"{name} renewed {said}, not {RENEWALS} each")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the clients, and run once."""
    parser = drill.parser(
        "clients",
        __doc__,
        "",
        "--messages 100",
        "--nginx",
        "--expiring",
        "--only 'npm centrifuge'",
    )
    parser.add_argument("--messages", type=int, help="500; with --expiring 160")
    parser.add_argument("--nginx", action="store_true", help="through nginx, to two workers")
    parser.add_argument("--expiring", action="store_true", help="with tokens that end, clients of Centrifugo")
    parser.add_argument("--patience", type=float, default=5 * PATIENCE_S, help="seconds of a client")
    parser.add_argument("--only", action="append", default=[], choices=list(PROGRAMS), metavar="NAME")
    options = parser.parse_args(arguments)

    def play() -> Verdict:
        if not options.only or CHROMIUM in options.only:
            install.chromium()
        install.pypi("clients", PYPI, PROOF)
        return uvloop.run(run(options, install.npm("clients", NPM)))

    return drill.conclude(drill.played(play))


if __name__ == "__main__":
    sys.exit(main())
