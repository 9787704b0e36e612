"""Appending, whatever stands behind the port."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import MAX_ID, Append, Appended, NewMessage, Retention
from subscriptions.domain.principal import Principal
from subscriptions.domain.selection import select
from tests.contract.conftest import Log, request


def code(answer: Appended | GaplessError) -> Code:
    """The code of a refusal."""
    assert isinstance(answer, GaplessError), answer
    return answer.code


async def test_a_batch_gets_its_ids_in_order(log: Log) -> None:
    first, second = await log.store(request("a", "b", "a"), request("b"))
    ids = [p.id for answer in (first, second) for p in answer.positions]
    assert ids == sorted(set(ids))
    assert [(p.channel, p.seq) for p in first.positions] == [("a", 1), ("b", 1), ("a", 2)]
    assert [(p.channel, p.seq) for p in second.positions] == [("b", 2)]
    assert first.before["a"][1:] == (0, 0)
    assert second.before["b"][1:] == (first.positions[1].id, 1)


async def test_a_namespace_that_does_not_exist_fails_no_neighbour(log: Log) -> None:
    strange = Append("elsewhere", (NewMessage("a", b"1"),))
    (first, refused, second) = await log.appenders[0].append([request("a"), strange, request("a")])
    assert code(refused) is Code.NOT_FOUND
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert [p.seq for answer in (first, second) for p in answer.positions] == [1, 2]
    assert code((await log.appenders[0].append([strange]))[0]) is Code.NOT_FOUND


async def test_what_was_appended_is_what_is_read(log: Log) -> None:
    new = (
        NewMessage("a", b'{"n": 1}', type="created", key="k", headers=b'{"h": "1"}', ttl=60.5, sender="s"),
        NewMessage("a", None, binary=b"\x00\xff"),
        NewMessage("a", b"null"),
    )
    (answer,) = await log.store(Append("default", new))
    page = await log.read.page(select("default", ("a",)), 0, None, 10)
    assert len(page.messages) == 3
    for message, position, given in zip(page.messages, answer.positions, new, strict=True):
        assert (message.id, message.seq) == (position.id, position.seq)
        assert message.created_at_us == position.created_at_us
        assert message.expires_at_us == position.expires_at_us
        assert (message.type, message.key, message.sender) == (given.type, given.key, given.sender)
        assert (message.data, message.binary, message.headers) == (given.data, given.binary, given.headers)
    assert page.messages[0].expires_at_us == page.messages[0].created_at_us + 60_500_000
    assert page.messages[1].expires_at_us is None


@pytest.mark.parametrize(("own", "channel", "life"), [(5, 60, 5), (60, 5, 5), (None, 7, 7), (8, None, 8)])
async def test_a_message_lives_as_long_as_the_shorter_of_two_allows(
    log: Log, own: float | None, channel: float | None, life: float
) -> None:
    await log.channels.put("default", "a", Retention(), channel)
    (answer,) = await log.store(Append("default", (NewMessage("a", b"1", ttl=own),)))
    message = await log.history.message("default", "a", answer.positions[0].id)
    assert message.expires_at_us == message.created_at_us + life * 1_000_000
    assert answer.positions[0].expires_at_us == message.expires_at_us


async def test_the_same_key_of_another_subject_is_another_key(log: Log) -> None:
    subjects = (None, "alice", "bob", "alice")
    answers = [
        (await log.store(request("a", key=Principal("default", subject).own_key("k"))))[0]
        for subject in subjects
    ]
    assert [answer.replayed for answer in answers] == [False, False, False, True]
    assert answers[3].positions == answers[1].positions


async def test_a_key_is_answered_again(log: Log) -> None:
    (first,) = await log.store(request("a", "b", key="k"))
    (again,) = await log.store(request("a", "b", key="k"))
    assert again.replayed
    assert not first.replayed
    for one, other in zip(first.positions, again.positions, strict=True):
        assert (one.id, one.channel, one.seq) == (other.id, other.channel, other.seq)
        assert one.created_at_us == other.created_at_us
    assert (await log.channels.get("default", "a")).last_seq == 1


async def test_another_request_under_a_key_is_refused_and_leaves_nothing(log: Log) -> None:
    await log.store(request("a", key="k"))
    refused, stored = await log.appenders[1].append([request("b", key="k", body=b"other"), request("a")])
    assert code(refused) is Code.IDEMPOTENCY_MISMATCH
    assert isinstance(stored, Appended)
    assert stored.positions[0].seq == 2
    (again,) = await log.store(request("a", key="k"))
    assert again.replayed


@pytest.mark.parametrize(("hours", "replayed"), [(23.9, True), (24.1, False)])
async def test_a_key_is_remembered_for_a_day(log: Log, hours: float, replayed: bool) -> None:
    (first,) = await log.store(request("a", key="k"))
    await log.age_keys(hours)
    (again,) = await log.store(request("a", key="k"))
    assert again.replayed is replayed
    assert (again.positions[0].id == first.positions[0].id) is replayed
    (third,) = await log.store(request("a", key="k"))
    assert third.replayed
    assert third.positions[0].id == again.positions[0].id


async def test_a_refused_request_uses_no_key_up(log: Log) -> None:
    (refused,) = await log.appenders[0].append([request("a", key="k", expected=7)])
    assert code(refused) is Code.HEAD_MISMATCH
    (stored,) = await log.store(request("a", key="k", expected=0))
    assert not stored.replayed


async def test_duplicates_at_once_are_one(log: Log) -> None:
    for turn, channels in enumerate([("a",) * 4, ("a", "b", "c", "d")]):
        asked = [
            appender.append([request(channel, key=f"k{turn}")])
            for appender, channel in zip(log.appenders, channels, strict=True)
        ]
        answers = [answer for (answer,) in await asyncio.gather(*asked)]
        stored = [answer for answer in answers if isinstance(answer, Appended)]
        assert len(stored) == 4
        assert len({answer.positions[0].id for answer in stored}) == 1
        assert [answer.replayed for answer in stored].count(False) == 1


async def test_an_expected_seq_is_the_last_or_refused(log: Log) -> None:
    for expected, fits in [(1, False), (0, True), (0, False), (2, False), (1, True)]:
        (answer,) = await log.appenders[0].append([request("a", expected=expected)])
        if fits:
            assert isinstance(answer, Appended)
        else:
            assert code(answer) is Code.HEAD_MISMATCH
    assert (await log.channels.get("default", "a")).last_seq == 2


async def test_of_many_who_expect_the_same_one_wins(log: Log) -> None:
    asked = [appender.append([request("a", expected=0)]) for appender in log.appenders]
    answers = [answer for (answer,) in await asyncio.gather(*asked)]
    assert [isinstance(answer, Appended) for answer in answers].count(True) == 1
    assert {code(a) for a in answers if isinstance(a, GaplessError)} == {Code.HEAD_MISMATCH}


async def test_publishing_makes_channels_only_where_it_may(log: Log) -> None:
    (refused,) = await log.careful.append([request("a")])
    assert code(refused) is Code.CHANNEL_NOT_FOUND
    await log.channels.put("default", "a", Retention(), None)
    stored, half = await log.careful.append([request("a"), request("a", "b")])
    assert isinstance(stored, Appended)
    assert code(half) is Code.CHANNEL_NOT_FOUND
    assert (await log.channels.get("default", "a")).last_seq == 1
    with pytest.raises(GaplessError):
        await log.channels.get("default", "b")


async def test_a_replay_needs_no_channel_any_more(log: Log) -> None:
    (first,) = await log.store(request("a", key="k"))
    await log.channels.delete("default", "a")
    (again,) = await log.careful.append([request("a", key="k")])
    assert isinstance(again, Appended)
    assert again.positions[0].id == first.positions[0].id


async def test_batches_over_the_same_channels_come_in_one_order(log: Log) -> None:
    """Whoever comes first in one of them comes first in all."""

    async def work(number: int) -> list[Appended]:
        names = ["a", "b", "c"]
        done = []
        for turn in range(5):
            order = names[number % 3 :] + names[: number % 3]
            (answer,) = await log.appenders[number].append([request(*order)])
            assert isinstance(answer, Appended), (turn, answer)
            done.append(answer)
        return done

    answers = [a for done in await asyncio.gather(*map(work, range(4))) for a in done]
    answers.sort(key=lambda a: a.positions[0].id)
    for number, answer in enumerate(answers, start=1):
        assert {p.seq for p in answer.positions} == {number}
        ids = [p.id for p in answer.positions]
        assert ids == list(range(ids[0], ids[0] + 3)), "a batch's ids stand together"


async def test_a_rolled_back_publish_uses_no_seq_up(log: Log) -> None:
    await log.store(request("a"))
    held = await log.hold("a")
    assert len((await log.read.tick()).holders) == 1
    await held.rollback()
    (answer,) = await log.store(request("a"))
    assert answer.positions[0].seq == 2
    assert 3 <= answer.positions[0].id < MAX_ID


async def test_publishers_of_one_channel_take_turns(log: Log) -> None:
    held = await log.hold("a")
    waiting = asyncio.create_task(log.appenders[0].append([request("a")]))
    (other,) = await log.appenders[1].append([request("b")])
    assert isinstance(other, Appended), "another channel waits for nobody"
    assert not waiting.done()
    await held.commit()
    (answer,) = await waiting
    assert isinstance(answer, Appended)
    assert answer.positions[0].seq == 2
