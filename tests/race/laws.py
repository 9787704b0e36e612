"""What is true of durable subscriptions whenever nobody is deciding."""

from __future__ import annotations

import asyncpg

from subscriptions.domain.delivery import Subscription
from tests.race.queues import ALL

# Rows of subscriptions that cannot be keep the planner honest, and mean nothing.
_REAL = (
    "with deliveries as (select * from gapless.deliveries where subscription_id > 0),"
    " settled_ahead as (select * from gapless.settled_ahead where subscription_id > 0)"
)
LAWS = {
    "a lane has one message at work": "select subscription_id, channel_id, lane from deliveries d"
    " join gapless.progress p using (subscription_id) where lane is not null group by 1, 2, 3, p.crowded"
    " having count(*) filter (where state < 2) not between 1 and case when p.crowded then 1000 else 1 end",
    "a copy belongs to one dead letter or one delivery": "select k.id from gapless.kept k"
    " left join (select kept_id from gapless.dead_letters union all select kept_id from deliveries) x"
    " on x.kept_id = k.id"
    " group by k.id having count(x.kept_id) <> 1",
    "a dead letter has its copy": "select e.id from gapless.dead_letters e"
    " where not exists (select from gapless.kept k where k.id = e.kept_id)",
    "a replayed message has its copy": "select d.* from deliveries d where d.kept_id is not null"
    " and not exists (select from gapless.kept k where k.id = d.kept_id)",
    "progress is of a subscription": "select coalesce(s.id, p.subscription_id) from gapless.subscriptions s"
    " full join gapless.progress p on p.subscription_id = s.id "
    " where s.id is null or p.subscription_id is null",
    "rows are of a subscription": "select d.subscription_id from deliveries d"
    " where not exists (select from gapless.subscriptions s where s.id = d.subscription_id)"
    " union all select a.subscription_id from settled_ahead a"
    " where not exists (select from gapless.subscriptions s where s.id = a.subscription_id)",
    "what is settled ahead lies ahead": "select a.* from settled_ahead a"
    " join gapless.progress p using (subscription_id) where a.message_id <= p.frontier",
    "a row ahead of the frontier is passed over": "select d.* from deliveries d"
    " join gapless.progress p using (subscription_id) where d.message_id > p.frontier and not exists"
    " (select from settled_ahead a"
    " where (a.subscription_id, a.message_id) = (d.subscription_id, d.message_id))",
    "leases are counted, and none ends unexpected": "select p.* from gapless.progress p"
    " left join (select subscription_id, count(*) as n, min(at) as at from deliveries where state = 0"
    " group by 1) d using (subscription_id) where p.leased <> coalesce(d.n, 0) or d.at < p.next_end",
    "what is in doubt is known to be": "select d.* from deliveries d"
    " join gapless.progress p using (subscription_id) where d.company is not null and not p.doubt",
    "a strike is an attempt": "select * from deliveries where strikes > attempts",
    "a lease counts as an attempt": "select * from deliveries where state = 0 and attempts < 1",
}


_ALL_LAWS = " union all ".join(
    f"(select {number} as law from ({statement}) x limit 1)" for number, statement in enumerate(LAWS.values())
)


async def check_queues(owner: asyncpg.Connection) -> None:
    """What holds whenever nobody is deciding."""
    if await owner.fetch(f"{_REAL} {_ALL_LAWS}"):
        for law, statement in LAWS.items():
            broken = await owner.fetch(f"{_REAL} {statement} limit 5")
            assert not broken, (law, broken)


async def ledger(owner: asyncpg.Connection, subscription: Subscription) -> dict[str, int]:
    """Where all messages of a subscription are, each counted once but for those replayed."""
    (row,) = await owner.fetch(
        "select p.acked, p.dead_lettered, p.removed + gapless.removed_between(s, p.frontier, $2) as removed,"
        " gapless.ahead(s, p.frontier) as ahead,"
        " (select count(*) from gapless.deliveries d where d.subscription_id = s.id) as rows"
        " from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id where s.id = $1",
        subscription.id,
        ALL,
    )
    return dict(row)


async def nothing_left(owner: asyncpg.Connection) -> None:
    """Everything is settled and no dead letter is there: no row of any kind is left."""
    await check_queues(owner)
    for table in ("deliveries", "settled_ahead", "kept", "dead_letters"):
        real = "where subscription_id > 0" if table != "kept" else ""
        count = await owner.fetchval(f"select count(*) from gapless.{table} {real}")
        assert count == 0, (table, count)
