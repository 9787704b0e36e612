-- What ends a lease: ack, nack, release, time. And what time ends without one. Locks as 0003 says.

-- Statuses here: 0 done, 1 the lease has ended, 2 unknown (settled already, or never given).
create function gapless.ack(
    p_subscriptions integer[], p_messages bigint[], p_leases bigint[], out statuses smallint[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    t timestamptz;
    freed record;
begin
    perform gapless.lock_subscriptions(p_subscriptions);
    t := clock_timestamp();
    statuses := array_fill(0::smallint, array[cardinality(p_messages)]);
    with gone as (
        delete from gapless.deliveries d
        using unnest(p_subscriptions, p_messages, p_leases) with ordinality
            as r (subscription_id, message_id, lease, ord)
        where d.subscription_id = r.subscription_id and d.message_id = r.message_id and d.lease = r.lease
          and d.state = 0 and d.at > t
        returning r.ord, d.subscription_id, d.channel_id, d.lane, d.kept_id
    )
    select coalesce(array_agg(g.ord), '{}') as ords, array_agg(g.subscription_id) as subscriptions,
           array_agg(g.channel_id) as channels, array_agg(g.lane) as lanes,
           array_agg(g.kept_id) filter (where g.kept_id is not null) as copies
    into freed from gone g;

    if cardinality(freed.ords) < cardinality(p_messages) then
        select array_agg((case when r.ord = any(freed.ords) then 0
                               when d.message_id is not null then 1 else 2 end)::smallint order by r.ord)
        into statuses
        from unnest(p_subscriptions, p_messages) with ordinality as r (subscription_id, message_id, ord)
        left join gapless.deliveries d
               on d.subscription_id = r.subscription_id and d.message_id = r.message_id;
    end if;
    if freed.ords = '{}' then
        return;
    end if;
    update gapless.progress p set acked = p.acked + g.n, leased = p.leased - g.n
    from (select x.id, count(*) as n from unnest(freed.subscriptions) as x (id) group by x.id) g
    where p.subscription_id = g.id;
    if freed.copies is not null then
        delete from gapless.kept k where k.id = any(freed.copies);
    end if;
    -- One look a subscription, by the index: planned for all of them at once it reads the whole table, with all
    -- that vacuum may not take yet.
    if exists (select from (select distinct x.id from unnest(freed.subscriptions) as x (id)) x
               cross join lateral (
                   select from gapless.deliveries d where d.subscription_id = x.id and d.state = 2
                   order by d.at limit 1) d)
    then
        perform gapless.promote(freed.subscriptions, freed.channels, freed.lanes, t);
    end if;
end $$;

-- Gives messages of one subscription back: after p_delay seconds (null: its backoff), or as dead letters.
create function gapless.nack(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_delay double precision,
    p_dead_letter boolean, p_reason text,
    out statuses smallint[], out dead_letters bigint[], out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    t timestamptz;
    deaths gapless.death[];
    buried bigint[];
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    select * into s from gapless.subscriptions where id = p_subscription_id;
    t := clock_timestamp();
    with r as materialized (
        select * from unnest(p_messages, p_leases) with ordinality as r (message_id, lease, ord)
    ), held as materialized (
        select d.message_id, d.lease,
               p_dead_letter or (s.max_deliver > 0 and d.attempts >= s.max_deliver) as last
        from r join gapless.deliveries d on d.subscription_id = s.id and d.message_id = r.message_id
        where d.lease = r.lease and d.state = 0 and d.at > t
    ), back as (
        update gapless.deliveries d
        set state = 1, last_error = coalesce(p_reason, 'nacked'),
            at = t + coalesce(p_delay, s.backoff[least(d.attempts, cardinality(s.backoff))], 0)
                     * interval '1 second'
        from held h where d.subscription_id = s.id and d.message_id = h.message_id and not h.last
    ), dead as (
        delete from gapless.deliveries d using held h
        where d.subscription_id = s.id and d.message_id = h.message_id and h.last
        returning d.*
    ), counted as (
        update gapless.progress p set leased = p.leased - (select count(*) from held)
        where p.subscription_id = s.id and exists (select from held)
    )
    select array_agg((case when h.message_id is not null then 0
                           when d.message_id is not null then 1 else 2 end)::smallint order by r.ord),
           (select array_agg((x.message_id, x.channel_id, x.attempts, x.lane, x.kept_id,
                              case when p_dead_letter then 'rejected' else 'max_deliver' end,
                              coalesce(p_reason, 'nacked'))::gapless.death order by x.message_id) from dead x)
    into statuses, deaths
    from r
    left join held h on h.message_id = r.message_id and h.lease = r.lease
    left join gapless.deliveries d on d.subscription_id = s.id and d.message_id = r.message_id;
    if deaths is not null then
        perform gapless.promote_after(s.id, deaths, t);
        select b.ids, b.touched into buried, touched from gapless.bury(s, deaths, t) b;
        select array_agg(x.id order by r.ord) into dead_letters
        from unnest(p_messages) with ordinality as r (message_id, ord)
        left join (select d.message_id, buried[d.ordinality] as id
                   from unnest(deaths) with ordinality as d) x on x.message_id = r.message_id;
    end if;
end $$;

-- Moves deadlines to p_ack_wait seconds from now (null: the subscription's own).
create function gapless.extend(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_ack_wait double precision,
    out statuses smallint[], out deadline timestamptz
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    t timestamptz;
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    t := clock_timestamp();
    select t + coalesce(p_ack_wait, s.ack_wait) * interval '1 second' into deadline
    from gapless.subscriptions s where s.id = p_subscription_id;
    with r as materialized (
        select * from unnest(p_messages, p_leases) with ordinality as r (message_id, lease, ord)
    ), held as (
        update gapless.deliveries d set at = deadline
        from r
        where d.subscription_id = p_subscription_id and d.message_id = r.message_id and d.lease = r.lease
          and d.state = 0 and d.at > t
        returning d.message_id, d.lease
    ), noted as (
        update gapless.progress p set next_end = least(p.next_end, deadline)
        where p.subscription_id = p_subscription_id and p.next_end > deadline
    )
    select array_agg((case when h.message_id is not null then 0
                           when d.message_id is not null then 1 else 2 end)::smallint order by r.ord)
    into statuses
    from r
    left join held h on h.message_id = r.message_id and h.lease = r.lease
    left join gapless.deliveries d on d.subscription_id = p_subscription_id and d.message_id = r.message_id;
end $$;

-- Ends leases of members that have gone: due again at once. What was never delivered is not counted as an
-- attempt; what was delivered for the last time is dead.
create function gapless.release(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_delivered boolean, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    t timestamptz;
    deaths gapless.death[];
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    select * into s from gapless.subscriptions where id = p_subscription_id;
    t := clock_timestamp();
    with held as materialized (
        select d.message_id, p_delivered and s.max_deliver > 0 and d.attempts >= s.max_deliver as last
        from unnest(p_messages, p_leases) as r (message_id, lease)
        join gapless.deliveries d on d.subscription_id = s.id and d.message_id = r.message_id
        where d.lease = r.lease and d.state = 0 and d.at > t
    ), back as (
        update gapless.deliveries d
        set state = 1, at = t, attempts = greatest(0, d.attempts - (not p_delivered)::integer),
            last_error = case when p_delivered then 'the member went away' else d.last_error end
        from held h where d.subscription_id = s.id and d.message_id = h.message_id and not h.last
    ), dead as (
        delete from gapless.deliveries d using held h
        where d.subscription_id = s.id and d.message_id = h.message_id and h.last
        returning d.*
    ), counted as (
        update gapless.progress p set leased = p.leased - (select count(*) from held)
        where p.subscription_id = s.id and exists (select from held)
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'max_deliver',
                      'the member went away')::gapless.death order by d.message_id)
    into deaths from dead d;
    if deaths is not null then
        perform gapless.promote_after(s.id, deaths, t);
        select b.touched into touched from gapless.bury(s, deaths, t) b;
    end if;
end $$;

-- Whether something may be older than a subscription with a message_ttl allows: among its rows, or next at its
-- frontier. Messages of one channel are stamped in id order; those of several channels in almost that order.
create function gapless.ageing(s gapless.subscriptions, p_frontier bigint) returns boolean
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

-- Subscriptions about which time may have something to decide.
create function gapless.reapable(p_namespaces integer[]) returns setof integer
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    expiring boolean;
begin
    select exists (
        select from gapless.messages m
        where m.expires_at > (
              -- A clock that was set back was ahead at the last look.
              select least(min(p.expired_to), clock_timestamp()) - interval '15 seconds'
              from gapless.progress p join gapless.subscriptions s on s.id = p.subscription_id
              where s.namespace_id = any(p_namespaces))
          and m.expires_at <= clock_timestamp()
    ) into expiring;
    return query
        select s.id from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id
        where s.namespace_id = any(p_namespaces) and (
            expiring or s.max_backlog is not null or s.message_ttl is not null and gapless.ageing(s, p.frontier)
            or p.next_end <= clock_timestamp() or p.look_to is not null or p.matching is distinct from gapless.matching(s)
            or exists (select from gapless.deliveries d
                       where d.subscription_id = s.id and d.expires_at <= clock_timestamp() and d.state in (1, 2)))
        order by s.id;
end $$;

-- Messages ahead of the frontier that expired by the time each was given itself, at most p_limit of them: marked as
-- settled. So many may have expired since the last look, of whatever channels, that one look takes several calls.
create function gapless.expire_ahead(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_limit integer, out deaths gapless.death[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- A publisher commits within 5 s of stamping a message: so far back a look may find new ones.
    slack constant interval := interval '15 seconds';
    most_time constant interval := interval '0.2 seconds';
    max_rounds constant integer := 40;
    stretch constant integer := greatest(500, 5 * p_limit);
    part record;
    under_way constant boolean := p.look_to is not null;
    changed constant boolean := p.matching is distinct from gapless.matching(s);
    ends boolean := not gapless.has_ahead(s, p.frontier);
    n integer := 0;
begin
    deaths := '{}';
    if changed then
        -- What has come to match since the last look may have expired long before.
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
        with rows as materialized (
            select m.id, m.channel_id, m.expires_at, m.created_at, m.type, m.key from gapless.messages m
            where (m.expires_at, m.id) > ((select p.looked_at), (select p.looked_id)) and m.expires_at <= p.look_to
            order by m.expires_at, m.id limit stretch
        ), late as (
            select r.id, r.channel_id, r.expires_at from rows r join gapless.channels c on c.id = r.channel_id
            where r.id > p.frontier and c.namespace_id = s.namespace_id and r.id > c.trimmed_id
              and (c.name = any(s.names) or c.name ~ s.regex)
              and (s.types is null or r.type = any(s.types)) and (s.keys is null or r.key = any(s.keys))
              and (p.not_before is null or r.created_at >= p.not_before)
              and not exists (select from gapless.settled_ahead a
                              where a.subscription_id = s.id and a.message_id = r.id)
            order by r.expires_at, r.id limit p_limit - cardinality(expire_ahead.deaths)
        ), marked as (
            insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
            select s.id, l.id, l.channel_id from late l
        )
        select (select array_agg((l.id, l.channel_id, 0, null, null, 'expired', null)::gapless.death
                                 order by l.id) from late l) as deaths,
               (select count(*) from rows) < stretch as last, r.expires_at, r.id
        into part
        from (select 1) one left join lateral (
            select x.expires_at, x.id from late x
            where (select count(*) from late) = p_limit - cardinality(expire_ahead.deaths)
            union all select x.expires_at, x.id from rows x
            where (select count(*) from late) < p_limit - cardinality(expire_ahead.deaths)
            order by 1 desc, 2 desc limit 1) r on true;
        deaths := deaths || coalesce(part.deaths, '{}');
        ends := part.last and cardinality(deaths) < p_limit;
        p.looked_at := coalesce(part.expires_at, p.looked_at);
        p.looked_id := coalesce(part.id, p.looked_id);
    end loop;
    if not ends then
        update gapless.progress
        set expired_to = p.expired_to, look_to = p.look_to, looked_at = p.looked_at, looked_id = p.looked_id,
            matching = gapless.matching(s)
        where subscription_id = s.id;
    elsif changed or under_way or p.expired_to not between p_now - interval '1 second' and p_now then
        update gapless.progress
        set expired_to = p.look_to, look_to = null, looked_at = null, looked_id = null, matching = gapless.matching(s)
        where subscription_id = s.id;
    end if;
end $$;

-- Whether a message above this id may be one that it is to get.
create function gapless.has_ahead(s gapless.subscriptions, p_frontier bigint) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when s.regex is not null then (select x.last_value > p_frontier from gapless.message_id x)
           else exists (select from gapless.channels c
                        where c.namespace_id = s.namespace_id and c.name = any(s.names) and c.last_id > p_frontier)
           end
$$;

-- Decides about at most about p_limit messages of one subscription: leases that ended; messages that expired, in
-- rows, at the frontier and ahead of it; a backlog that is too long. Null: somebody else decides at the moment.
create function gapless.reap(
    p_subscription_id integer, p_settled bigint, p_limit integer, out done integer, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    p gapless.progress;
    t timestamptz;
    deaths gapless.death[];
    part gapless.death[];
    seen record;
    reached bigint;
    was bigint;
    excess bigint;
    lost bigint := 0;
    given_back integer;
    more boolean;
    again integer := 0;
begin
    if not pg_try_advisory_xact_lock(1195462741, p_subscription_id) then
        return;
    end if;
    done := 0;
    select * into s from gapless.subscriptions where id = p_subscription_id;
    if not found then
        return;
    end if;
    select * into p from gapless.progress where subscription_id = s.id;
    was := p.frontier;
    t := clock_timestamp();
    p_settled := gapless.readable(s, p_settled);
    if p.ordering <> s.ordering then
        perform gapless.relane(s.id, s.ordering, t);
    end if;
    deaths := coalesce(gapless.end_leases(s, t, p_limit), '{}');
    select p.leased - x.leased - cardinality(deaths) into given_back
    from gapless.progress x where x.subscription_id = s.id;

    with ended as (
        delete from gapless.deliveries d
        where d.subscription_id = s.id and d.message_id in (
            select x.message_id from gapless.deliveries x
            where x.subscription_id = s.id and x.state in (1, 2)
              and (x.expires_at <= t or x.entered_at + s.message_ttl * interval '1 second' <= t)
            order by x.message_id limit greatest(p_limit - cardinality(deaths), 0))
        returning d.*
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'expired', d.last_error)::gapless.death
                     order by d.message_id)
    into part from ended d;
    if part is not null then
        perform gapless.promote_after(s.id, part, t);
        deaths := deaths || part;
    end if;

    -- At the frontier, as far as one after the other has expired. What no filter lets through is passed too, so that
    -- nobody has to count it again.
    while cardinality(deaths) < p_limit and again < 20 loop
        again := again + 1;
        select * into seen from gapless.scan(s, p.frontier, p_settled, p_limit - cardinality(deaths));
        exit when seen.ids is null and not seen.cut and seen.complete_to <= p.frontier;
        with c as (
            select x.*, x.expires <= t or x.created + s.message_ttl * interval '1 second' <= t as expired,
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
        reached := greatest(p.frontier, coalesce(reached, seen.complete_to));
        lost := lost + gapless.lost(s.id, seen.trimmed, seen.trims, p.frontier, reached);
        more := seen.cut and reached = seen.complete_to;
        p.frontier := reached;
        exit when not more;
    end loop;

    select * into seen from gapless.expire_ahead(s, p, t, p_limit - cardinality(deaths)) x;
    deaths := deaths || seen.deaths;

    if s.max_backlog is not null and cardinality(deaths) < p_limit then
        select least(p_limit - cardinality(deaths),
                     gapless.backlog(s, p.frontier, least(s.max_backlog + p_limit, 1000000)) - s.max_backlog)
        into excess;
        if excess > 0 then
            with ended as (
                delete from gapless.deliveries d
                where d.subscription_id = s.id and d.message_id in (
                    select x.message_id from gapless.deliveries x
                    where x.subscription_id = s.id and x.state in (1, 2) order by x.message_id limit excess)
                returning d.*
            )
            select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'max_backlog',
                              d.last_error)::gapless.death order by d.message_id)
            into part from ended d;
            if part is not null then
                perform gapless.promote_after(s.id, part, t);
                deaths := deaths || part;
                excess := excess - cardinality(part);
            end if;
        end if;
        again := 0;
        while excess > 0 and again < 20 loop
            again := again + 1;
            select * into seen from gapless.scan(s, p.frontier, p_settled, excess::integer);
            select array_agg((x.id, x.channel_id, 0, null, null, 'max_backlog', null)::gapless.death order by x.id)
            into part
            from unnest(seen.ids, seen.channel_ids, seen.created) as x (id, channel_id, created)
            where (p.not_before is null or x.created >= p.not_before)
              and not exists (select from gapless.settled_ahead a
                              where a.subscription_id = s.id and a.message_id = x.id);
            deaths := deaths || coalesce(part, '{}');
            excess := excess - coalesce(cardinality(part), 0);
            reached := greatest(p.frontier, seen.complete_to);
            lost := lost + gapless.lost(s.id, seen.trimmed, seen.trims, p.frontier, reached);
            p.frontier := reached;
            exit when not seen.cut;
        end loop;
    end if;

    if p.frontier > was then
        update gapless.progress set frontier = p.frontier, removed = removed + lost where subscription_id = s.id;
        delete from gapless.settled_ahead where subscription_id = s.id and message_id <= p.frontier;
    end if;
    done := given_back + cardinality(deaths);
    if cardinality(deaths) > 0 then
        select b.touched into touched from gapless.bury(s, deaths, t) b;
    end if;
end $$;

-- Matching messages above an id that are not settled ahead. Counted by seq, which is dense, where nothing is
-- filtered; else one by one, up to p_most.
create function gapless.ahead(s gapless.subscriptions, p_frontier bigint, p_most bigint default 1000000) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    since timestamptz := (select p.not_before from gapless.progress p where p.subscription_id = s.id);
    passed bigint;
begin
    if s.types is not null or s.keys is not null then
        return (select count(*) from (
                    select from gapless.messages m join gapless.channels c on c.id = m.channel_id
                    where m.id > p_frontier and c.namespace_id = s.namespace_id and m.id > c.trimmed_id
                      and (c.name = any(s.names) or c.name ~ s.regex)
                      and (s.types is null or m.type = any(s.types)) and (s.keys is null or m.key = any(s.keys))
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
        -- A start in time lies a few seconds behind the first message that counts.
        passed := passed + (
            select count(*) from gapless.messages m join gapless.channels c on c.id = m.channel_id
            where m.id > p_frontier and m.id <= gapless.id_before(since + interval '20 seconds')
              and m.created_at < since and m.id > c.trimmed_id
              and c.namespace_id = s.namespace_id and (c.name = any(s.names) or c.name ~ s.regex)
              and not exists (select from gapless.settled_ahead a
                              where a.subscription_id = s.id and a.message_id = m.id));
    end if;
    return (select greatest(0, coalesce(sum(
                c.last_seq - greatest(gapless.seq_at(c.id, p_frontier), c.first_seq - 1)), 0) - passed)
            from gapless.channels c
            where c.namespace_id = s.namespace_id and c.last_id > p_frontier
              and (c.name = any(s.names) or c.name ~ s.regex));
end $$;

-- When the first of them was created, among the first that match; null where there is none.
create function gapless.oldest_ahead(s gapless.subscriptions, p_frontier bigint) returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    since timestamptz := (select p.not_before from gapless.progress p where p.subscription_id = s.id);
    at bigint := p_frontier;
    seen record;
    found_at timestamptz;
begin
    for i in 1 .. 20 loop
        select * into seen from gapless.scan(s, at, 9007199254740991, 100 * i);
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

-- Messages that are neither settled nor leased. No more than about p_most are counted where that takes work.
create function gapless.backlog(s gapless.subscriptions, p_frontier bigint, p_most bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.ahead(s, p_frontier, p_most)
         + (select count(*) from gapless.deliveries d where d.subscription_id = s.id and d.state in (1, 2))
$$;

-- Publishes and acks, all of it or nothing. Out as gapless.append gives it for one request, and `stale`: which
-- receipts (1-based) hold no lease; then nothing was done.
create function gapless.transact(
    p_subscriptions integer[], p_messages bigint[], p_leases bigint[],
    p_namespaces integer[], p_names text[], p_create boolean,
    p_request_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[],
    p_request integer[], p_channel integer[], p_types text[], p_message_keys text[], p_data text[],
    p_binary bytea[], p_headers text[], p_senders text[], p_ttls double precision[],
    out ids bigint[], out seqs bigint[], out channel_ids bigint[], out last_ids bigint[],
    out last_seqs bigint[], out statuses smallint[], out answers json, out appended_at timestamptz,
    out expires_at timestamptz[], out stale integer[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    outcomes smallint[];
begin
    perform gapless.lock_subscriptions(p_subscriptions);
    if cardinality(p_request) > 0 then
        select a.* into ids, seqs, channel_ids, last_ids, last_seqs, statuses, answers, appended_at, expires_at
        from gapless.append(p_namespaces, p_names, p_create, p_request_namespaces, p_keys, p_fingerprints,
                            p_expected, p_expected_channel, p_request, p_channel, p_types, p_message_keys, p_data,
                            p_binary, p_headers, p_senders, p_ttls) a;
        if statuses[1] > 0 then
            -- Refused, or done before under this key: either way there is nothing to ack now.
            return;
        end if;
    end if;
    if cardinality(p_messages) > 0 then
        outcomes := gapless.ack(p_subscriptions, p_messages, p_leases);
        stale := array(select o.ord::integer from unnest(outcomes) with ordinality as o (status, ord)
                       where o.status > 0 order by o.ord);
        if stale <> '{}' then
            raise exception 'stale receipts' using errcode = 'GL409', detail = array_to_json(stale)::text;
        end if;
    end if;
end $$;
