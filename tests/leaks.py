"""A pytest plugin: what a test leaves open is charged to that test.

`StreamWriter.__del__` of Python 3.11 says "loop is closed" without a source, at whatever moment the garbage
collector comes by. So the event loops of tests record each transport with the code that made it, and tell at
their close which are still open. After each test the garbage is collected, so that what else is left open
(a socket, a file, a coroutine) is told before the next test begins.

A leak of test code alone is printed in the summary, and fails its test under `--drills`. Any other leak
fails its test.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Generator, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import collect_unraisable

ROOT = f"{Path(__file__).resolve().parent.parent}/"
TESTS = ("tests/", "load/")
PRODUCT = ("app/", "cache/", "client/", "db/", "examples/", "pipeline/", "subscriptions/")
PROPERTY = "left open"
_OURS = tuple(ROOT + folder for folder in (*TESTS, *PRODUCT))
_TURNS = 8


@dataclass(frozen=True, slots=True)
class Leak:
    """One transport that was open when its event loop closed. `stack`: places in this repository, the
    innermost first."""

    what: str
    stack: tuple[str, ...]

    @property
    def of_tests_alone(self) -> bool:
        return bool(self.stack) and all(place.startswith(TESTS) for place in self.stack)

    def __str__(self) -> str:
        return f"{self.what}, made by " + (" < ".join(self.stack) or "nobody in this repository")


found: list[Leak] = []
"""Since the last test."""


def our_stack() -> tuple[str, ...]:
    """Where the caller is called from, as far as it is in this repository."""
    places: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_OURS) and path != __file__:
            places.append(f"{path.removeprefix(ROOT)}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(places)


class _Transports(MutableMapping[int, Any]):
    """The transports of a loop by file descriptor, as asyncio keeps them, and the stack that made each."""

    def __init__(self) -> None:
        self._by_fd: dict[int, Any] = {}
        self._made: list[tuple[Any, tuple[str, ...]]] = []
        self.servers: dict[Any, tuple[str, ...]] = {}

    def __getitem__(self, fd: int) -> Any:
        return self._by_fd[fd]

    def __setitem__(self, fd: int, transport: Any) -> None:
        self._by_fd[fd] = transport
        self.note(transport, self.servers.get(getattr(transport, "_server", None)) or our_stack())

    def __delitem__(self, fd: int) -> None:
        del self._by_fd[fd]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_fd)

    def __len__(self) -> int:
        return len(self._by_fd)

    def note(self, transport: Any, stack: tuple[str, ...]) -> None:
        self._made = [*self.open(), (transport, stack)]

    def open(self) -> list[tuple[Any, tuple[str, ...]]]:
        """Those whose socket or pipe is open."""
        return [
            (transport, stack)
            for transport, stack in self._made
            if getattr(transport, "_sock", None) is not None or getattr(transport, "_pipe", None) is not None
        ]


class RecordingLoop(asyncio.SelectorEventLoop):
    """Knows at its close which transports are open, and closes them."""

    def __init__(self) -> None:
        super().__init__()
        self._transports = _Transports()

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        """As asyncio's. Its connections were made by who calls this."""
        stack = our_stack()
        server = await super().create_server(*arguments, **options)
        self._transports.servers[server] = stack
        return server

    async def create_unix_server(self, *arguments: Any, **options: Any) -> Any:
        """As asyncio's. Its connections were made by who calls this."""
        stack = our_stack()
        server = await super().create_unix_server(*arguments, **options)
        self._transports.servers[server] = stack
        return server

    def _make_read_pipe_transport(self, *arguments: Any, **options: Any) -> Any:
        made = super()._make_read_pipe_transport(*arguments, **options)  # type: ignore[misc]
        self._transports.note(made, our_stack())
        return made

    def _make_write_pipe_transport(self, *arguments: Any, **options: Any) -> Any:
        made = super()._make_write_pipe_transport(*arguments, **options)  # type: ignore[misc]
        self._transports.note(made, our_stack())
        return made

    def close(self) -> None:
        """Tell what is open, close it, and close the loop."""
        if not self.is_running() and not self.is_closed() and self._transports.open():
            self.run_until_complete(_turn())  # What is closing already is no leak.
            for transport, stack in self._transports.open():
                found.append(Leak(repr(transport), stack))
                (getattr(transport, "abort", None) or transport.close)()
            self.run_until_complete(_turn())
        super().close()


async def _turn() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


# --- hooks of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.addoption("--drills", action="store_true", help="a leak of test code alone fails its test too")


class _Policy(asyncio.DefaultEventLoopPolicy):
    """For runners that a test or a fixture makes itself."""

    _loop_factory = RecordingLoop


def pytest_configure() -> None:
    """Collect no garbage while tests are collected: it takes a quarter of that time. Set the policy before
    Python 3.14 deprecates it."""
    gc.disable()
    if sys.version_info < (3, 14):
        asyncio.set_event_loop_policy(_Policy())


def pytest_asyncio_loop_factories() -> Mapping[str, Any]:
    """The event loop of every test."""
    return {"asyncio": RecordingLoop}


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of the collector's way."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Look, once all fixtures that end here have ended."""
    try:
        yield
    finally:
        gc.collect()
        if nextitem is None or nextitem.path != item.path:
            gc.freeze()  # What outlives its file stays: Spark's modules alone would cost each test 0.1 s.
        left, found[:] = list(found), []
        collect_unraisable(item.config)
    quiet = [] if item.config.getoption("--drills") else [leak for leak in left if leak.of_tests_alone]
    item.user_properties += [(PROPERTY, str(leak)) for leak in quiet]
    loud = [str(leak) for leak in left if leak not in quiet]
    if loud:
        pytest.fail("left open at the end of this test:\n" + "\n".join(loud), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell the leaks that failed nothing."""
    lines = [
        f"{report.nodeid}: {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, text in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("left open by test code")
        for line in lines:
            terminalreporter.line(line)
