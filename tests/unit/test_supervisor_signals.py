"""A request to stop ends the preparation of a start, whichever line it comes at."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import FrameType

import pytest

from app.supervisor.signals import Signals
from load.waiting import in_time

OF_THE_LOOP = os.path.dirname(asyncio.__file__)


class StopAt:
    """Sends SIGTERM to this process at the `line`-th line that runs in asyncio's own code."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> StopAt | None:
        if not frame.f_code.co_filename.startswith(OF_THE_LOOP) or self.left <= 0:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return self


async def work() -> None:
    """What a preparation does: it waits for callbacks, for time, and for a connection that is refused."""
    await asyncio.sleep(0)
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0.001))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", 1)


def prepared(line: int) -> tuple[bool, int]:
    """Whether the work came to its end, and how many lines were left before the stop."""

    async def bounded(signals: Signals) -> None:
        await in_time(signals.unless_stopped(work()))

    signals, stop = Signals(), StopAt(line)
    with signals.installed():
        before = sys.gettrace()
        sys.settrace(stop)
        try:
            asyncio.run(bounded(signals))
        except asyncio.CancelledError:
            assert signals.stops == 1
            return False, stop.left
        finally:
            sys.settrace(before)
        return True, stop.left


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.drill)])
def test_a_stop_at_any_line_of_the_loop_ends_the_work(every: int) -> None:
    ended, line = [], 1
    while True:
        done, left = prepared(line)
        if left > 0:
            break
        ended.append(done)
        line += every
    assert ended.count(False) > 100 // every
