"""Where every message of one durable subscription is, and which ways lead from there.

A snapshot tells the place of each message. Between two snapshots one thing was done; `judge` says of each
message whether that may have brought it from the one place to the other. Nothing is settled in silence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import asyncpg

from subscriptions.domain.delivery import Subscription

SNAPSHOT = """
with now as materialized (select clock_timestamp() as t), c as (
    select c.id, c.name, c.trimmed_id from gapless.channels c where c.name = any($2)
), d as (
    select d.*, least(d.expires_at, d.entered_at + s.message_ttl * interval '1 second') as end_at,
           d.kept_id is not null or s.keys is null or coalesce(m.key = any(s.keys), false) as fits
    from gapless.deliveries d join gapless.subscriptions s on s.id = d.subscription_id
    left join gapless.messages m on m.id = d.message_id
)
select json_build_object(
    'frontier', p.frontier, 'acked', p.acked, 'purged', p.purged, 'noted', p.removed,
    'gaps', (select coalesce(sum(g.missed), 0) from gapless.gaps g where g.subscription_id = s.id),
    'dead', p.dead_lettered, 'paused', s.paused,
    'removed', p.removed + gapless.removed_between(s, p.frontier, 9007199254740991),
    'ahead', gapless.ahead(s, p.frontier), 'max_deliver', s.max_deliver, 'max_in_flight', s.max_in_flight,
    'passed', (select coalesce(json_agg(a.message_id), '[]') from gapless.settled_ahead a
               where a.subscription_id = s.id),
    'rows', (select coalesce(json_agg(json_build_array(
                 d.message_id, d.state, d.attempts, d.lease, extract(epoch from d.at - t),
                 extract(epoch from d.end_at - t), d.strikes, d.company, d.member, d.fits)), '[]')
             from d where d.subscription_id = s.id),
    'messages', (select coalesce(json_agg(json_build_array(
                     m.id, c.name, m.key, extract(epoch from least(m.expires_at,
                         m.created_at + s.message_ttl * interval '1 second') - t))), '[]')
                 from gapless.messages m join c on c.id = m.channel_id
                 where (c.name = any(s.names) or c.name ~ s.regex) and m.id > c.trimmed_id
                   and (s.keys is null or m.key = any(s.keys))),
    'kept', (select coalesce(json_agg(d.message_id), '[]') from d
             where d.subscription_id = s.id and d.kept_id is not null),
    'letters', (select coalesce(json_agg(json_build_array(e.id, k.message_id, e.reason)), '[]')
                from gapless.dead_letters e join gapless.kept k on k.id = e.kept_id
                where e.subscription = s.name))
from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id, now where s.id = $1
"""


class At(Enum):
    """Where a message is."""

    AHEAD = "ahead"
    LEASED = "leased"
    DUE = "due"
    WAITING = "waiting"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Place:
    """`left` is the seconds until the lease ends or the delay is over; `life` until the message expires;
    `fits`: the filter lets it through, or it was replayed."""

    at: At
    attempts: int = 0
    lease: int = 0
    left: float = 0
    life: float | None = None
    strikes: int = 0
    company: int | None = None
    member: int = 0
    fits: bool = True

    @property
    def ended(self) -> bool:
        return self.at is At.LEASED and self.left <= 0

    @property
    def expired(self) -> bool:
        return self.life is not None and self.life <= 0


GONE = Place(At.GONE)
_STATES = (At.LEASED, At.DUE, At.WAITING)


@dataclass(frozen=True, slots=True)
class Snapshot:
    places: dict[int, Place]
    letters: dict[int, tuple[int, str]]
    """Dead letter → message and reason."""
    totals: dict[str, Any]

    def __getitem__(self, message_id: int) -> Place:
        return self.places.get(message_id, GONE)

    def count(self, *where: At) -> int:
        return sum(place.at in where for place in self.places.values())


async def look(owner: asyncpg.Connection, subscription: Subscription, channels: list[str]) -> Snapshot:
    """The places of all messages, at one moment."""
    totals = json.loads(await owner.fetchval(SNAPSHOT, subscription.id, channels))
    passed = set(totals["passed"])
    places = {
        id_: Place(At.AHEAD, life=life)
        for id_, _, _, life in totals["messages"]
        if id_ > totals["frontier"] and id_ not in passed
    }
    for id_, state, attempts, lease, left, life, strikes, company, member, fits in totals["rows"]:
        places[id_] = Place(_STATES[state], attempts, lease, left, life, strikes, company, member, fits)
    letters = {id_: (message_id, reason) for id_, message_id, reason in totals["letters"]}
    return Snapshot(places, letters, totals)


async def pass_time(
    owner: asyncpg.Connection, subscription: Subscription, channels: list[str], seconds: float
) -> None:
    """As if everything that was done to this subscription had been done so much earlier."""
    for table, columns, of in (
        ("deliveries", ("at", "entered_at", "expires_at"), "subscription_id = $2"),
        ("progress", ("not_before", "expired_to", "next_end"), "subscription_id = $2"),
        (
            "messages",
            ("created_at", "expires_at"),
            "channel_id = any(array(select id from gapless.channels where name = any($2)))",
        ),
    ):
        changes = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in columns)
        whose = channels if table == "messages" else subscription.id
        await owner.execute(f"update gapless.{table} set {changes} where {of}", seconds, whose)


async def trim(owner: asyncpg.Connection, channel: str, keep: int) -> None:
    """By the rule that retention follows, which is then taken back."""
    statement = "select gapless.set_channel(1, $1, $2, false)"
    await owner.execute(statement, channel, f'{{"max_messages": {keep}}}')
    await owner.execute("select gapless.trim_channels(1000)")
    await owner.execute(statement, channel, "{}")


@dataclass(slots=True)
class Deed:
    """What was done between two snapshots, as far as it matters to single messages."""

    claimed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Message → lease and attempt."""
    acked: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)
    """Nacked, released, or given back."""
    nacked: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """Released by a member that had begun, all it had."""
    uncounted: set[int] = field(default_factory=set)
    """Released unsent, or given back: of these the attempt does not count."""
    rejected: set[int] = field(default_factory=set)
    replayed: set[int] = field(default_factory=set)
    trimmed: bool = False
    purged: bool = False
    reordered: bool = False
    decides: bool = False
    """A claim or a reaper: what time has decided becomes visible."""


