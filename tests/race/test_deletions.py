"""A deletion is remembered by the name of its channel, for every writer and through an update."""

from __future__ import annotations

import asyncpg
import pytest

from db.migrate import migrate
from subscriptions.ports import Place
from tests.conftest import Database
from tests.race.support import publish, reader, sessions

AS_BEFORE = """
drop trigger note_deletion on gapless.channels;
drop table gapless.replays;
alter table gapless.subscriptions drop column keep, drop column changes;
alter table gapless.dead_letters drop column remove_at;
alter table gapless.fences drop column recovered;
alter table gapless.channels drop column deletion_id;
alter table gapless.namespaces drop column deletions, drop column forgotten_id, drop column shared,
    drop column limits;
drop table gapless.keys, gapless.role_grants cascade;
drop table gapless.spark_queries, gapless.tickets, gapless.signing_secrets;
alter table gapless.outbox drop column sender, drop column change, drop column version, drop column moderates;
alter table gapless.messages drop column change;
alter table gapless.kept drop column change;
alter table gapless.channels drop column changes, drop column deleted_seq;
alter table gapless.spark_chunks drop column changes;
alter table gapless.spark_attempts drop column change_count;
alter table gapless.spark_batches drop column refused;
drop table gapless.changes, gapless.latest, gapless.annotations, gapless.annotation_counts,
    gapless.deleted_ranges, gapless.markers, gapless.deleted_sums;
alter table gapless.scheduled drop column key_id, drop column until, drop column withheld, drop column change,
    drop column version, drop column moderates, drop column refused;
create index scheduled_due on gapless.scheduled (deliver_at, id);
alter table gapless.log drop column credentials_required, drop column keys_version;
drop table gapless.deleted_names;
delete from gapless.migrations where version > 6;
delete from gapless.function_files where name = 'channels';
"""
KEPT = 100_000


async def delete(owner: asyncpg.Connection, *names: str) -> int:
    """Delete these channels; the last id that was taken."""
    for name in names:
        assert await owner.fetchval("select gapless.delete_channel(1, $1)", name)
    last_id: int = await owner.fetchval("select deletion_id from gapless.namespaces where id = 1")
    return last_id


async def place_of(database: Database, name: str) -> Place:
    async with reader(database) as read:
        return await read.place_at("default", name, 0)


async def test_names_are_forgotten_and_in_doubt_from_then_on(
    database: Database, owner: asyncpg.Connection
) -> None:
    for name in ("a", "b", "born", "newer"):
        await publish(owner, name)
    at = [await delete(owner, "a"), await delete(owner, "b")]
    assert at == [4, 4]
    await publish(owner, "a")
    await owner.execute("update gapless.namespaces set deletions = $1", KEPT)
    at = [await delete(owner, "a"), await delete(owner, "newer")]
    assert at == [5, 5]
    kept = "select name from gapless.deleted_names order by number"
    assert [row["name"] for row in await owner.fetch(kept)] == ["a", "newer"]
    await publish(owner, "last")
    assert await delete(owner, "last") == 6
    found = {name: await place_of(database, name) for name in ("a", "b", "none", "born", "last")}
    # A name that is not remembered was not deleted after the newest one that was forgotten.
    assert {name: place.deletion_id for name, place in found.items()} == {
        "a": 5, "b": 4, "none": 4, "born": 0, "last": 6
    }  # fmt: skip
    assert {place.unborn_at for name, place in found.items()} == {6}
    for name in ("a", "b", "none"):
        await publish(owner, name)
    assert [(await place_of(database, name)).deletion_id for name in ("a", "b", "none")] == [5, 4, 4]


async def test_a_channel_keeps_what_was_known_when_it_was_made(
    database: Database, owner: asyncpg.Connection
) -> None:
    await publish(owner, "gone")
    assert await delete(owner, "gone") == 1
    await publish(owner, "a")
    await owner.execute("select gapless.set_channel(1, 'b', '{}', false)")
    await owner.execute("select gapless.set_channels(1, array['c', 'gone'], array['{}', '{}']::jsonb[])")
    await owner.execute("update gapless.namespaces set forgotten_id = 1000")
    found = [(await place_of(database, name)).deletion_id for name in ("a", "b", "c", "gone", "none")]
    assert found == [0, 0, 0, 1, 1000]


async def test_a_channel_that_never_had_a_message_leaves_no_name(owner: asyncpg.Connection) -> None:
    await owner.execute("select gapless.set_channel(1, 'a', '{}', false)")
    await delete(owner, "a")
    assert await owner.fetchval("select count(*) from gapless.deleted_names") == 0


async def test_an_older_snapshot_makes_no_channel_that_overlooks_a_deletion(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 1) as (publisher,):
        transaction = publisher.transaction(isolation="repeatable_read")
        await transaction.start()
        await publisher.fetchval("select count(*) from gapless.channels")
        await publish(owner, "a")
        await delete(owner, "a")
        await publish(publisher, "a")
        with pytest.raises(asyncpg.SerializationError):
            await transaction.commit()


async def test_what_an_earlier_version_deleted_is_in_doubt(
    database: Database, owner: asyncpg.Connection
) -> None:
    for _ in range(3):
        await publish(owner, "there")
    await owner.execute(AS_BEFORE)
    await owner.execute("update gapless.namespaces set deletion_id = 2")
    assert "0007 deleted_names" in await migrate(database.owner_url)
    assert [(await place_of(database, name)).deletion_id for name in ("there", "none")] == [2, 2]
    # A call that began before goes on in its old text.
    await publish(owner, "a")
    await owner.execute("delete from gapless.channels where name = 'a'")
    assert [(await place_of(database, name)).deletion_id for name in ("there", "a", "none")] == [2, 4, 2]
