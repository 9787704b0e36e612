-- Statistics: where a subscription stands, in numbers.

-- The statistics of one subscription, in one snapshot; each is an aggregate over an index. Callers use
-- gapless.progress first: see gapless.compact.
create or replace function gapless.stats(s gapless.subscriptions, p gapless.progress)
returns table (
    cursor bigint, acked bigint, redelivered bigint, dead_lettered bigint, purged bigint, removed bigint, ahead bigint,
    leased bigint, waiting bigint, ready bigint, delayed bigint, dead_letters bigint, oldest double precision
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select p.frontier, p.acked, p.redelivered, p.dead_lettered, p.purged,
           greatest(0, p.removed + gapless.removed_between(s, p.frontier, 9007199254740991)),
           gapless.ahead(s, p.frontier), d.leased, d.waiting, d.ready, d.delayed,
           (select count(*) from gapless.dead_letters e
            where e.namespace_id = s.namespace_id and e.subscription = s.name),
           extract(epoch from clock_timestamp() - least(d.oldest, gapless.oldest_ahead(s, p.frontier)))
               ::double precision
    from (
        select count(*) filter (where d.state = 0) as leased, count(*) filter (where d.state = 2) as waiting,
               count(*) filter (where d.state = 1 and d.at <= clock_timestamp()) as ready,
               count(*) filter (where d.state = 1 and d.at > clock_timestamp()) as delayed, min(d.entered_at) as oldest
        from gapless.deliveries d where d.subscription_id = s.id
    ) d
$$;
