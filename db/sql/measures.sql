-- name: measured_subscriptions
-- The statistics of each subscription, but messages that must be counted one by one are counted only up to
-- some thousands. One subscription costs some milliseconds, except with a filter that excludes nearly all of
-- a long log: the caller sets a timeout.
select s.id, n.name as namespace, s.name as subscription, p.acked, p.redelivered, p.dead_lettered,
       greatest(0, p.removed + gapless.removed_between(s, p.frontier, 9007199254740991)) as removed,
       gapless.ahead(s, p.frontier, 10000) + d.waiting as lag, d.leased,
       extract(epoch from clock_timestamp() - least(d.oldest_waiting, a.oldest))::double precision as lag_seconds,
       extract(epoch from clock_timestamp() - least(d.oldest, a.oldest))::double precision as oldest_seconds,
       (select count(*) from (select from gapless.dead_letters e
                              where e.namespace_id = s.namespace_id and e.subscription = s.name limit 10000) x) as dead_letters
from gapless.subscriptions s
join gapless.namespaces n on n.id = s.namespace_id
join gapless.progress p on p.subscription_id = s.id
cross join lateral (select gapless.oldest_ahead(s, p.frontier) as oldest) a
cross join lateral (
    select count(*) filter (where d.state = 0) as leased, count(*) filter (where d.state <> 0) as waiting,
           min(d.entered_at) as oldest, min(d.entered_at) filter (where d.state <> 0) as oldest_waiting
    from (select d.state, d.entered_at from gapless.deliveries d where d.subscription_id = s.id limit 20000) d
) d
where s.id = any($1)
order by s.id

-- name: oldest_subscriptions
select (select count(*) from gapless.subscriptions) as count,
       array(select s.id from gapless.subscriptions s order by s.id limit $1) as ids
