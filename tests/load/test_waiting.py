"""Waiting loses neither a cancellation nor a failure."""

from __future__ import annotations

import asyncio

import pytest

from load.waiting import cancel, in_time


async def test_a_cancellation_that_comes_with_the_result_counts() -> None:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(in_time(result))
    await asyncio.sleep(0)
    result.set_result(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_a_task_raised_is_not_lost_in_its_cancellation() -> None:
    async def fail() -> None:
        raise KeyError("its own")

    tasks = [asyncio.create_task(asyncio.Event().wait()), asyncio.create_task(fail())]
    await asyncio.sleep(0)
    with pytest.raises(KeyError, match="its own"):
        await cancel(*tasks)
    assert tasks[0].cancelled()
