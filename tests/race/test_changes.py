"""Changes of one message by many at once: each is judged by what was there, and the view has all of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict

import asyncpg

from app.message.message import change_text
from db.appender import Appender, arguments_of
from db.queries import load
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, Change, NewMessage
from tests.conftest import Database
from tests.patience import eventually
from tests.race.support import appenders, check_log, opened_segments

SENDERS = 6
ACTIONS = ("update", "reply", "delete")
LOGGED = """
select id, (change ->> 'target')::bigint as target, change ->> 'action' as action
from gapless.messages where change is not null order by id
"""
MODES = ("total", "distinct", "unique", "flag")
ANNOTATED = """
select sender, change ->> 'annotation' as name, change ->> 'mode' as mode,
       change ->> 'remove' is not null as remove
from gapless.messages where change is not null order by id
"""
CUTS = """
select id, (change ->> 'target')::bigint as target, (change ->> 'through')::bigint as through
from gapless.messages where change is not null order by id
"""
OF_LATEST = "from pg_stat_user_tables where relname = 'latest'"
LISTED = "select id, action from gapless.changes where target = $1 order by id"


def message(target: int | None = None, action: str = "update", version: int | None = None) -> NewMessage:
    change = None if target is None else Change(change_text(target, action), version, moderates=True)
    return NewMessage("room", b"1", sender="ann", change=change)


async def append(appender: Appender, *messages: NewMessage) -> Appended | GaplessError:
    (answer,) = await appender.append([Append("default", messages)])
    return answer


async def stored(appender: Appender, *messages: NewMessage) -> list[int]:
    answer = await append(appender, *messages)
    assert isinstance(answer, Appended), answer
    return [position.id for position in answer.positions]


async def test_a_change_opens_the_segments_of_targets_and_no_others(
    database: Database, owner: asyncpg.Connection
) -> None:
    targets = []
    async with appenders(database, 1) as (appender,):
        for _ in range(4):
            targets += await stored(appender, message())
            while not await owner.fetchval("select gapless.roll_segment(0)"):
                await asyncio.sleep(0.01)
        of = "select tableoid::regclass::text from gapless.messages where id = $1"
        segments = [await owner.fetchval(of, target) for target in targets]
        missing = await append(appender, message(targets[1]), message(targets[2] + 1))
    assert isinstance(missing, GaplessError)
    assert missing.code is Code.MESSAGE_NOT_FOUND
    namespace: int = await owner.fetchval("select id from gapless.namespaces")
    several = (message(targets[1]), message(targets[2]))
    _, arguments = arguments_of([Append("default", several)], {"default": namespace}, True)
    opened: set[str] = set()
    # Planning opens all: only the first transaction plans. Storing gives its locks on indexes back at once.
    for _ in range(2):
        async with owner.transaction():
            await owner.fetchrow(load()["append"], *arguments)
            opened = await opened_segments(owner)
    assert opened == {segments[1], segments[2]}


async def test_of_many_that_expect_one_version_one_wins(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with appenders(database, SENDERS) as several:
        (version,) = (target,) = await stored(several[0], message())
        for _ in range(5):
            asked = [append(each, message(target, version=version)) for each in several]
            answers = await asyncio.gather(*asked)
            won = [answer for answer in answers if isinstance(answer, Appended)]
            lost = [answer.code for answer in answers if isinstance(answer, GaplessError)]
            assert (len(won), lost) == (1, [Code.VERSION_MISMATCH] * (SENDERS - 1))
            version = won[0].positions[0].id
    assert await owner.fetchval("select version from gapless.latest") == version
    await check_log(owner)


async def test_a_change_reads_its_target_and_not_all_that_was_changed_before(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with appenders(database, 1) as (appender,):
        targets = await stored(appender, *[message() for _ in range(300)])
        for first in range(0, len(targets), 30):
            await stored(appender, *[message(target) for target in targets[first : first + 30]])
        version = await owner.fetchval("select version from gapless.latest where id = $1", targets[0])
        await stored(appender, message(targets[0], version=version))

    async def is_counted() -> bool:
        written: int = await owner.fetchval(f"select n_tup_ins + n_tup_upd {OF_LATEST}")
        return written == len(targets) + 1

    # What a session did is counted when it has ended.
    await eventually(is_counted)
    assert await owner.fetchval(f"select seq_tup_read {OF_LATEST}") == 0


async def test_the_view_has_every_change_of_many_senders(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Also of changes that share a batch, and of those that are refused beside them."""
    chance = random.Random(7)
    async with appenders(database, SENDERS) as several:
        targets = await stored(several[0], *[message() for _ in range(4)])

        async def work(appender: Appender, seed: int) -> None:
            mine = random.Random(seed)
            for _ in range(12):
                asked = [message(mine.choice(targets), mine.choice(ACTIONS)) for _ in range(3)]
                batch = [Append("default", (one,)) for one in asked]
                batch.insert(mine.randrange(3), Append("default", (message(10**9),)))
                answers = await appender.append(batch)
                assert sum(isinstance(answer, GaplessError) for answer in answers) == 1

        await asyncio.gather(*(work(each, chance.randrange(100)) for each in several))
    expected: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for row in await owner.fetch(LOGGED):
        expected[row["target"]].append((row["id"], row["action"]))
    assert sum(map(len, expected.values())) == SENDERS * 12 * 3
    assert set(expected) == set(targets)
    for target, changes in expected.items():
        kept = await owner.fetchrow("select * from gapless.latest where id = $1", target)
        actions = [action for _, action in changes]
        assert kept is not None
        assert (kept["version"], kept["replies"]) == (changes[-1][0], actions.count("reply"))
        assert kept["updated_by"] == max(id_ for id_, action in changes if action == "update")
        assert kept["deleted"] == ("delete" in actions)
        listed = await owner.fetch(LISTED, target)
        assert [(row["id"], row["action"]) for row in listed] == changes
    await check_log(owner)


