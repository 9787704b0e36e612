-- Reaping: what ends by time, without a member.

-- Whether a message may be older than the subscription's message_ttl allows: among its rows, or next at its
-- frontier. Messages of one channel are stamped in id order; those of several channels in almost that order.
create or replace function gapless_internal.ageing(s gapless.subscriptions, p_frontier bigint) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    slack constant interval := interval '15 seconds';
    oldest constant timestamptz := clock_timestamp() - s.message_ttl * interval '1 second';
begin
    if exists (select from gapless.deliveries d
               where d.subscription_id = s.id and d.state in (1, 2) and d.entered_at <= oldest) then
        return true;
    end if;
    if s.regex is not null then
        return (select m.created_at from gapless.messages m where m.id > p_frontier order by m.id limit 1)
               <= oldest + slack;
    end if;
    return exists (
        select from gapless.channels c cross join lateral (
            select m.created_at from gapless.messages m
            where (m.channel_id, m.id) > (c.id, greatest(p_frontier, c.trimmed_id))
              and (m.channel_id, m.id) <= (c.id, c.last_id) and m.id >= p_frontier - p_frontier % 16777216
            order by m.channel_id, m.id limit 1) m
        where c.namespace_id = s.namespace_id and c.name = any(s.names) and m.created_at <= oldest);
end $$;

-- Subscriptions that may have something to reap.
create or replace function gapless.reapable(p_namespaces integer[]) returns setof integer
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    expiring boolean;
begin
    select exists (
        select from gapless.messages m
        where m.expires_at > (
              -- If the clock was set back, it was ahead at the last look.
              select least(min(p.expired_to), clock_timestamp()) - interval '15 seconds'
              from gapless.progress p join gapless.subscriptions s on s.id = p.subscription_id
              where s.namespace_id = any(p_namespaces))
          and m.expires_at <= clock_timestamp()
    ) into expiring;
    return query
        select s.id from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id
        where s.namespace_id = any(p_namespaces) and (
            -- With `retain`, messages that the filter excludes must be passed too: retention waits for them.
            expiring or s.max_backlog is not null or s.retain
            or s.message_ttl is not null and gapless_internal.ageing(s, p.frontier)
            or p.next_end <= clock_timestamp() or p.look_to is not null
            or p.matching is distinct from gapless_internal.matching(s)
            or p.mixed
            or exists (select from gapless.deliveries d
                       where d.subscription_id = s.id and d.expires_at <= clock_timestamp() and d.state in (1, 2)))
        order by s.id;
end $$;

-- Whether a message above this id may be one for this subscription.
create or replace function gapless_internal.has_ahead(s gapless.subscriptions, p_frontier bigint) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when s.regex is not null then gapless_internal.last_id() > p_frontier
           else exists (select from gapless.channels c
                        where c.namespace_id = s.namespace_id and c.name = any(s.names) and c.last_id > p_frontier)
           end
$$;

