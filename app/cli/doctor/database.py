"""What the database's facts mean for the promises."""

from __future__ import annotations

import asyncio

from app.cli.doctor.check import Check, Word, fail, ok, warn
from app.cli.doctor.settings import without_password
from db.doctor import OLDEST_MAJOR, DatabaseFacts, examine

CLOCK_TOLERANCE_S = 2.0
SLOW_S = 0.05
LONG_TRANSACTION_S = 300.0
CONNECTIONS_A_WORKER = 22
FEW_YEARS = 20.0
US_A_YEAR = 365.25 * 86_400 * 1_000_000
LOCKS_A_SEGMENT = 4
"""The table and its indexes; a claim over 370 segments was seen to hold 1,130."""


def checks(url: str) -> tuple[list[Check], bool]:
    """Connect as the service does and look. Also whether every request needs a credential."""
    where = without_password(url)
    try:
        facts = asyncio.run(examine(url))
    except ConnectionError as error:
        return [fail("database", f"{where}: {error}", "start it, or correct GAPLESS_DATABASE_URL")], False
    except ValueError as error:
        return [fail("database", f"{where}: {error}", "correct GAPLESS_DATABASE_URL")], False
    return judge(facts, where), facts.credentials_required


def judge(facts: DatabaseFacts, where: str) -> list[Check]:
    """One check for each thing that can be wrong."""
    return [
        _server(facts, where),
        _schema(facts),
        _role(facts),
        _durable(facts),
        _prepared(facts),
        _long_transactions(facts),
        _pinned(facts),
        _clock(facts),
        _connections(facts),
        _locks(facts),
        _ids(facts),
    ]


def _server(facts: DatabaseFacts, where: str) -> Check:
    detail = f"Postgres {facts.version} at {where}, round trip {facts.round_trip_s * 1000:.1f} ms"
    if facts.major < OLDEST_MAJOR:
        return fail("database", detail, f"Postgres {OLDEST_MAJOR} or newer is needed")
    if facts.standby:
        return fail("database", f"{detail}: a standby, read only", "give the address of the primary")
    if facts.encoding != "UTF8":
        advice = "make a database with encoding UTF8"
        return fail("database", f"{detail}: encoding {facts.encoding}", advice)
    if facts.round_trip_s > SLOW_S:
        return warn("database", detail, "it is far away: every publish waits for at least one round trip")
    return ok("database", detail)


def _schema(facts: DatabaseFacts) -> Check:
    have, wanted = facts.schema_version, facts.schema_wanted
    if facts.role_error is not None:
        return fail(
            "schema", "not visible without the service's role", "see role; gapless migrate makes both"
        )
    if have is None:
        return fail("schema", "none yet", "run gapless migrate as the owner (GAPLESS_MIGRATE_URL), or serve")
    if have > wanted:
        return fail("schema", f"version {have}, this program knows {wanted}", "update Gapless")
    if have < wanted:
        return fail("schema", f"version {have}, this program needs {wanted}", "run gapless migrate")
    return ok("schema", f"version {have}")


def _role(facts: DatabaseFacts) -> Check:
    if facts.role_error is not None:
        advice = "as an administrator: create role gapless_service; grant gapless_service to " + facts.login
        return fail("role", f"{facts.login} cannot act as gapless_service: {facts.role_error}", advice)
    detail = f"{facts.role} (login {facts.login})"
    if facts.superuser or facts.writable_tables:
        what = "is a superuser" if facts.superuser else f"can write {', '.join(facts.writable_tables)}"
        advice = f"revoke that: {facts.role} must write through the functions only, or order is not assured"
        return fail("role", f"{detail} {what}", advice)
    missing = (*facts.unreadable_tables, *(f"{name}()" for name in facts.uncallable_functions))
    if missing:
        advice = f"run gapless migrate as the owner: it grants {facts.role} its rights"
        return fail("role", f"{detail} may not use {', '.join(missing)}", advice)
    return ok("role", f"{detail}, cannot write tables")


