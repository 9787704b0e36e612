"""What a subscription gave up on: what an entry tells, the list, and how entries go, over every adapter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from subscriptions.domain.delivery import DeadLetterFilter, Nack, Reason
from subscriptions.domain.errors import Code
from subscriptions.domain.model import NewMessage
from tests.contract.bench import Bench, code_of, data, receipts
from tests.contract.test_deliveries import bench, queue
from tests.race.journeys import journey, told
from tests.race.queues import outcomes

__all__ = ["bench"]

DLQ = {"channel": "dead.{subscription}.{channel}"}
ALL_LETTERS = DeadLetterFilter("default")


# --- what an entry tells


async def test_the_entry_and_the_copy_say_what_the_message_said(bench: Bench) -> None:
    q = await bench.store.subscribe("q", ordering="none", dead_letter=DLQ)
    sent = [
        NewMessage("q", b'{"b":1,"a":[1.0,2e3]}', type="t", key="k", headers=b'{"x":"1","a":"2"}', ttl=60),
        NewMessage("q", None, bytes(range(256)), sender="s"),
        NewMessage("q", b'"%s"' % (b"x" * 1_048_000)),
    ]
    await bench.store.append(*sent)
    dead = await bench.bury(q, 3, reason="no good")
    letters = await bench.letters()
    assert [letter.id for letter in letters] == dead
    copies = await bench.stored("dead.q.q")
    for new, letter, copy in zip(sent, letters, copies, strict=True):
        message = letter.message
        assert (message.channel, message.data, message.binary) == ("q", new.data, new.binary)
        assert (message.type, message.key, message.sender) == (new.type, new.key, new.sender)
        assert (letter.reason, letter.attempts, letter.last_error) == ("rejected", 1, "no good")
        assert told(letter) == [("q", "q", "rejected", 1)]
        where = {"channel": "dead.q.q", "id": copy.id, "seq": copy.seq}
        assert (json.loads(letter.published or b""), letter.unroutable) == (where, None)
        assert copy.expires_at_us is None
        assert (copy.data, copy.binary) == (new.data, new.binary)
        assert (copy.type, copy.key, copy.sender) == (new.type, new.key, new.sender)
        headers = json.loads(copy.headers)
        assert json.loads(headers.pop("gapless-journey")) == journey(letter)
        assert headers == json.loads(new.headers or b"{}")


@pytest.mark.parametrize("way", ["nack", "lease", "nack, lease", "release", "expiry"])
async def test_the_last_error_is_the_last_that_was_said(bench: Bench, way: str) -> None:
    q = await queue(bench, 1, max_deliver=2 if way == "nack, lease" else 1, backoff=[0], message_ttl=100)
    if way == "expiry":
        await bench.store.pass_time(101)
        await bench.reap(q)
    else:
        (one,) = await bench.take(q)
    if way == "nack, lease":
        await bench.nack(q, one, reason="broken")
        (one,) = await bench.take(q)
    if way == "nack":
        await bench.nack(q, one)
    elif way == "release":
        await bench.release(q, one, delivered=True)
    elif way.endswith("lease"):
        await bench.store.pass_time(31)
        await bench.reap(q)
    (letter,) = await bench.letters()
    assert letter.last_error == {
        "nack": "nacked",
        "lease": "the lease ended without an ack",
        "nack, lease": "broken",
        "release": "the member went away",
        "expiry": None,
    }.get(way)


@pytest.mark.parametrize(
    "template", ["dead", "d.{channel}", "d.{subscription}.{channel}.{channel}", "{channel}"]
)
async def test_a_template_names_the_channel_of_the_copy(bench: Bench, template: str) -> None:
    s = await bench.store.subscribe("s", "a.*", dead_letter={"channel": template})
    await bench.publish("a.b", 1)
    await bench.bury(s)
    target = template.replace("{channel}", "a.b").replace("{subscription}", "s")
    assert data(await bench.take(s)) == (["1"] if target == "a.b" else [])
    assert len(await bench.stored(target)) == (2 if target == "a.b" else 1)


@pytest.mark.parametrize(
    "template", ["no spaces", "a..b", "{other}", "{channel}" * 300, "d.{channel}.", "é", "*"]
)
async def test_a_name_that_cannot_be_is_told(bench: Bench, template: str) -> None:
    q = await queue(bench, 1, 2, key="k", dead_letter={"channel": template})
    await bench.bury(q)
    (letter,) = await bench.letters()
    assert (letter.reason, letter.published) == ("rejected", None)
    assert template.replace("{channel}", "q")[:300] in (letter.unroutable or "")
    assert len(letter.unroutable or "") < 400
    assert data(await bench.take(q)) == ["2"]


async def test_a_channel_of_none_is_no_channel(bench: Bench) -> None:
    q = await queue(bench, 1, dead_letter={"channel": None})
    await bench.bury(q)
    (letter,) = await bench.letters()
    assert (letter.published, letter.unroutable) == (None, None)


async def test_a_journey_is_kept_in_order(bench: Bench) -> None:
    """a → b → c → a: each death at the end, the same death again counted where it stands."""
    made = {
        name: await bench.store.subscribe(name, dead_letter={"channel": to})
        for name, to in (("a", "b"), ("b", "c"), ("c", "a"))
    }
    await bench.publish("a", 1, headers=b'{"kept":"yes"}')
    for name in "abcab":
        await bench.bury(made[name])
        letter = (await bench.letters(subscription=name))[-1]
    assert told(letter) == [("a", "a", "rejected", 2), ("b", "b", "rejected", 2), ("c", "c", "rejected", 1)]
    steps = journey(letter)
    assert [s["first_at"] for s in steps] == sorted(s["first_at"] for s in steps)
    assert steps[0]["last_at"] > steps[2]["last_at"]
    assert all(s["first_at"] < s["last_at"] for s in steps[:2])
    assert letter.message.key is None
    (final,) = await bench.take(made["c"])
    assert json.loads(final.message.headers)["kept"] == "yes"


@pytest.mark.drill
async def test_a_loop_ends_after_a_thousand_hops(bench: Bench) -> None:
    loop = await bench.store.subscribe("loop", max_deliver=1, dead_letter={"channel": "{channel}"})
    await bench.publish("loop", '"round"')
    for _ in range(1000):
        (newest,) = await bench.bury(loop)
    last = await bench.dead_letters.get("default", newest)
    assert (last.reason, told(last)) == ("rejected", [("loop", "loop", "rejected", 1000)])
    assert last.published is not None
    over = await bench.dead_letters.get("default", (await bench.bury(loop))[0])
    assert (over.reason, over.published) == ("hops", None)
    assert "1000" in (over.unroutable or "")
    assert sum(count for *_, count in told(over)) == 1001
    assert await bench.take(loop) == []
    assert len(await bench.dead_letters.page(ALL_LETTERS, 0, 2000)) == 1001


# --- how long entries stay


async def test_a_loop_that_keeps_none_leaves_its_last_entry(bench: Bench) -> None:
    """That one was not published: nothing is dropped without a trace."""
    loop = await bench.store.subscribe(
        "loop", max_deliver=1, dead_letter={"channel": "{channel}", "keep": False}
    )
    await bench.publish("loop", '"round"')
    for _ in range(1000):
        assert await bench.bury(loop) == []
    assert await bench.letters() == []
    (left,) = await bench.bury(loop)
    (letter,) = await bench.letters()
    assert (letter.id, letter.reason, letter.published) == (left, "hops", None)
    assert sum(count for *_, count in told(letter)) == 1001
    assert len(await bench.stored("loop")) == 1000, "a page of them"


async def test_what_is_moved_and_what_retention_took_are_told_apart(bench: Bench) -> None:
    q = await queue(bench, 1, 2, ordering="none", dead_letter={"channel": "dead", "keep": False})
    taken = await bench.take(q, 2)
    await bench.store.lose("q", 1)
    (first, second), _ = await bench.port.nack(receipts(q, *taken), Nack(dead_letter=True))
    assert outcomes([first, second]) == ["nacked", "nacked"]
    assert (first.dead_letter, second.dead_letter) == (None, None)
    assert [copy.data for copy in await bench.stored("dead")] == [b"2"]


async def test_an_entry_stays_for_as_long_as_its_subscription_says(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, ordering="none", dead_letter={"channel": "dead", "keep": 60})
    (short,) = await bench.bury(q)
    await bench.store.change("q", dead_letter={"channel": None, "keep": 600})
    (longer,) = await bench.bury(q)
    await bench.store.change("q", dead_letter={"channel": "x" * 255 + "{subscription}", "keep": 60})
    (unroutable,) = await bench.bury(q)
    await bench.store.pass_time(59)
    await bench.store.tidy()
    assert [letter.id for letter in await bench.letters()] == [short, longer, unroutable]
    await bench.store.pass_time(2)
    await bench.store.tidy()
    assert [letter.id for letter in await bench.letters()] == [longer, unroutable]
    assert len(await bench.stored("dead")) == 1
    await bench.dead_letters.replay("default", longer)
    await bench.store.pass_time(600)
    await bench.store.tidy()
    await bench.store.seek("q", "latest")
    back, still = sorted(await bench.letters(), key=lambda letter: letter.message.id)
    assert (back.message.data, still.id) == (b"2", unroutable), "what a seek gives back stays as long again"
    await bench.store.pass_time(601)
    await bench.store.tidy()
    assert [letter.id for letter in await bench.letters()] == [unroutable]


async def test_an_entry_outlives_its_message_and_its_subscription(bench: Bench) -> None:
    q = await queue(bench, 1, 2, key="k", ordering="none")
    dead = await bench.bury(q, 2)
    await bench.store.remove("q")
    await bench.store.delete("q")
    assert [(e.id, e.message.data, e.message.key) for e in await bench.letters()] == [
        (dead[0], b"1", "k"),
        (dead[1], b"2", "k"),
    ]


async def test_what_dies_is_listed_when_it_was_answered(bench: Bench) -> None:
    q = await queue(bench, 1, 2, ordering="none")
    taken = await bench.take(q)
    (first, second), _ = await bench.port.nack(receipts(q, *taken), Nack(dead_letter=True))
    assert first.dead_letter is not None
    found = await bench.dead_letters.get("default", first.dead_letter)
    assert (found.message.data, found.subscription) == (b"1", "q")
    assert [letter.id for letter in await bench.letters()] == [first.dead_letter, second.dead_letter]


# --- the list


async def _mixed(bench: Bench) -> list[int]:
    """Rejected by `a` in two channels, and too often tried by `b` in one."""
    a = await bench.store.subscribe("a", "x.*", ordering="none")
    b = await bench.store.subscribe("b", "x.1", ordering="none", max_deliver=1)
    for channel in ("x.1", "x.2"):
        await bench.publish(channel, 1)
    letters = await bench.bury(a, 2)
    await bench.nack(b, *await bench.take(b))
    return [*letters, (await bench.letters())[-1].id]


WHICH: dict[str, tuple[dict[str, Any], list[int]]] = {
    "all": ({}, [0, 1, 2]),
    "a subscription": ({"subscription": "a"}, [0, 1]),
    "nobody": ({"subscription": "nobody"}, []),
    "a channel": ({"channel": "x.1"}, [0, 2]),
    "a reason": ({"reason": Reason.MAX_DELIVER}, [2]),
    "both": ({"channel": "x.2", "reason": Reason.MAX_DELIVER}, []),
}


@pytest.mark.parametrize("which", WHICH)
async def test_a_filter_narrows_the_list(bench: Bench, which: str) -> None:
    letters = await _mixed(bench)
    members, wanted = WHICH[which]
    assert [letter.id for letter in await bench.letters(**members)] == [letters[n] for n in wanted]


async def test_the_list_may_be_of_some_subscriptions(bench: Bench) -> None:
    letters = await _mixed(bench)
    for names, wanted in (("^a$", [0, 1]), ("^b$|^c", [2]), ("a|b", [0, 1, 2]), ("^c$", [])):
        page = await bench.dead_letters.page(ALL_LETTERS, 0, 10, names)
        assert [letter.id for letter in page] == [letters[n] for n in wanted], names
    (last,) = await bench.dead_letters.page(ALL_LETTERS, letters[0], 1, "^b$")
    assert last.id == letters[2], "the limit counts those of such names"


async def test_pages_go_on_after_an_id(bench: Bench) -> None:
    q = await queue(bench, *range(5), ordering="none")
    dead = await bench.bury(q, 5)
    assert dead == sorted(dead)
    pages = [await bench.dead_letters.page(ALL_LETTERS, after, 2) for after in (0, dead[1], dead[3], dead[4])]
    assert [[letter.id for letter in page] for page in pages] == [dead[:2], dead[2:4], dead[4:], []]


async def test_there_has_to_be_one_of_this_id_here(bench: Bench) -> None:
    q = await queue(bench, 1)
    (letter,) = await bench.bury(q)
    assert (await bench.dead_letters.get("default", letter)).id == letter
    for method in (bench.dead_letters.get, bench.dead_letters.delete, bench.dead_letters.replay):
        assert await code_of(method("default", letter + 1)) is Code.DEAD_LETTER_NOT_FOUND
    assert len(await bench.letters()) == 1


# --- how they go


async def test_what_is_deleted_is_gone(bench: Bench) -> None:
    q = await queue(bench, 1, 2, ordering="none")
    first, second = await bench.bury(q, 2)
    await bench.dead_letters.delete("default", first)
    for method in (bench.dead_letters.get, bench.dead_letters.delete, bench.dead_letters.replay):
        assert await code_of(method("default", first)) is Code.DEAD_LETTER_NOT_FOUND
    assert [letter.id for letter in await bench.letters()] == [second]
    assert await bench.take(q) == []
    await bench.publish("q", 3)
    assert (await bench.bury(q))[0] > second, "an id is not given again"


@pytest.mark.parametrize("which", WHICH)
async def test_a_purge_takes_what_the_filter_names(bench: Bench, which: str) -> None:
    letters = await _mixed(bench)
    members, wanted = WHICH[which]
    assert await bench.dead_letters.purge(DeadLetterFilter("default", **members)) == len(wanted)
    left = [letter for n, letter in enumerate(letters) if n not in wanted]
    assert [letter.id for letter in await bench.letters()] == left


async def test_a_purge_may_take_only_what_is_old(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    await bench.bury(q)
    await bench.bury(q)
    first, second = await bench.letters()
    assert first.created_at_us < second.created_at_us
    purge = bench.dead_letters.purge
    assert await purge(DeadLetterFilter("default", before_us=first.created_at_us)) == 0
    assert await purge(DeadLetterFilter("default", before_us=second.created_at_us)) == 1
    assert [letter.id for letter in await bench.letters()] == [second.id]
