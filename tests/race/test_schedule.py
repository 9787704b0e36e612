"""A scheduled message is published once, or cancelled, whoever comes first; and not before it is due."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import asyncpg
import pytest

from app.message.message import change_text
from subscriptions.domain.delivery import Scheduled
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Appended, Change, NewMessage, microseconds
from subscriptions.domain.principal import Principal
from tests.conftest import Database
from tests.patience import eventually
from tests.race.queues import Queues, step
from tests.race.support import appenders, blocked, check_log, one, rows, sessions, waiting

HERE = ["default"]
PUBLISH_DUE = "select * from gapless.publish_due(array(select id from gapless.namespaces), 100, 8388608)"
CANCEL = "select gapless.cancel_scheduled(1, $1) as done"
PROMOTE = "select * from gapless.promote_scheduled(1, $1)"


async def later(queues: Queues, data: str = "1", *, delay: float = 3600, **members: Any) -> Scheduled:
    message = NewMessage(members.pop("channel", "later"), data.encode(), **members)
    (scheduled,), _ = await queues.schedule.schedule("default", [message], [(None, delay)], None, b"")
    return scheduled


async def outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except GaplessError as error:
        return error.code, error.detail


def gone(scheduled: Scheduled) -> tuple[Code, str]:
    return Code.MESSAGE_NOT_FOUND, f"scheduled message not found: {scheduled.id}"


async def published(owner: asyncpg.Connection) -> list[str]:
    return [row["data"] for row in await rows(owner)]


async def test_not_before_it_is_due(queues: Queues, owner: asyncpg.Connection) -> None:
    scheduled = await later(queues, delay=60)
    await later(queues, "2", delay=120)
    await queues.pass_time(59)
    assert await queues.schedule.publish_due(HERE, 100) == (0, ())
    assert await published(owner) == []
    await queues.pass_time(2)
    done, touched = await queues.schedule.publish_due(HERE, 100)
    assert (done, [(t.channel, t.last_id, t.last_seq) for t in touched]) == (1, [("later", 1, 1)])
    assert await published(owner) == ["1"]
    assert await outcome(queues.schedule.get("default", scheduled.id)) == gone(scheduled)
    assert len(await queues.schedule.page("default", None, 0, 10)) == 1


async def test_it_says_what_was_said(queues: Queues, owner: asyncpg.Connection) -> None:
    """Its time to live counts from its delivery, and so does its creation."""
    sent = [
        NewMessage("a", b'{"b":1,"a":[1.0]}', type="t", key="k", headers=b'{"x":"1"}', ttl=60, sender="s"),
        NewMessage("b", None, bytes(range(256))),
    ]
    for message in sent:
        await queues.schedule.schedule("default", [message], [(None, 3600)], None, b"")
    stored = await queues.schedule.page("default", None, 0, 10)
    assert [s.message for s in stored] == sent
    assert all(3599e6 < s.deliver_at_us - s.created_at_us < 3601e6 for s in stored)
    await queues.pass_time(3600)
    await queues.schedule.publish_due(HERE, 100)
    subscription = await queues.subscribe("q", "a", "b")
    for new, delivery in zip(sent, await queues.take(subscription), strict=True):
        came = delivery.message
        assert (came.data, came.binary, came.type) == (new.data, new.binary, new.type)
        assert (came.key, came.headers, came.sender) == (new.key, new.headers, new.sender)
        if new.ttl:
            assert came.expires_at_us == came.created_at_us + 60_000_000
        now = microseconds(await owner.fetchval("select clock_timestamp()"))
        assert now - came.created_at_us < 10e6


@pytest.mark.parametrize("first", [CANCEL, PROMOTE, PUBLISH_DUE])
@pytest.mark.parametrize("second", ["cancel", "promote"])
@pytest.mark.parametrize("commits", [True, False])
async def test_two_at_once(
    database: Database, queues: Queues, owner: asyncpg.Connection, first: str, second: str, commits: bool
) -> None:
    scheduled = await later(queues, delay=0)
    arguments = () if first == PUBLISH_DUE else (scheduled.id,)
    async with sessions(database.service_url, 1) as (session,):
        held = await step(session, first, *arguments)
        other = await blocked(owner, outcome(getattr(queues.schedule, second)("default", scheduled.id)))
        await held.end(commits=commits)
        answer = await other
    if commits:
        assert answer == gone(scheduled)
    elif second == "promote":
        assert isinstance(answer[0], Appended)
    else:
        assert answer is None
    happened = first != CANCEL if commits else second == "promote"
    assert await published(owner) == ["1"] * happened
    await check_log(owner)


async def test_publishing_passes_over_what_another_holds(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    first, second = await later(queues, "1", delay=0), await later(queues, "2", delay=0)
    async with sessions(database.service_url, 1) as (session,):
        held = await step(session, CANCEL, first.id)
        assert (await queues.schedule.publish_due(HERE, 100))[0] == 1
        assert await published(owner) == ["2"]
        await held.end(commits=False)
    assert (await queues.schedule.publish_due(HERE, 100))[0] == 1
    assert await published(owner) == ["2", "1"]
    assert await outcome(queues.schedule.cancel("default", second.id)) == gone(second)


async def test_a_crowd_publishes_each_once(queues: Queues, owner: asyncpg.Connection) -> None:
    made = [await later(queues, str(number), delay=0, channel=f"c{number % 3}") for number in range(200)]

    async def publish() -> int:
        total = 0
        while done := (await queues.schedule.publish_due(HERE, 7))[0]:
            total += done
        return total

    answers, *counts = await asyncio.gather(
        asyncio.gather(
            *(outcome(queues.schedule.cancel("default", s.id)) for s in made[::4]),
            *(outcome(queues.schedule.promote("default", s.id)) for s in made[1::4]),
        ),
        *(publish() for _ in range(3)),
    )
    cancelled = [answer for answer in answers[:50] if answer is None]
    promoted = [answer for answer in answers[50:] if isinstance(answer[0], Appended)]
    assert sum(counts) + len(promoted) + len(cancelled) == 200
    data = await published(owner)
    assert (len(data), len(set(data))) == (200 - len(cancelled), 200 - len(cancelled))
    await check_log(owner)


async def test_order_of_what_is_due(queues: Queues, owner: asyncpg.Connection) -> None:
    for number, delay in enumerate((3, 1, 2, 1)):
        await later(queues, str(number), delay=delay)
    await queues.pass_time(4)
    await queues.schedule.publish_due(HERE, 3)
    await queues.schedule.publish_due(HERE, 3)
    assert await published(owner) == ["1", "3", "2", "0"]


async def test_two_processes_keep_the_order(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """The first has looked at what is due and cannot publish it yet; the second would overtake it."""
    await queues.publish("first", 0)
    await queues.publish("later", 0)
    await later(queues, "1", delay=0, channel="later")
    await later(queues, "2", delay=0, channel="first")
    async with sessions(database.owner_url, 1) as (session,):
        held = await step(session, "select from gapless.channels where name = 'first' for update")
        one_process = await blocked(owner, queues.schedule.publish_due(HERE, 100))
        await later(queues, "3", delay=0, channel="later")
        another = asyncio.ensure_future(queues.schedule.publish_due(HERE, 100))

        async def both_wait_or_one_went_ahead() -> bool:
            return another.done() or await waiting(owner) == 2

        await eventually(both_wait_or_one_went_ahead)
        await held.end()
        assert [(await one_process)[0], (await another)[0]] == [2, 1]
    assert [row["data"] for row in await rows(owner, "later")] == ["0", "1", "3"]


async def test_time_decides_only_where_it_was_asked_to(queues: Queues, owner: asyncpg.Connection) -> None:
    await queues.namespaces.ensure("other")
    await later(queues, "1", delay=0)
    assert await queues.schedule.publish_due(["other"], 100) == (0, ())
    assert await queues.schedule.publish_due([], 100) == (0, ())
    assert (await queues.schedule.publish_due(["other", "default"], 100))[0] == 1


async def test_a_piece_is_bounded_in_bytes(queues: Queues, owner: asyncpg.Connection) -> None:
    large = '"%s"' % ("x" * 1024 * 1024)
    for _ in range(20):
        await later(queues, large, delay=0)
    done = []
    while count := (await queues.schedule.publish_due(HERE, 1000))[0]:
        done.append(count)
    assert sum(done) == 20
    assert max(done) <= 9
    await check_log(owner)


async def test_one_key_schedules_once(queues: Queues, owner: asyncpg.Connection) -> None:
    message = NewMessage("later", b"1")

    async def ask(fingerprint: bytes) -> Any:
        return await outcome(
            queues.schedule.schedule("default", [message], [(None, 0.0)], "key", fingerprint)
        )

    answers = await asyncio.gather(*(ask(b"x") for _ in range(6)), *(ask(b"y") for _ in range(6)))
    stored = [answer for answer in answers if isinstance(answer[0], list)]
    assert Counter(replayed for _, replayed in stored) == {False: 1, True: 5}
    assert len({scheduled.id for (scheduled,), _ in stored}) == 1
    assert sum(answer[0] is Code.IDEMPOTENCY_MISMATCH for answer in answers) == 6
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 1
    (scheduled,), replayed = await ask(b"x" if stored[0] is answers[0] else b"y")
    assert (replayed, scheduled) == (True, stored[0][0][0])
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 0


async def test_a_key_of_a_publish_is_no_schedule(queues: Queues) -> None:
    """And the other way round: one key, one request."""
    await queues.appender.append([one("a", key="k")])
    message = NewMessage("a", b"1")
    answer = await outcome(queues.schedule.schedule("default", [message], [(None, 9.0)], "k", b"body"))
    assert answer[0] is Code.IDEMPOTENCY_MISMATCH
    await queues.schedule.schedule("default", [message], [(None, 9.0)], "other", b"body")
    (answer,) = await queues.appender.append([one("a", key="other")])
    assert answer == Appended((), replayed=True)


async def test_what_cannot_be_stored_is_refused_at_once(queues: Queues, owner: asyncpg.Connection) -> None:
    """It would stand in the way of everything that is due after it."""
    await later(queues, "1", delay=0)
    for message in (NewMessage("a", b"[1,"), NewMessage("a", b"1", headers=b"{")):
        with pytest.raises(GaplessError):
            await queues.schedule.schedule("default", [message], [(None, 0.0)], None, b"")
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 1
    assert await published(owner) == ["1"]


async def test_a_channel_that_does_not_exist(database: Database, queues: Queues) -> None:
    """Where none are made by publishing, that is told at once; what was stored is published in any case."""
    scheduled = await later(queues, delay=0, channel="gone")
    await queues.publish("gone", 0)
    await queues.owner.execute("select gapless.delete_channel(1, 'gone')")
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 1
    assert await outcome(queues.schedule.promote("default", scheduled.id)) == gone(scheduled)
    message = "'{null}', '{1}', '{t}', '{null}', '{null}', '{null}', '{1}', '{null}', '{null}'"
    arguments = f"1, 'no', false, null, null, {message}"
    assert await queues.owner.fetchval(f"select scheduled_ids from gapless.schedule({arguments})") is None


async def test_several_are_stored_together_in_their_order(queues: Queues, owner: asyncpg.Connection) -> None:
    """Each at its own moment; with a key the same answer again, delays included."""
    messages = [NewMessage("a", b"%d" % n, key=f"k{n}", ttl=None if n else 9.0) for n in range(3)]
    moments = [(None, 50.0), (4102444800000000, None), (None, 0.0)]

    async def ask(fingerprint: bytes = b"x") -> Any:
        return await queues.schedule.schedule("default", messages, moments, "key", fingerprint)

    stored, replayed = await ask()
    assert (replayed, [each.message for each in stored]) == (False, messages)
    assert [each.id for each in stored] == sorted(each.id for each in stored)
    assert stored[1].deliver_at_us == 4102444800000000
    assert stored[0].deliver_at_us - stored[2].deliver_at_us == 50_000_000
    assert await queues.schedule.page("default", None, 0, 10) == stored
    assert await ask() == (stored, True)
    with pytest.raises(GaplessError):
        await ask(b"y")
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 1
    assert await published(owner) == ["2"]
    await queues.pass_time(60)
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 1
    assert await published(owner) == ["2", "0"]


async def test_of_several_one_that_does_not_fit_refuses_all(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    messages = [NewMessage("a", b"1"), NewMessage("a", b"[1,"), NewMessage("a", b"3")]
    with pytest.raises(GaplessError):
        await queues.schedule.schedule("default", messages, [(None, 0.0)] * 3, "key", b"x")
    assert await owner.fetchval("select count(*) from gapless.scheduled") == 0
    messages[1] = NewMessage("a", b"2")
    _, replayed = await queues.schedule.schedule("default", messages, [(None, 0.0)] * 3, "key", b"y")
    assert not replayed, "what was refused leaves no key"
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 3
    assert await published(owner) == ["1", "2", "3"]


CREATE_KEY = "select gapless.create_key($1, 1, 'k', sha256('k'), null, false, null)"
REVOKED, KEPT = "revokedkey00", "keptkey00000"


async def of_credentials(queues: Queues, owner: asyncpg.Connection) -> dict[str, Scheduled]:
    """Messages for in an hour, by what becomes of the credential that asked for them. One key is revoked."""
    now_us = microseconds(await owner.fetchval("select clock_timestamp()"))
    asking = {
        "nobody": None,
        "kept": Principal("default", "a", key_id=KEPT),
        "revoked": Principal("default", "b", key_id=REVOKED),
        "ended": Principal("default", "c", expires_at_us=now_us + 3_000_000_000),
        "lasting": Principal("default", "d", expires_at_us=now_us + 4_000_000_000),
    }
    for key in (KEPT, REVOKED):
        await owner.execute(CREATE_KEY, key)
    made = {}
    for name, by in asking.items():
        message = NewMessage("later", b'"%b"' % name.encode())
        (made[name],), _ = await queues.schedule.schedule("default", [message], [(None, 3600)], None, b"", by)
    assert await owner.fetchval("select gapless.revoke_key(1, $1)", REVOKED)
    return made


async def test_what_ended_credentials_asked_for_is_withheld(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    made = await of_credentials(queues, owner)
    assert not [each for each in await queues.schedule.page("default", None, 0, 10) if each.withheld]
    await queues.pass_time(3601)
    done, touched = await queues.schedule.publish_due(HERE, 100)
    assert (done, len(touched)) == (5, 1)
    assert sorted(await published(owner)) == ['"kept"', '"lasting"', '"nobody"']
    assert await queues.schedule.publish_due(HERE, 100) == (0, ())
    there = await queues.schedule.page("default", None, 0, 10)
    assert [(each.id, each.withheld) for each in there] == [
        (made["revoked"].id, True),
        (made["ended"].id, True),
    ]
    await queues.schedule.promote("default", made["ended"].id)
    await queues.schedule.cancel("default", made["revoked"].id)
    assert (await published(owner))[-1] == '"ended"'
    assert await queues.schedule.page("default", None, 0, 10) == []
    await check_log(owner)


async def test_an_installation_that_was_opened_withholds_nothing(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    await of_credentials(queues, owner)
    await owner.execute("select gapless.open_installation()")
    await queues.pass_time(3601)
    assert (await queues.schedule.publish_due(HERE, 100))[0] == 5
    assert len(await published(owner)) == 5


async def test_what_is_withheld_delays_nothing(queues: Queues, owner: asyncpg.Connection) -> None:
    """Rounds pass over it, however much it is."""
    gone_by = Principal("default", "b", key_id=REVOKED)
    await owner.execute("select gapless.require_credentials()")
    message = NewMessage("later", b"0")
    await queues.schedule.schedule("default", [message] * 30, [(None, 1)] * 30, None, b"", gone_by)
    await later(queues, "1", delay=2)
    await queues.pass_time(3)
    assert [(await queues.schedule.publish_due(HERE, 10))[0] for _ in range(5)] == [10, 10, 10, 1, 0]
    assert await published(owner) == ["1"]


async def test_workers_of_versions_before_schedule_too(queues: Queues, owner: asyncpg.Connection) -> None:
    nothing = "array[null::text]"
    arguments = (
        "1, 'later', true, null, '', array[null::timestamptz], array[0.0], "
        f"array['t'], {nothing}, {nothing}, {nothing}, array['1'], array[null::bytea], "
        "array[null::double precision]"
    )
    await owner.execute(f"select gapless.schedule({arguments})")
    await owner.execute(f"select gapless.schedule_for(null, null, {arguments})")
    assert (await queues.schedule.publish_due(HERE, 10))[0] == 2
    assert await published(owner) == ["1", "1"]
    only = await later(queues, "2")
    row = await owner.fetchrow("select * from gapless.promote_scheduled(1, $1)", only.id)
    assert row is not None
    assert (row["id"], row["seq"]) == (3, 3)


async def test_a_change_that_is_refused_stays_and_delays_nothing(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    async with appenders(database, 1) as (appender,):
        await appender.append([one("later")])
    edit = Change(change_text(1, "update"), moderates=True)
    changes = [
        edit,
        edit._replace(version=7),
        edit._replace(moderates=False),
        Change(change_text(99, "update")),
    ]
    await later(queues, "0", delay=1)
    for change in changes:
        await later(queues, "1", delay=1, change=change)
    await later(queues, "2", delay=1)
    await later(queues, "3", delay=1, channel="elsewhere", change=edit)
    await queues.pass_time(2)
    rounds = [await queues.schedule.publish_due(HERE, 100) for _ in range(3)]
    assert [done for done, _ in rounds] == [2, 5, 0], "a version is compared after all before it"
    assert [(t.channel, t.last_id, t.last_seq) for _, touched in rounds for t in touched] == [
        ("later", 3, 3),
        ("later", 4, 4),
    ]
    assert (await published(owner))[1:] == ["0", "1", "2"]
    kept = await queues.schedule.page("default", None, 0, 10)
    assert all(each.withheld for each in kept)
    assert [(each.message.change, each.refused) for each in kept] == [
        (changes[1], Code.VERSION_MISMATCH),
        (changes[2], Code.FORBIDDEN),
        (changes[3], Code.MESSAGE_NOT_FOUND),
        (edit, Code.MESSAGE_NOT_FOUND),
    ]
    assert await queues.schedule.publish_due(HERE, 100) == (0, ())
    assert (await outcome(queues.schedule.promote("default", kept[1].id)))[0] == Code.FORBIDDEN
    assert await queues.schedule.page("default", None, 0, 10) == kept, "also after it was promoted in vain"
    assert await owner.fetchval("select count(*) from gapless.channels") == 1
    await check_log(owner)
