"""All deaths of a message, in order: through loops and replays, whatever somebody wrote into the header."""

from __future__ import annotations

import json

import asyncpg
import pytest

from subscriptions.domain.delivery import DeadLetter, Subscription
from subscriptions.domain.model import NewMessage
from tests.race.journeys import copies, journey, told
from tests.race.queues import Queues, receipts
from tests.race.support import check_log

HOPS = 1000


async def _hop(queues: Queues, subscription: Subscription) -> DeadLetter:
    await queues.bury(subscription)
    return (await queues.letters(subscription=subscription.name))[-1]


async def test_a_journey_is_kept_in_order(queues: Queues) -> None:
    """a → b → c → a: each death at the end, the same death again counted where it stands."""
    for name, to in (("a", "b"), ("b", "c"), ("c", "a")):
        await queues.subscribe(name, dead_letter={"channel": to})
    made = {name: await queues.subscriptions.get("default", name, stats=False) for name in "abc"}
    await queues.publish("a", 1, headers=b'{"kept":"yes"}')
    for name in "abcab":
        letter = await _hop(queues, made[name])
    assert told(letter) == [("a", "a", "rejected", 2), ("b", "b", "rejected", 2), ("c", "c", "rejected", 1)]
    steps = journey(letter)
    assert [s["first_at"] for s in steps] == sorted(s["first_at"] for s in steps)
    assert steps[0]["last_at"] > steps[2]["last_at"]
    assert all(s["first_at"] < s["last_at"] for s in steps[:2])
    assert letter.message.key is None
    (final,) = await queues.take(made["c"])
    assert json.loads(final.message.headers)["kept"] == "yes"


async def test_a_journey_outlives_a_replay(queues: Queues) -> None:
    """Attempts begin anew; where it has been is not forgotten."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    for count in (1, 2, 3):
        (letter,) = await queues.bury(subscription)
        assert told((await queues.letters())[0]) == [("q", "q", "rejected", count)]
        await queues.dead_letters.replay("default", letter)
    (delivery,) = await queues.take(subscription)
    assert (delivery.attempt, delivery.message.headers) == (1, b"")


async def test_a_loop_ends_after_a_thousand_hops(queues: Queues) -> None:
    subscription = await queues.subscribe("loop", max_deliver=1, dead_letter={"channel": "{channel}"})
    await queues.publish("loop", '"round"')
    for _ in range(HOPS):
        await queues.bury(subscription)
        last = await queues.dead_letters.get("default", await _newest(queues))
    assert (last.reason, told(last)) == ("rejected", [("loop", "loop", "rejected", HOPS)])
    assert last.published is not None
    await queues.bury(subscription)
    over = await queues.dead_letters.get("default", await _newest(queues))
    assert (over.reason, over.published) == ("hops", None)
    assert over.unroutable == f"the journey has counted {HOPS} hops"
    assert sum(count for *_, count in told(over)) == HOPS + 1
    assert await queues.take(subscription) == []
    assert len(await queues.letters(limit=2000)) == HOPS + 1


async def _newest(queues: Queues) -> int:
    return int(await queues.owner.fetchval("select max(id) from gapless.dead_letters"))


async def test_a_message_in_circles_by_time_alone(queues: Queues, owner: asyncpg.Connection) -> None:
    """Two subscriptions that let everything expire at once, each into the other: nobody has to be there."""
    a = await queues.subscribe("a", message_ttl=0.05, dead_letter={"channel": "b"})
    b = await queues.subscribe("b", message_ttl=0.05, dead_letter={"channel": "a"})
    await queues.publish("a", 1)
    for _ in range(10):
        await queues.pass_time(0.06)
        assert await queues.reap(a) == 1
        await queues.pass_time(0.06)
        assert await queues.reap(b) == 1
    letters = await queues.letters()
    assert [letter.reason for letter in letters] == ["expired"] * 20
    assert told(letters[-1]) == [("a", "a", "expired", 10), ("b", "b", "expired", 10)]
    await check_log(owner)


FORGED = [
    "",
    "[",
    "null",
    "{}",
    "1",
    '"x"',
    "[[[[]]]]",
    "[" * 4000,
    "[" * 4000 + "]" * 4000,
    "[{}]",
    "[null, 1, []]",
    '[{"count": -1}]',
    '[{"count": 1e400}]',
    '[{"count": 1e100000}]',
    '[{"count": "1"}]',
    '[{"count": 1.5}]',
    '[{"count": 999999, "subscription": "q", "channel": "q", "reason": "rejected"}]',
    '[{"count": 1, "subscription": {"a": 1}, "channel": [], "reason": null}]',
    '[{"subscription": "q", "channel": "q", "reason": "rejected", "count": 99999999999999999999}]',
    "[" + ",".join(['{"count":1}'] * 600) + "]",
    "[" + ",".join("1" for _ in range(4000)) + "]",
    '[{"count": 1, "subscription": "\\u0000"}]',
    '["\\ud800"]',
    "\\u0000",
    "\x01",
    "[1,]",
    "NaN",
    "[NaN]",
]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_journey_breaks_nothing(queues: Queues, forged: str) -> None:
    subscription = await queues.subscribe("q", max_deliver=1, dead_letter={"channel": "dead"})
    headers = json.dumps({"gapless-journey": forged, "other": "x"}).encode()
    await queues.append(NewMessage("q", b"1", headers=headers, ttl=5), NewMessage("q", b"2", headers=headers))
    (first, second) = await queues.take(subscription)
    await queues.nack(subscription, first)
    await queues.deliveries.release(receipts(subscription, second), delivered=True)
    letters = await queues.letters()
    assert len(letters) == 2
    for letter in letters:
        steps = journey(letter)
        assert len(steps) <= HOPS
        wanted = {
            "subscription": str,
            "channel": str,
            "reason": str,
            "count": int,
            "first_at": str,
            "last_at": str,
        }
        assert all({name: type(value) for name, value in s.items()} == wanted for s in steps), steps
        assert steps[-1]["subscription"] == "q"
    for copy in await copies(queues, "dead"):
        assert json.loads(copy["headers"])["other"] == "x"


@pytest.mark.parametrize("headers", [b'{"a":"\\u0000"}', b'{"\\u0000":"a"}', b'{"a":"\\ud800"}', b'{"a":1}'])
async def test_headers_that_nobody_should_have_let_in(queues: Queues, headers: bytes) -> None:
    """The log takes any JSON text as it is; giving up on a message must work for all it took."""
    subscription = await queues.subscribe("q", dead_letter={"channel": "dead"})
    await queues.append(NewMessage("q", b"1", headers=headers))
    await queues.bury(subscription)
    (letter,) = await queues.letters()
    assert told(letter) == [("q", "q", "rejected", 1)]
    assert letter.message.headers == headers
    (copy,) = await copies(queues, "dead")
    assert "gapless-journey" in copy["headers"]
