-- Statistics: where a subscription stands, and what it has not settled yet, as counts and ages.

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

-- The number of matching messages above an id that are not settled ahead. Without a filter they are counted
-- by seq, which is dense; with one, they are counted one by one, up to p_most.
create or replace function gapless.ahead(s gapless.subscriptions, p_frontier bigint, p_most bigint default 1000000)
returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    since timestamptz := (select p.not_before from gapless.progress p where p.subscription_id = s.id);
    passed bigint;
begin
    if not gapless_internal.takes_all(s) then
        return (select count(*) from (
                    select from gapless.messages m join gapless.channels c on c.id = m.channel_id
                    where m.id > p_frontier and c.namespace_id = s.namespace_id and m.id > c.trimmed_id
                      and (c.name = any(s.names) or c.name ~ s.regex)
                      and gapless.admits(s.types, s.keys, s.changes, m.type, m.key, m.change)
                      and (since is null or m.created_at >= since)
                      and not exists (select from gapless.settled_ahead a
                                      where a.subscription_id = s.id and a.message_id = m.id)
                    limit p_most) x);
    end if;
    select count(*) into passed
    from gapless.settled_ahead a join gapless.channels c on c.id = a.channel_id
    where a.subscription_id = s.id and a.message_id > greatest(p_frontier, c.trimmed_id)
      and c.namespace_id = s.namespace_id and (c.name = any(s.names) or c.name ~ s.regex);
    if since is not null then
        -- A start in time lies a few seconds before the first message that counts.
        passed := passed + (
            select count(*) from gapless.messages m join gapless.channels c on c.id = m.channel_id
            where m.id > p_frontier and m.id <= gapless.id_before(since + interval '20 seconds')
              and m.created_at < since and m.id > c.trimmed_id
              and c.namespace_id = s.namespace_id and (c.name = any(s.names) or c.name ~ s.regex)
              and not exists (select from gapless.settled_ahead a
                              where a.subscription_id = s.id and a.message_id = m.id));
    end if;
    return (select greatest(0, coalesce(sum(
                c.last_seq - greatest(gapless_internal.seq_below(c.id, p_frontier), c.first_seq - 1)), 0) - passed)
            from gapless.channels c
            where c.namespace_id = s.namespace_id and c.last_id > p_frontier
              and (c.name = any(s.names) or c.name ~ s.regex));
end $$;

-- When the first of these messages was created, among the first that match; null if there is none.
create or replace function gapless.oldest_ahead(s gapless.subscriptions, p_frontier bigint) returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    since timestamptz := (select p.not_before from gapless.progress p where p.subscription_id = s.id);
    at bigint := p_frontier;
    seen record;
    found_at timestamptz;
begin
    for i in 1 .. 20 loop
        select * into seen from gapless_internal.scan(s, at, 9007199254740991, 100 * i);
        select x.created into found_at
        from unnest(seen.ids, seen.created) as x (id, created)
        where (since is null or x.created >= since)
          and not exists (select from gapless.settled_ahead a
                          where a.subscription_id = s.id and a.message_id = x.id)
        order by x.id limit 1;
        exit when found_at is not null or not seen.cut;
        at := seen.complete_to;
    end loop;
    return found_at;
end $$;

-- The number of messages that are neither settled nor leased. If they must be counted one by one, at most
-- about p_most are.
create or replace function gapless_internal.backlog(s gapless.subscriptions, p_frontier bigint, p_most bigint)
returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.ahead(s, p_frontier, p_most)
         + (select count(*) from gapless.deliveries d where d.subscription_id = s.id and d.state in (1, 2))
$$;

-- How many messages are neither settled nor leased, and how many are leased, at a bounded cost. Each channel
-- with messages needs one look into an index. Rows under way, and messages that a filter looks at, are
-- counted up to p_most. If there are more, `exact` is false and the counts are lower bounds.
create or replace function gapless.length_of(
    s gapless.subscriptions, p_most integer, out waiting bigint, out leased bigint, out exact boolean
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_rounds constant integer := 10;
    p gapless.progress;
    seen record;
    n bigint;
begin
    select * into p from gapless.progress x where x.subscription_id = s.id;
    if not found then
        perform gapless_internal.no_progress(s.id);
    end if;
    leased := p.leased;
    select count(*) into waiting
    from (select from gapless.deliveries d where d.subscription_id = s.id and d.state in (1, 2) limit p_most + 1) d;
    exact := waiting <= p_most;
    waiting := least(waiting, p_most);
    if gapless_internal.takes_all(s) then
        waiting := waiting + gapless.ahead(s, p.frontier);
        return;
    end if;
    for i in 1 .. max_rounds loop
        select * into seen from gapless_internal.scan(s, p.frontier, gapless_internal.last_id(), p_most / max_rounds);
        select count(*) into n from unnest(seen.ids, seen.created) as x (id, created)
        where (p.not_before is null or x.created >= p.not_before)
          and not exists (select from gapless.settled_ahead a where a.subscription_id = s.id and a.message_id = x.id);
        waiting := waiting + n;
        p.frontier := greatest(p.frontier, seen.complete_to);
        exit when not seen.cut;
    end loop;
    exact := exact and not seen.cut;
end $$;

-- Whether the subscription has any message that is not settled: leased, under way, or ahead. The caller holds
-- its lock.
create or replace function gapless_internal.holds_messages(s gapless.subscriptions) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    frontier constant bigint := (select p.frontier from gapless.progress p where p.subscription_id = s.id);
begin
    -- Without its progress this is unknown.
    return frontier is null or exists (select from gapless.deliveries d where d.subscription_id = s.id)
           or gapless.ahead(s, frontier, 1) > 0;
end $$;
