"""Loops of a worker: started, stopped, and telling how they are."""

from __future__ import annotations

import asyncio

import pytest

from app.process.loops import Loop, Loops


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_loop_tells_its_state() -> None:
    loop = Loop("sweep", forever)
    assert repr(loop) == "Loop(sweep: not started)"
    loop.start()
    assert repr(loop) == "Loop(sweep: running)"
    await loop.stop()
    assert repr(loop) == "Loop(sweep: ended)"


async def test_loops_are_stopped_together_and_one_that_begins_others_too() -> None:
    loops = Loops()

    async def first() -> None:
        loops.start("second", forever)
        await forever()

    loops.start("first", first)
    await asyncio.sleep(0)
    await loops.stop()
    assert repr(loops) == "Loops([Loop(first: ended), Loop(second: ended)])"


def test_a_loop_that_fails_ends_the_process() -> None:
    async def broken() -> None:
        raise ValueError("nobody foresaw this")

    async def run() -> None:
        Loop("broken", broken).start()
        await forever()

    with pytest.raises(SystemExit):
        asyncio.run(run())
