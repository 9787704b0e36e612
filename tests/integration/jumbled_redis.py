"""A way to the real Redis on which hints come late, out of order and twice, and some are lost."""

from __future__ import annotations

import asyncio
import random

import hiredis

from load.relay import until_first_ends
from tests.contract.hostile_redis import Conversation, HostileRedis

LATE_S = 0.03
"""Hints of so long come together, in any order."""


class JumbledRedis(HostileRedis):
    """`moved`, `doubled` and `lost` count hints."""

    def __init__(self, target_url: str, chance: random.Random) -> None:
        super().__init__(target_url)
        self._chance = chance
        self.moved = self.doubled = self.lost = 0

    async def pass_on(self, talk: Conversation, pace_s: float = LATE_S) -> None:
        """Be the real one, but for what was published."""
        listening, held = asyncio.Event(), list[bytes]()
        async with self._streams.connected_to(self._target_url) as (there, back):

            async def requests() -> None:
                while True:
                    data = await talk.some()
                    if b"SUBSCRIBE" in data:
                        listening.set()
                    back.write(data)
                    await back.drain()

            async def answers() -> None:
                parser = hiredis.Reader()
                while data := await there.read(65536):
                    if not listening.is_set():
                        await talk.say(data)
                        continue
                    parser.feed(data)
                    while (answer := parser.gets()) is not False:
                        if isinstance(answer, list) and answer[0] == b"message":
                            held.append(_written(answer))
                        else:
                            await talk.say(_written(answer))

            async def hints() -> None:
                await listening.wait()
                while True:
                    await asyncio.sleep(pace_s)
                    if held:
                        told = self._jumbled(held)
                        held.clear()
                        await talk.say(b"".join(told))

            await until_first_ends(requests(), answers(), hints())

    def _jumbled(self, hints: list[bytes]) -> list[bytes]:
        kept = [hint for hint in hints if self._chance.random() < 0.9]
        twice = [hint for hint in kept if self._chance.random() < 0.3]
        told = kept + twice
        self._chance.shuffle(told)
        self.lost += len(hints) - len(kept)
        self.doubled += len(twice)
        self.moved += sum(a != b for a, b in zip(kept, told, strict=False))
        return told


def _written(answer: object) -> bytes:
    """An answer of Redis as it came, but that a status is written as a text."""
    match answer:
        case list():
            return b"*%d\r\n" % len(answer) + b"".join(map(_written, answer))
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(answer), answer)
    raise AssertionError(f"no answer to a listener: {answer!r}")