def _durable(facts: DatabaseFacts) -> Check:
    detail = f"fsync {_on(facts.fsync)}, full_page_writes {_on(facts.full_page_writes)}"
    detail += f", synchronous_commit {facts.synchronous_commit}"
    if not (facts.fsync and facts.full_page_writes) or facts.synchronous_commit in ("off", "local"):
        word = Word.WARN if facts.synchronous_commit == "local" and facts.fsync else Word.FAIL
        advice = "set all three to on: a confirmed message could be lost in a crash"
        return Check("durability", word, detail, advice)
    return ok("durability", detail)


def _on(value: bool) -> str:
    return "on" if value else "off"


def _prepared(facts: DatabaseFacts) -> Check:
    detail = f"max_prepared_transactions {facts.max_prepared_transactions}"
    if facts.prepared_transactions:
        advice = (
            "commit or roll them back (pg_prepared_xacts): one that published stalls all readers until then"
        )
        return warn("prepared transactions", f"{detail}, {facts.prepared_transactions} open", advice)
    if facts.max_prepared_transactions:
        advice = "set it to 0 unless you need it: a prepared transaction that published stalls all readers"
        return warn("prepared transactions", detail, advice)
    return ok("prepared transactions", detail)


def _long_transactions(facts: DatabaseFacts) -> Check:
    detail = f"the oldest is open for {facts.oldest_transaction_s:.0f} s"
    if facts.hidden:
        detail += f", of those that {facts.role} may see (pg_read_all_stats shows {facts.hidden} more)"
    if facts.oldest_transaction_s > LONG_TRANSACTION_S:
        advice = "find it in pg_stat_activity and end it: nothing dead is removed from any table until then"
        return warn("transactions", detail, advice)
    return ok("transactions", detail)


def _pinned(facts: DatabaseFacts) -> Check:
    if facts.pooled:
        advice = "connect to Postgres itself, or use session pooling"
        return fail("pooling", "a pooler changes the server process between transactions", advice)
    return ok("pooling", "connections keep their server process")


def _clock(facts: DatabaseFacts) -> Check:
    detail = f"{facts.clock_ahead_s:+.3f} s against this machine"
    if abs(facts.clock_ahead_s) > CLOCK_TOLERANCE_S + facts.round_trip_s:
        return warn(
            "clock", detail, "set both by NTP: times given to since and ttl would be off by that much"
        )
    return ok("clock", detail)


def _connections(facts: DatabaseFacts) -> Check:
    left = facts.max_connections - facts.connections
    detail = f"{facts.connections} of {facts.max_connections} connections in use"
    if left < CONNECTIONS_A_WORKER:
        advice = f"raise max_connections: a worker process takes up to {CONNECTIONS_A_WORKER}"
        return warn("connections", detail, advice)
    return ok("connections", detail)


def _locks(facts: DatabaseFacts) -> Check:
    room = facts.max_locks * (facts.max_connections + facts.max_prepared_transactions)
    wanted = facts.segments * LOCKS_A_SEGMENT * CONNECTIONS_A_WORKER
    detail = f"room for {room:,}, {facts.segments:,} segments"
    if wanted > room:
        least = -(-wanted // (facts.max_connections + facts.max_prepared_transactions))
        advice = f"raise max_locks_per_transaction to {least} or more: a worker process may take {wanted:,}"
        return warn("locks", detail, advice)
    return ok("locks", detail)


def _ids(facts: DatabaseFacts) -> Check:
    if facts.ids_left is None:
        return ok("ids", "none taken yet")
    years = facts.ids_left / US_A_YEAR
    detail = f"{facts.ids_left / 2**53:.1%} left, enough for {years:.0f} years as fast as the clock"
    if years < FEW_YEARS:
        advice = "fences use them up (gapless.fences): end what crashes or moves the database over and over"
        return warn("ids", f"{detail}, and each fence takes up to 12.7 days of them", advice)
    return ok("ids", detail)
