-- What the database itself says of every subscription, in one statement and so in one snapshot: each message that
-- matches is above the frontier and untouched, or has a row, or was counted as acked, dead or removed.
with subscribed as materialized (
    select s.id, s.name, c.id as channel_id, c.trimmed_id, p.frontier
    from gapless.subscriptions s
    join gapless.progress p on p.subscription_id = s.id
    join gapless.channels c on c.namespace_id = s.namespace_id and (c.name = any(s.names) or c.name ~ s.regex)
), logged as (
    select x.id,
           count(*) as published,
           count(*) filter (where m.id > x.frontier and d.message_id is null and a.message_id is null) as untouched
    from subscribed x
    join gapless.messages m on m.channel_id = x.channel_id
    left join gapless.deliveries d on d.subscription_id = x.id and d.message_id = m.id
    left join gapless.settled_ahead a on a.subscription_id = x.id and a.message_id = m.id
    group by x.id
), under_way as (
    select d.subscription_id as id, count(*) filter (where d.state = 0) as leased,
           count(*) filter (where d.state <> 0) as kept
    from gapless.deliveries d group by d.subscription_id
)
select s.name, coalesce(l.published, 0) as published, coalesce(l.untouched, 0) + coalesce(u.kept, 0) as ready,
       coalesce(u.leased, 0) as in_flight, p.acked, p.removed,
       (select count(*) from gapless.dead_letters e where e.subscription_id = s.id) as dead_letters
from gapless.subscriptions s
join gapless.progress p on p.subscription_id = s.id
left join logged l on l.id = s.id
left join under_way u on u.id = s.id
