"""Failpoints: places in the program where a test may delay it.

`GAPLESS_FAILPOINTS="definitions.load=delay:10"` delays that place by ten seconds. Without the variable they
do nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import cache

log = logging.getLogger(__name__)


@cache
def _delays() -> dict[str, float]:
    delays: dict[str, float] = {}
    for item in filter(None, os.environ.get("GAPLESS_FAILPOINTS", "").split(",")):
        place, _, action = item.partition("=")
        verb, _, value = action.partition(":")
        if verb != "delay":
            raise ValueError(f"failpoint {item!r}: only delay:<seconds> is known")
        delays[place] = float(value)
    return delays


async def reach(place: str) -> None:
    """Wait here if the environment asks for it."""
    if (delay_s := _delays().get(place)) is not None:
        log.warning("failpoint %s: waiting %s s", place, delay_s)
        await asyncio.sleep(delay_s)