def judge(before: Snapshot, after: Snapshot, deed: Deed) -> None:
    """Raises AssertionError for a message that went where nothing could bring it."""
    new = after.letters.keys() - before.letters.keys()
    newly_dead = dict(after.letters[id_] for id_ in new)
    assert len(newly_dead) == len(new), "one death a message"
    for id_ in before.places.keys() | after.places.keys():
        was, now = before[id_], after[id_]
        why = (id_, was, now, deed)
        if id_ in newly_dead:
            assert now.at is At.GONE, why
            assert _may_die(was, newly_dead[id_], id_, before, deed), (newly_dead[id_], why)
        elif was.at is At.GONE:
            assert now.at is At.GONE or now.at is At.AHEAD or id_ in deed.replayed, why
        elif now.at is At.GONE:
            passed = not was.fits and deed.decides and (was.at is not At.LEASED or was.ended)
            purged = deed.purged and was.at is not At.LEASED
            assert id_ in deed.acked or (deed.trimmed and was.at is At.AHEAD) or passed or purged, why
        else:
            _check_move(id_, was, now, deed, why)
            _check_strikes(id_, was, now, before, deed)


def _may_die(was: Place, reason: str, id_: int, before: Snapshot, deed: Deed) -> bool:
    most = before.totals["max_deliver"]
    alone = id_ in deed.nacked or len(deed.lost) == 1 or was.company == 1 or _alone(was, before)
    spent = most > 0 and was.strikes + (was.at is At.LEASED and alone) >= most
    if reason == "rejected":
        return id_ in deed.rejected and was.at is At.LEASED and not was.ended
    if reason == "expired":
        return deed.decides and was.expired and (was.at is not At.LEASED or was.ended)
    if reason == "max_deliver":
        return spent and (
            id_ in deed.back - deed.uncounted or (deed.decides and (was.at is not At.LEASED or was.ended))
        )
    return reason == "max_backlog" and deed.decides and (was.at is not At.LEASED or was.ended)


def _alone(was: Place, before: Snapshot) -> bool:
    """Whether nobody else's lease could be the cause."""
    return sum(p.at is At.LEASED and p.member == was.member for p in before.places.values()) == 1


def _check_silence(was: Place, now: Place, before: Snapshot, *, alone: bool) -> None:
    """In ever smaller company, and nearer to its end only if it was alone."""
    assert now.company is not None
    assert was.company is None or now.company < was.company or now.company == 1
    struck = now.strikes - was.strikes
    assert struck in (0, 1), (was, now)
    assert alone or not struck, (was, now)
    assert struck or was.company != 1, (was, now)


def _check_move(id_: int, was: Place, now: Place, deed: Deed, why: object) -> None:
    if id_ in deed.claimed:
        assert was.at is not At.LEASED or was.ended, why
        assert was.at is not At.DUE or was.left <= 0, why
        assert not was.expired, why
        assert (now.at, now.lease, now.attempts) == (At.LEASED, *deed.claimed[id_]), why
        assert now.attempts == was.attempts + 1, why
    elif id_ in deed.replayed:
        assert now.attempts == (now.at is At.LEASED), why
    elif id_ in deed.back:
        assert was.at is At.LEASED, why
        assert (now.at, now.attempts) == (At.DUE, was.attempts - (id_ in deed.uncounted)), why
    elif was.at is At.LEASED and (now.at, now.lease) == (At.LEASED, was.lease):
        assert now.attempts == was.attempts, why
    elif was.ended:
        assert deed.decides, why
        assert now.at in (At.DUE, At.WAITING), why
        assert now.attempts == was.attempts, why
    else:
        assert now.at is not At.LEASED, why
        assert now.attempts == was.attempts, why
        assert was.at is not At.WAITING or now.at is not At.AHEAD, why
        makes_way = was.attempts == 0 and any(replayed < id_ for replayed in deed.replayed)
        assert now.at is not At.WAITING or was.at is not At.DUE or deed.decides or makes_way, why


def _check_strikes(id_: int, was: Place, now: Place, before: Snapshot, deed: Deed) -> None:
    """Nearer to its end by nacks, and by ends without a word that it alone can be the cause of."""
    ended = was.ended and (now.at, now.lease) != (At.LEASED, was.lease)
    if id_ in deed.replayed:
        assert (now.strikes, now.company) == (0, None), (was, now)
    elif id_ in deed.nacked:
        assert (now.strikes, now.company) == (was.strikes + 1, None), (was, now)
    elif id_ in deed.lost:
        beside = [id_ for id_ in deed.lost if before[id_].member == was.member]
        _check_silence(was, now, before, alone=was.company == 1 or len(beside) == 1)
    elif ended and id_ not in deed.uncounted:
        _check_silence(was, now, before, alone=was.company == 1 or _alone(was, before))
    else:
        assert (now.strikes, now.company) == (was.strikes, was.company), (was, now)
