"""What happens first when a process under another server is asked to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from types import FrameType

import pytest

from app.process.standalone import on_stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_server_hears_of_a_signal_when_goodbyes_are_sent(number: signal.Signals) -> None:
    """A server that hears of it first closes WebSockets with its own code."""
    order: list[object] = []
    tasks = []

    async def say_goodbye() -> None:
        order.append("goodbye")
        await asyncio.sleep(0)

    def tell() -> None:
        order.append("told")
        tasks.append(asyncio.create_task(say_goodbye()))

    def server(number: int, frame: FrameType | None) -> None:
        order.append(number)

    before = signal.signal(number, server)
    try:
        with on_stop(tell):
            os.kill(os.getpid(), number)
            while len(order) < 3:
                await asyncio.sleep(0)
            assert order == ["told", "goodbye", number]
        assert signal.getsignal(number) is server
    finally:
        signal.signal(number, before)
        await asyncio.gather(*tasks)
