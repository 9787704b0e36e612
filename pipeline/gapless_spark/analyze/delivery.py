"""Statistics of durable delivery from the live database: lag, attempts, dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless_spark import database

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

AGE_EDGES_S = (0, 3600, 86400, 7 * 86400, 30 * 86400)

# Lag, as in the glossary: messages neither settled nor in flight. Messages without a row are counted as in
# gapless.ahead(): by seq, which is dense, without a filter, else one by one, up to a million. That function
# cannot be called here: its argument is a subscription's whole row, with the secrets of webhooks, which the
# reader's role may not read.
SUBSCRIPTIONS = """
with s as materialized (
    select s.id, s.namespace_id, s.name, s.names, s.regex, s.types, s.keys, s.paused, p.frontier, p.acked,
           p.redelivered, p.dead_lettered, coalesce(s.types, s.keys) is not null as filtered
    from gapless.subscriptions s
    join gapless.namespaces n on n.id = s.namespace_id
    join gapless.progress p on p.subscription_id = s.id
    where n.name = $1
), ahead as (
    select s.id, count(*) as channels,
           sum(case when not s.filtered then
                   greatest(0, c.last_seq - greatest(gapless.seq_at(c.id, s.frontier), c.first_seq - 1)
                       - (select count(*) from gapless.settled_ahead a
                          where a.subscription_id = s.id and a.channel_id = c.id
                            and a.message_id > greatest(s.frontier, c.trimmed_id)))
               else
                   (select count(*) from (
                        select from gapless.messages m
                        where m.channel_id = c.id and m.id > greatest(s.frontier, c.trimmed_id)
                          and (s.types is null or m.type = any(s.types))
                          and (s.keys is null or m.key = any(s.keys))
                          and not exists (select from gapless.settled_ahead a
                                          where a.subscription_id = s.id and a.message_id = m.id)
                        limit 1000000) x)
               end) as messages,
           min((select m.created_at from gapless.messages m
                where m.channel_id = c.id and m.id > greatest(s.frontier, c.trimmed_id)
                  and (s.types is null or m.type = any(s.types)) and (s.keys is null or m.key = any(s.keys))
                  and not exists (select from gapless.settled_ahead a
                                  where a.subscription_id = s.id and a.message_id = m.id)
                order by m.id limit 1)) as oldest
    from s join gapless.channels c
      on c.namespace_id = s.namespace_id and c.last_id > s.frontier
      and (c.name = any(s.names) or c.name ~ s.regex)
    group by s.id
)
select s.name::text as subscription, s.paused, (coalesce(x.messages, 0) + d.queued)::bigint as lag,
       d.leased::bigint as in_flight,
       extract(epoch from clock_timestamp() - least(d.oldest, x.oldest))::double precision as oldest_seconds,
       s.acked::bigint as acked, s.redelivered::bigint as redelivered,
       s.dead_lettered::bigint as dead_lettered,
       (select count(*) from gapless.dead_letters e
        where e.namespace_id = s.namespace_id and e.subscription = s.name)::bigint as dead_letters
from s
left join ahead x on x.id = s.id
cross join lateral (
    select count(*) filter (where d.state = 0) as leased, count(*) filter (where d.state <> 0) as queued,
           min(d.entered_at) as oldest
    from gapless.deliveries d where d.subscription_id = s.id
) d
order by lag desc, s.name
"""
SUBSCRIPTION_COLUMNS = (
    "subscription",
    "paused",
    "lag",
    "in_flight",
    "oldest_seconds",
    "acked",
    "redelivered",
    "dead_lettered",
    "dead_letters",
)

ATTEMPTS = """
select x.subscription::text as subscription, x.state::text as state, x.attempts::bigint as attempts,
       count(*)::bigint as messages
from (
    select s.name as subscription, case d.state when 0 then 'in flight' else 'queued' end as state, d.attempts
    from gapless.deliveries d
    join gapless.subscriptions s on s.id = d.subscription_id
    join gapless.namespaces n on n.id = s.namespace_id
    where n.name = $1
    union all
    select e.subscription, 'dead letter', e.attempts
    from gapless.dead_letters e join gapless.namespaces n on n.id = e.namespace_id
    where n.name = $1
) x
group by x.subscription, x.state, x.attempts
order by x.subscription, x.state, x.attempts
"""
ATTEMPT_COLUMNS = ("subscription", "state", "attempts", "messages")

DEAD_LETTERS = f"""
select e.subscription::text as subscription, e.reason::text as reason,
       width_bucket(extract(epoch from clock_timestamp() - e.created_at)::double precision,
                    array{list(AGE_EDGES_S[1:])}::double precision[])::bigint as age,
       count(*)::bigint as dead_letters, min(e.created_at) as oldest_at
from gapless.dead_letters e join gapless.namespaces n on n.id = e.namespace_id
where n.name = $1
group by 1, 2, 3
order by 1, 2, 3
"""
DEAD_LETTER_COLUMNS = ("subscription", "reason", "age", "dead_letters", "oldest_at")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of three queries, with these fields.

    subscriptions: subscription, paused, lag, in_flight, oldest_seconds, acked, redelivered, dead_lettered (in
    all), dead_letters (kept now). attempts: subscription, state, attempts, messages. dead_letters:
    subscription, reason, age (index in AGE_EDGES_S), dead_letters, oldest_at.
    """

    subscriptions: list[Row]
    attempts: list[Row]
    dead_letters: list[Row]


def read_delivery(url: str, namespace: str) -> Delivery:
    """Read all three in one snapshot. Raises the errors of `database.connect` and `database.rows`."""
    connection = database.connect(url)
    try:
        database.run(connection, "set transaction isolation level repeatable read, read only")
        return Delivery(
            _rows(connection, SUBSCRIPTIONS, SUBSCRIPTION_COLUMNS, namespace),
            _rows(connection, ATTEMPTS, ATTEMPT_COLUMNS, namespace),
            _rows(connection, DEAD_LETTERS, DEAD_LETTER_COLUMNS, namespace),
        )
    finally:
        database.close(connection)


def _rows(connection: Connection, sql: str, columns: tuple[str, ...], namespace: str) -> list[Row]:
    found = database.rows(connection, sql, (namespace,))
    return [dict(zip(columns, row, strict=True)) for row in found]
