"""What signs receipts and hints is rotated while every process goes on."""

from __future__ import annotations

import asyncio

import asyncpg

from db.migrate import migrate
from subscriptions.domain.signing import SigningSecrets
from tests.conftest import Database
from tests.race.support import reader, sessions


async def now(database: Database) -> SigningSecrets:
    async with reader(database) as read:
        return await read.signing_secrets()


async def pass_by(owner: asyncpg.Connection, seconds: int) -> None:
    """So much time passes for the secrets."""
    await owner.execute(
        "update gapless.signing_secrets set signs_at = signs_at - $1::integer * interval '1 s',"
        " ends_at = ends_at - $1::integer * interval '1 s'",
        seconds,
    )


async def test_the_new_one_is_known_before_it_signs_and_the_old_one_accepted_for_a_while(
    database: Database, owner: asyncpg.Connection
) -> None:
    (old,), hints = await now(database)
    await owner.execute("select gapless.rotate_secret('receipts', '1 hour')")
    (first, new), same = await now(database)
    assert (first, same) == (old, hints)
    assert new != old
    await pass_by(owner, 10)
    assert await now(database) == SigningSecrets((new, old), hints)
    await pass_by(owner, 3599)
    assert await now(database) == SigningSecrets((new, old), hints)
    await pass_by(owner, 1)
    assert await now(database) == SigningSecrets((new,), hints)


async def test_without_an_overlap_the_old_one_is_accepted_until_all_sign_with_the_new_one(
    database: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute("select gapless.rotate_secret('hints', '0')")
    receipts, (old, new) = await now(database)
    await pass_by(owner, 19)
    assert await now(database) == SigningSecrets(receipts, (new, old))
    await pass_by(owner, 1)
    assert await now(database) == SigningSecrets(receipts, (new,))


async def test_of_several_at_once_one_will_sign(database: Database, owner: asyncpg.Connection) -> None:
    (old,), _ = await now(database)
    async with sessions(database.owner_url, 4) as several:
        await asyncio.gather(*(one.execute("select gapless.rotate_secret('receipts')") for one in several))
    (first, new), _ = await now(database)
    assert first == old
    await pass_by(owner, 10)
    assert (await now(database)).receipts == (new, old)
    await owner.execute("select gapless.rotate_secret('receipts', '0')")
    await pass_by(owner, 20)
    (newest,), _ = await now(database)
    assert newest not in (old, new)


async def test_a_new_installation_has_one_for_each_and_an_old_one_has_its_own(
    database: Database, owner: asyncpg.Connection
) -> None:
    (receipts,), (hints,) = await now(database)
    before = await owner.fetchval("select hint_secret from gapless.log")
    assert len({receipts, hints, before}) == 3
    await owner.execute(
        "drop table gapless.signing_secrets; delete from gapless.migrations where version = 16;"
        " update gapless.log set created_at = now() - interval '1 day'"
    )
    assert "0016 signing_secrets" in await migrate(database.owner_url)
    assert await now(database) == SigningSecrets((before,), (before,))
