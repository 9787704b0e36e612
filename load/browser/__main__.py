"""`python -m load.browser`: checks what a foreign page and an allowed one can do in a real Chromium.

Each attack is one page that is not loaded from the service and tries everything. Afterwards the service must
be unchanged, and the page must have read nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import uvloop

from load import drill, install
from load.browser.chromium import drawn, opened
from load.browser.site import Rebinding, Site
from load.browser.stake import MESSAGES, Stake
from load.drill import say
from load.server import Server, serving
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, until

PAGE_PATIENCE_S = 2 * PATIENCE_S
MIN_REFUSED = 20
LEADS = 6
CONTROL = "an allowed page that attacks"
CHAT_STEPS = 14

# The address of the page, and the address by which it reaches the service; {} are the two ports.
PLACES = {
    "another site": ("http://evil.test:{}/attack", "http://127.0.0.1:{}"),
    "another site, by name": ("http://evil.test:{}/attack", "http://localhost:{}"),
    "another port": ("http://127.0.0.1:{}/attack", "http://127.0.0.1:{}"),
    "a name beside it": ("http://evil.localhost:{}/attack", "http://localhost:{}"),
    "a sandbox": ("http://evil.test:{}/sandbox", "http://127.0.0.1:{}"),
    "by 0.0.0.0": ("http://evil.test:{}/attack", "http://0.0.0.0:{}"),
    "by a mapped address": ("http://evil.test:{}/attack", "http://[::ffff:127.0.0.1]:{}"),
}


class Run:
    """One service, one foreign site, and the scenarios with them."""

    def __init__(self, server: Server, site: Site, folder: Path) -> None:
        self.server = server
        self.site = site
        self.folder = folder
        self.scenarios: dict[str, Callable[[], Awaitable[str]]] = {
            **{name: self._attack_from(name) for name in PLACES},
            "a rebound name": self._rebound,
            "a typed address that leads on": self._led,
            CONTROL: self._control,
            "a link to the docs": self._docs,
            "an allowed chat": self._chat,
        }

    def _attack_from(self, name: str) -> Callable[[], Awaitable[str]]:
        page, service = PLACES[name]
        return lambda: self._attack(
            name, page.format(self.site.port), to=service.format(self.server.port), patience_s=PAGE_PATIENCE_S
        )

    async def _attack(self, name: str, page: str, patience_s: float, **options: str) -> str:
        """Load an attacking page. Returns what is wrong afterwards; empty if nothing is."""
        stake = Stake(self.server, _slug(name))
        await stake.lay()
        before, refused = await stake.state(), await stake.refused()
        url = f"{page}?{urlencode({'n': stake.name, 'report': self._report_url, **options})}"
        report = await self._reported(url, patience_s)
        wrong = [f"{found} got the secret" for found in report.get("found", [])]
        if report.get("tried", 0) == 0:
            wrong.append("the page did not finish")
        return "; ".join(wrong + await self._spoilt(stake, before, refused + MIN_REFUSED))

    async def _spoilt(self, stake: Stake, before: dict[str, Any], min_refused: int) -> list[str]:
        after = await stake.state()
        wrong = [f"{part} changed" for part in before if before[part] != after[part]]
        if (count := await stake.refused()) < min_refused:
            wrong.append(f"only {count} requests were refused, where {min_refused} should have been")
        attempts = await stake.attempts()
        if attempts != [1] * MESSAGES:
            wrong.append(f"its messages are at attempts {attempts}")
        return wrong

    async def _rebound(self) -> str:
        """A page whose own name leads to the service from a certain moment on."""
        rebinding = Rebinding(self.site, self.server.target)
        await rebinding.start()
        try:
            page = f"http://rebound.test:{rebinding.port}/attack"
            return await self._attack("rebound", page, to="", rebind="1", patience_s=PAGE_PATIENCE_S)
        finally:
            await rebinding.stop()

    async def _control(self) -> str:
        """The same page from an allowed origin. The drill must detect its attacks, or its other results prove
        nothing."""
        page = f"http://chat.test:{self.site.port}/attack"
        wrong = await self._attack("control", page, to=self.server.url, patience_s=PAGE_PATIENCE_S)
        expected = ("fetch got the secret", "the queue changed", "channels changed")
        missing = [what for what in expected if what not in wrong]
        return f"not noticed: {', '.join(missing)}" if missing else ""

    async def _led(self) -> str:
        """A user types the address of a site, which redirects to the deliveries of a queue."""
        stake = Stake(self.server, "led")
        await stake.lay()
        before, refused = await stake.state(), await stake.refused()
        to = f"{self.server.url}/v1/subscriptions/q.led/consume?prefetch=100"
        for _ in range(LEADS):
            served = self.site.served.count("/lead")
            async with opened(f"{self._site_url}/lead?{urlencode({'to': to})}", self.folder):
                await until(partial(self._was_led, served), "the browser is led on")
                await asyncio.sleep(1.5)  # the browser sends its request to the service in this time
        return "; ".join(await self._spoilt(stake, before, refused + LEADS))

    def _was_led(self, before: int) -> bool:
        return self.site.served.count("/lead") > before

    async def _docs(self) -> str:
        """A foreign page may link to the docs, which must work then."""
        page = await drawn(
            f"{self._site_url}/link?{urlencode({'to': f'{self.server.url}/docs'})}", self.folder
        )
        blocks = page.count('class="opblock ')
        return "" if blocks > 20 else f"the docs show {blocks} operations"

    async def _chat(self) -> str:
        page = f"http://chat.test:{self.site.port}/chat"
        steps = await self._reported(
            f"{page}?{urlencode({'to': self.server.url, 'report': self._report_url})}", PAGE_PATIENCE_S
        )
        wrong = [f"{name}: {what}" for name, what in steps.items() if what]
        if len(steps) != CHAT_STEPS:
            wrong.append(f"{len(steps)} of {CHAT_STEPS} steps were taken")
        return "; ".join(wrong)

    async def _reported(self, url: str, patience_s: float) -> dict[str, Any]:
        """The report of the page at this address; empty if it does not report in time."""
        async with opened(url, self.folder):
            try:
                async with asyncio.timeout(patience_s):
                    report = await self.site.reports.get()
            except TimeoutError:
                return {}
        found: dict[str, Any] = msgspec.json.decode(report)
        return found

    @property
    def _site_url(self) -> str:
        return f"http://evil.test:{self.site.port}"

    @property
    def _report_url(self) -> str:
        return f"{self._site_url}/report"


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


async def run(only: list[str]) -> Verdict:
    """Run the scenarios one by one."""
    folder = drill.home("browser")
    site, verdict = Site(), Verdict((Breach.HARMED,))
    await site.start()
    try:
        async with serving(allowed_origins=f"http://chat.test:{site.port}") as server:
            scenarios = Run(server, site, folder).scenarios
            for name in only or scenarios:
                wrong = await scenarios[name]()
                say(f"{name}: {wrong or 'as it should be'}")
                verdict.add(Breach.HARMED, f"{name}: {wrong}", count=bool(wrong))
    finally:
        await site.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Install Chromium if it is missing, and run once."""
    parser = drill.parser("browser", __doc__, "", "--only 'another site' --only 'an allowed chat'")
    names = [*PLACES, "a rebound name", "a typed address that leads on", CONTROL, "a link to the docs"]
    names.append("an allowed chat")
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME")
    options = parser.parse_args(arguments)

    def play() -> Verdict:
        install.chromium()
        return uvloop.run(run(options.only))

    return drill.conclude(drill.played(play))


if __name__ == "__main__":
    sys.exit(main())