def summary(changes: list[tuple[str, str, str, bool]]) -> dict[str, dict[str, object]]:
    """What annotations come to, by the words of the protocol. Each: annotator, name, mode, and whether it is
    taken back."""
    there: list[tuple[str, str, str]] = []
    for annotator, name, mode, remove in changes:
        one = (annotator, name, mode)
        if remove:
            if one in there:
                there.remove(one)
            continue
        if mode == "unique":
            there = [other for other in there if (other[0], other[2]) != (annotator, mode)]
        if mode == "total" or one not in there:
            there.append(one)
    found: dict[str, dict[str, object]] = {}
    for _, name, mode in there:
        count = sum((other[1], other[2]) == (name, mode) for other in there)
        found.setdefault(name, {})[mode] = True if mode == "flag" else count
    return found


async def test_annotations_of_many_senders_are_counted(database: Database, owner: asyncpg.Connection) -> None:
    async with appenders(database, SENDERS) as several:
        (target,) = await stored(several[0], message())

        async def work(appender: Appender, seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(15):
                made = []
                for _ in range(4):
                    text = change_text(
                        target,
                        "annotate",
                        None,
                        chance.choice("ab"),
                        chance.choice(MODES),
                        remove=chance.random() < 0.3,
                    )
                    sender = chance.choice(["ann", "bob", "eve"])
                    made.append(NewMessage("room", b"null", sender=sender, change=Change(text)))
                await stored(appender, *made)

        await asyncio.gather(*(work(each, number) for number, each in enumerate(several)))
    logged = await owner.fetch(ANNOTATED)
    assert len(logged) == SENDERS * 15 * 4
    expected = summary([(row["sender"], row["name"], row["mode"], row["remove"]) for row in logged])
    told = await owner.fetchval("select gapless.annotations_of(channel_id, id) from gapless.latest")
    assert json.loads(told) == expected
    # A page of a view is bounded by it.
    sized = "select sum(40 + octet_length(name) + 2 * octet_length(key)) from gapless.annotation_counts"
    assert await owner.fetchval("select annotation_bytes from gapless.latest") == await owner.fetchval(sized)


async def test_a_stretch_does_not_hide_what_others_send_in_the_same_batch(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Requests of many senders are judged together, before any of them is stored."""
    async with appenders(database, 1) as (appender,):
        (mine,) = await stored(appender, message())
        others = Append("default", (NewMessage("room", b"1", sender="bob"),))
        for through in (2**53 - 1, mine + 1):
            cut = Change(change_text(mine, "delete", through))
            asked = Append("default", (NewMessage("room", b"null", sender="ann", change=cut),))
            (kept, refused) = await appender.append([others, asked])
            assert isinstance(kept, Appended)
            assert isinstance(refused, GaplessError)
            assert refused.code is Code.FORBIDDEN
            assert await owner.fetchval("select count(*) from gapless.deleted_ranges") == 0
        cut = Change(change_text(mine, "delete", mine))
        asked = Append("default", (NewMessage("room", b"null", sender="ann", change=cut),))
        assert all(isinstance(answer, Appended) for answer in await appender.append([others, asked]))


def hidden(log: list[asyncpg.Record]) -> dict[int, int]:
    """By which deletion each original is hidden last, one by one."""
    found: dict[int, int] = {}
    for row in log:
        if row["through"] is not None:
            found |= dict.fromkeys(range(row["target"], min(row["through"], row["id"] - 1) + 1), row["id"])
    return found


async def test_stretches_that_overlap_are_hidden_by_the_newest(
    database: Database, owner: asyncpg.Connection
) -> None:
    """The ranges that are kept are disjoint, and each id is in the one that the log says."""
    async with appenders(database, SENDERS) as several:
        targets = await stored(several[0], *[message() for _ in range(40)])

        async def work(appender: Appender, seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(12):
                target = chance.choice(targets)
                text = change_text(target, "delete", target + chance.choice([0, 1, 5, 12, 1000]))
                change = Change(text, moderates=True)
                await stored(appender, NewMessage("room", b"null", change=change), message())

        await asyncio.gather(*(work(each, number) for number, each in enumerate(several)))
    expected = hidden(await owner.fetch(CUTS))
    ranges = await owner.fetch("select first_id, last_id, id from gapless.deleted_ranges order by first_id")
    told = [(id_, row["id"]) for row in ranges for id_ in range(row["first_id"], row["last_id"] + 1)]
    assert len(told) == len(dict(told)), "no id is in two of them"
    assert dict(told) == expected


async def test_a_deleted_channel_s_changes_go_with_its_messages(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with appenders(database, 1) as (appender,):
        (target,) = await stored(appender, message())
        await stored(appender, *[message(target) for _ in range(5)])
        liked = Change(change_text(target, "annotate", None, "like", "distinct"))
        await stored(
            appender, *[NewMessage("room", b"1", sender=s, change=liked) for s in ("ann", "bob", "eve")]
        )
        cut = Change(change_text(target, "delete", target), moderates=True)
        await stored(appender, NewMessage("room", b"null", change=cut))
        assert await owner.fetchval("select count(*) from gapless.deleted_ranges") == 1
        assert await owner.fetchval("select gapless.delete_channel(1, 'room')")
        while await owner.fetchval("select gapless.purge_rows(2)"):
            pass
        assert await owner.fetchval("select count(*) from gapless.latest") == 0
        for table in ("changes", "annotations", "annotation_counts", "deleted_ranges"):
            assert await owner.fetchval(f"select count(*) from gapless.{table}") == 0
        answer = await append(appender, message(target))
        assert isinstance(answer, GaplessError)
        assert answer.code is Code.MESSAGE_NOT_FOUND
        # Nothing is made for a message that is refused.
        assert await owner.fetchval("select count(*) from gapless.channels") == 0