-- The next stretch of a look for expired messages, in the order in which they expired. Those above the
-- frontier that are for the subscription are marked as settled, at most p_limit of them, and die. ends: there
-- are no more up to the end of the look. If false, the look goes on after this stretch.
create or replace function gapless_internal.expire_stretch(
    s gapless.subscriptions, p gapless.progress, p_stretch integer, p_limit integer,
    out deaths gapless.death[], out ends boolean, out looked_at timestamptz, out looked_id bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    with rows as materialized (
        select m.id, m.channel_id, m.expires_at, m.created_at, m.type, m.key, m.change from gapless.messages m
        where (m.expires_at, m.id) > ((select p.looked_at), (select p.looked_id)) and m.expires_at <= p.look_to
        order by m.expires_at, m.id limit p_stretch
    ), late as (
        select r.id, r.channel_id, r.expires_at from rows r join gapless.channels c on c.id = r.channel_id
        where r.id > p.frontier and c.namespace_id = s.namespace_id and r.id > c.trimmed_id
          and (c.name = any(s.names) or c.name ~ s.regex)
          and gapless.admits(s.types, s.keys, s.changes, r.type, r.key, r.change)
          and (p.not_before is null or r.created_at >= p.not_before)
          and not exists (select from gapless.settled_ahead a
                          where a.subscription_id = s.id and a.message_id = r.id)
        order by r.expires_at, r.id limit p_limit
    ), marked as (
        insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
        select s.id, l.id, l.channel_id from late l
    )
    select coalesce((select array_agg((l.id, l.channel_id, 0, null, null, 'expired', null)::gapless.death
                                      order by l.id) from late l), '{}'),
           (select count(*) from rows) < p_stretch and (select count(*) from late) < p_limit, r.expires_at, r.id
    into deaths, ends, looked_at, looked_id
    from (select 1) one left join lateral (
        select x.expires_at, x.id from late x where (select count(*) from late) = p_limit
        union all select x.expires_at, x.id from rows x where (select count(*) from late) < p_limit
        order by 1 desc, 2 desc limit 1) r on true;
end $$;

-- Messages ahead of the frontier that reached their own expires_at, at most p_limit of them: they are marked
-- as settled. Many messages of any channels may have expired since the last look, so one look may take
-- several calls.
create or replace function gapless_internal.expire_ahead(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_limit integer, out deaths gapless.death[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- A publisher commits within 5 s of stamping a message: a look may find new ones this far back.
    slack constant interval := interval '15 seconds';
    most_time constant interval := interval '0.2 seconds';
    max_rounds constant integer := 40;
    stretch constant integer := greatest(500, 5 * p_limit);
    part record;
    under_way constant boolean := p.look_to is not null;
    changed constant boolean := p.matching is distinct from gapless_internal.matching(s);
    ends boolean := not gapless_internal.has_ahead(s, p.frontier);
    n integer := 0;
begin
    deaths := '{}';
    if changed then
        -- Messages that match only since the last look may have expired long before.
        p.expired_to := '-infinity';
    end if;
    if changed or not under_way or p.look_to > p_now then
        p.look_to := p_now;
        p.looked_at := least(p.expired_to, p_now) - slack;
        p.looked_id := 0;
    end if;
    while not ends and cardinality(deaths) < p_limit
          and (n = 0 or n < max_rounds and clock_timestamp() < p_now + most_time) loop
        n := n + 1;
        select * into part from gapless_internal.expire_stretch(s, p, stretch, p_limit - cardinality(deaths));
        deaths := deaths || part.deaths;
        ends := part.ends;
        p.looked_at := coalesce(part.looked_at, p.looked_at);
        p.looked_id := coalesce(part.looked_id, p.looked_id);
    end loop;
    if not ends then
        update gapless.progress
        set expired_to = p.expired_to, look_to = p.look_to, looked_at = p.looked_at, looked_id = p.looked_id,
            matching = gapless_internal.matching(s)
        where subscription_id = s.id;
    elsif changed or under_way or p.expired_to not between p_now - interval '1 second' and p_now then
        update gapless.progress
        set expired_to = p.look_to, look_to = null, looked_at = null, looked_id = null,
            matching = gapless_internal.matching(s)
        where subscription_id = s.id;
    end if;
end $$;

-- Rows that are not leased and whose message expired, or is older than the subscription allows: at most
-- p_limit are removed. Returns what died; null: nothing.
create or replace function gapless_internal.expire_rows(s gapless.subscriptions, p_now timestamptz, p_limit integer)
returns gapless.death[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deaths gapless.death[];
begin
    with ended as (
        delete from gapless.deliveries d
        where d.subscription_id = s.id and d.message_id in (
            select x.message_id from gapless.deliveries x
            where x.subscription_id = s.id and x.state in (1, 2)
              and (x.expires_at <= p_now or x.entered_at + s.message_ttl * interval '1 second' <= p_now)
            order by x.message_id limit greatest(p_limit, 0))
        returning d.*
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'expired', d.last_error)::gapless.death
                     order by d.message_id)
    into deaths from ended d;
    if deaths is not null then
        perform gapless_internal.promote_after(s.id, deaths, p_now);
    end if;
    return deaths;
end $$;

-- Passes the messages at the frontier, one after the other, as long as they have expired, at most p_limit of
-- them. Out: the new frontier, what died, and how many messages retention removed on the way. Messages that
-- the filter excludes are passed too, so that they are not counted again.
create or replace function gapless_internal.expire_at_frontier(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_settled bigint, p_limit integer,
    out frontier bigint, out deaths gapless.death[], out lost bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_rounds constant integer := 20;
    rounds integer := 0;
    seen record;
    part gapless.death[];
    reached bigint;
    more boolean;
begin
    frontier := p.frontier;
    deaths := '{}';
    lost := 0;
    while cardinality(deaths) < p_limit and rounds < max_rounds loop
        rounds := rounds + 1;
        select * into seen from gapless_internal.scan(s, frontier, p_settled, p_limit - cardinality(deaths));
        exit when seen.ids is null and not seen.cut and seen.complete_to <= frontier;
        with c as (
            select x.*, x.expires <= p_now or x.created + s.message_ttl * interval '1 second' <= p_now as expired,
                   p.not_before is not null and x.created < p.not_before or exists (
                       select from gapless.settled_ahead a
                       where a.subscription_id = s.id and a.message_id = x.id) as passed
            from unnest(seen.ids, seen.channel_ids, seen.created, seen.expires)
                as x (id, channel_id, created, expires)
        ), stop as (
            select min(c.id) as id from c where c.expired is not true and not c.passed
        )
        select (select stop.id - 1 from stop),
               (select array_agg((c.id, c.channel_id, 0, null, null, 'expired', null)::gapless.death order by c.id)
                from c, stop where c.expired and not c.passed and (stop.id is null or c.id < stop.id))
        into reached, part;
        deaths := deaths || coalesce(part, '{}');
        reached := greatest(frontier, coalesce(reached, seen.complete_to));
        lost := lost + gapless_internal.lose(s.id, seen.trimmed, seen.trims, frontier, reached);
        more := seen.cut and reached = seen.complete_to;
        frontier := reached;
        exit when not more;
    end loop;
end $$;

-- If the backlog is too long by p_excess, removes that many rows that are not leased, the oldest first.
-- Returns what died; null: nothing.
create or replace function gapless_internal.cut_rows(s gapless.subscriptions, p_now timestamptz, p_excess bigint)
returns gapless.death[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deaths gapless.death[];
begin
    with ended as (
        delete from gapless.deliveries d
        where d.subscription_id = s.id and d.message_id in (
            select x.message_id from gapless.deliveries x
            where x.subscription_id = s.id and x.state in (1, 2) order by x.message_id limit p_excess)
        returning d.*
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'max_backlog',
                      d.last_error)::gapless.death order by d.message_id)
    into deaths from ended d;
    if deaths is not null then
        perform gapless_internal.promote_after(s.id, deaths, p_now);
    end if;
    return deaths;
end $$;

-- Removes the oldest messages of a backlog that is longer than max_backlog, at most p_limit of them: rows
-- first, then messages at the frontier. Out as gapless_internal.expire_at_frontier.
create or replace function gapless_internal.cut_backlog(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_settled bigint, p_limit integer,
    out frontier bigint, out deaths gapless.death[], out lost bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_rounds constant integer := 20;
    rounds integer := 0;
    excess bigint;
    seen record;
    part gapless.death[];
    reached bigint;
begin
    frontier := p.frontier;
    deaths := '{}';
    lost := 0;
    excess := least(
        p_limit, gapless_internal.backlog(s, frontier, least(s.max_backlog + p_limit, 1000000)) - s.max_backlog);
    if excess <= 0 then
        return;
    end if;
    deaths := coalesce(gapless_internal.cut_rows(s, p_now, excess), '{}');
    excess := excess - cardinality(deaths);
    while excess > 0 and rounds < max_rounds loop
        rounds := rounds + 1;
        select * into seen from gapless_internal.scan(s, frontier, p_settled, excess::integer);
        select array_agg((x.id, x.channel_id, 0, null, null, 'max_backlog', null)::gapless.death order by x.id)
        into part
        from unnest(seen.ids, seen.channel_ids, seen.created) as x (id, channel_id, created)
        where (p.not_before is null or x.created >= p.not_before)
          and not exists (select from gapless.settled_ahead a
                          where a.subscription_id = s.id and a.message_id = x.id);
        deaths := deaths || coalesce(part, '{}');
        excess := excess - coalesce(cardinality(part), 0);
        reached := greatest(frontier, seen.complete_to);
        lost := lost + gapless_internal.lose(s.id, seen.trimmed, seen.trims, frontier, reached);
        frontier := reached;
        exit when not seen.cut;
    end loop;
end $$;

-- Decides about at most about p_limit messages of one subscription: leases that ended; messages that expired,
-- in rows, at the frontier and ahead of it; a backlog that is too long. Null: another session is deciding at
-- the moment.
create or replace function gapless.reap(
    p_subscription_id integer, p_settled bigint, p_limit integer, out done integer, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    p gapless.progress;
    t timestamptz;
    deaths gapless.death[];
    part record;
    was bigint;
    lost bigint;
begin
    if not gapless_internal.try_lock_subscription(p_subscription_id) then
        return;
    end if;
    done := 0;
    select * into s from gapless.subscriptions where id = p_subscription_id;
    if not found then
        return;
    end if;
    select * into p from gapless.progress where subscription_id = s.id;
    if not found then
        perform gapless_internal.no_progress(s.id);
    end if;
    was := p.frontier;
    t := clock_timestamp();
    p_settled := gapless_internal.readable(s, p_settled);
    deaths := coalesce(gapless_internal.catch_up(s, p, t, p_limit), '{}');
    -- Messages whose leases ended and that did not die were given back.
    select p.leased - x.leased - cardinality(deaths) into done from gapless.progress x where x.subscription_id = s.id;
    deaths := deaths || gapless_internal.expire_rows(s, t, p_limit - cardinality(deaths));
    select * into part from gapless_internal.expire_at_frontier(s, p, t, p_settled, p_limit - cardinality(deaths));
    deaths := deaths || part.deaths;
    p.frontier := part.frontier;
    lost := part.lost;
    deaths := deaths || gapless_internal.expire_ahead(s, p, t, p_limit - cardinality(deaths));
    if s.max_backlog is not null and cardinality(deaths) < p_limit then
        select * into part from gapless_internal.cut_backlog(s, p, t, p_settled, p_limit - cardinality(deaths));
        deaths := deaths || part.deaths;
        p.frontier := part.frontier;
        lost := lost + part.lost;
    end if;
    if p.frontier > was then
        update gapless.progress set frontier = p.frontier, removed = removed + lost where subscription_id = s.id;
        delete from gapless.settled_ahead where subscription_id = s.id and message_id <= p.frontier;
    end if;
    done := done + cardinality(deaths);
    if cardinality(deaths) > 0 then
        select b.touched into touched from gapless_internal.bury(s, deaths, t) b;
    end if;
end $$;
