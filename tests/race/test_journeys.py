"""All deaths of a message, however long its journey, and whatever somebody wrote into the header. What it
tells: tests/contract/test_dead_letters.py."""

from __future__ import annotations

import json

import asyncpg
import pytest

from app.message.head import read_head
from app.message.publish import parse_publication
from subscriptions.domain.model import NewMessage
from tests.race.journeys import copies, journey, told
from tests.race.queues import Queues, receipts
from tests.race.support import check_log

HOPS = 1000
HEAD = read_head([(b"content-type", b"application/json")])


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


async def test_a_long_journey_goes_on_being_published(queues: Queues) -> None:
    """Through a hundred channels, each time taken out of the dead-letter channel and published again with the
    headers it came with: over HTTP's checks and by SQL in turn."""
    hops = 100
    names = [f"a-station-with-a-rather-long-name-{n}" for n in range(hops)]
    own = {f"h{n}": "x" * 100 for n in range(64)}
    await queues.append(_checked(names[0], own))
    for n, name in enumerate(names):
        subscription = await queues.subscribe(name, dead_letter={"channel": f"dead.{name}"})
        await queues.bury(subscription)
        dead = await queues.subscribe(f"dead.{name}")
        (delivery,) = await queues.take(dead)
        headers = json.loads(delivery.message.headers)
        assert {k: v for k, v in headers.items() if k in own} == own
        onward = names[n + 1] if n + 1 < hops else "end"
        if n % 2:
            await queues.owner.execute(
                "select gapless.publish($1, '1', headers => $2::text::jsonb)", onward, json.dumps(headers)
            )
        else:
            await queues.append(_checked(onward, headers))
    assert len(headers["gapless-journey"]) > 2 * 8192
    subscription = await queues.subscribe("end")
    await queues.bury(subscription)
    (letter,) = await queues.letters(subscription="end")
    assert told(letter) == [(name, name, "rejected", 1) for name in [*names, "end"]]


def _checked(channel: str, headers: dict[str, str]) -> NewMessage:
    """As it comes over HTTP."""
    body = json.dumps({"data": 1, "headers": headers}).encode()
    (message,) = parse_publication(channel, HEAD, body, now_us=0).messages
    return message


async def test_a_journey_of_the_longest_names_ends_at_a_thousand_hops(queues: Queues) -> None:
    """Each of its steps is another one, so it is as long as a journey can be; it still may be published."""
    steps = [
        {
            "subscription": f"{n:03}{'s' * 252}",
            "channel": f"{n:03}{'c' * 252}",
            "reason": "max_backlog",
            "count": 1,
            "first_at": "2026-11-20T18:05:31.120331Z",
            "last_at": "2026-11-20T18:05:31.120331Z",
        }
        for n in range(HOPS - 1)
    ]
    subscription = await queues.subscribe("q", dead_letter={"channel": "next"})
    onward = await queues.subscribe("next", dead_letter={"channel": "never"})
    await queues.append(_checked("q", {"gapless-journey": json.dumps(steps)}))
    await queues.bury(subscription)
    (delivery,) = await queues.take(onward)
    await queues.append(_checked("next", json.loads(delivery.message.headers)))
    await queues.ack(onward, delivery)
    await queues.bury(onward)
    (letter,) = await queues.letters(subscription="next")
    assert (letter.reason, letter.published, len(journey(letter))) == ("hops", None, HOPS + 1)


async def test_what_carries_a_long_journey_counts_as_long(queues: Queues) -> None:
    """So a page or a claim of many of them is as bounded as one of large payloads."""
    headers = json.dumps({"gapless-journey": "x" * 1_000_000}).encode()
    subscription = await queues.subscribe("q", ordering="none")
    for _ in range(4):
        await queues.append(*[NewMessage("q", b"1", headers=headers) for _ in range(4)])
    taken = await queues.take(subscription, 1000)
    assert 8 <= len(taken) < 12
