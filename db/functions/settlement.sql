-- Settling: acks, nacks, releases and other calls of members about their leases. Locks: see migrations/0003_queues.sql.

-- Acks leases. Statuses here and below: 0 done, 1 the lease has ended, 2 unknown (already settled, or never
-- given).
create or replace function gapless.ack(
    p_subscriptions integer[], p_messages bigint[], p_leases bigint[], out statuses smallint[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    t timestamptz;
    freed record;
begin
    perform gapless_internal.lock_subscriptions(p_subscriptions);
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
    update gapless.progress p set acked = p.acked + g.n, leased = p.leased - g.n, used_at = t
    from (select x.id, count(*) as n from unnest(freed.subscriptions) as x (id) group by x.id) g
    where p.subscription_id = g.id;
    if freed.copies is not null then
        delete from gapless.kept k where k.id = any(freed.copies);
    end if;
    -- One index lookup for each subscription: a plan for all of them at once reads the whole table, with all
    -- dead rows.
    if exists (select from (select distinct x.id from unnest(freed.subscriptions) as x (id)) x
               cross join lateral (
                   select from gapless.deliveries d where d.subscription_id = x.id and d.state = 2
                   order by d.at limit 1) d)
    then
        perform gapless_internal.promote(freed.subscriptions, freed.channels, freed.lanes, t);
    end if;
end $$;

-- Gives messages of one subscription back: after p_delay seconds (null: its backoff), or as dead letters.
create or replace function gapless.nack(
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
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    select * into s from gapless.subscriptions where id = p_subscription_id;
    t := clock_timestamp();
    with r as materialized (
        select * from unnest(p_messages, p_leases) with ordinality as r (message_id, lease, ord)
    ), held as materialized (
        select d.message_id, d.lease,
               p_dead_letter or (s.max_deliver > 0 and d.strikes + 1 >= s.max_deliver) as last
        from r join gapless.deliveries d on d.subscription_id = s.id and d.message_id = r.message_id
        where d.lease = r.lease and d.state = 0 and d.at > t
    ), back as (
        update gapless.deliveries d
        set state = 1, last_error = coalesce(p_reason, 'nacked'), strikes = d.strikes + 1, company = null,
            at = t + coalesce(p_delay, s.backoff[least(d.attempts, cardinality(s.backoff))], 0)
                     * interval '1 second'
        from held h where d.subscription_id = s.id and d.message_id = h.message_id and not h.last
    ), dead as (
        delete from gapless.deliveries d using held h
        where d.subscription_id = s.id and d.message_id = h.message_id and h.last
        returning d.*
    ), counted as (
        update gapless.progress p set leased = p.leased - (select count(*) from held), used_at = t
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
        perform gapless_internal.promote_after(s.id, deaths, t);
        select b.ids, b.touched into buried, touched from gapless_internal.bury(s, deaths, t) b;
        select array_agg(x.id order by r.ord) into dead_letters
        from unnest(p_messages) with ordinality as r (message_id, ord)
        left join (select d.message_id, buried[d.ordinality] as id
                   from unnest(deaths) with ordinality as d) x on x.message_id = r.message_id;
    end if;
end $$;

-- Moves deadlines to p_ack_wait seconds from now (null: the subscription's own).
create or replace function gapless.extend(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_ack_wait double precision,
    out statuses smallint[], out deadline timestamptz
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    t timestamptz;
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
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
    perform gapless_internal.note_use(p_subscription_id, t);
end $$;

-- Gives messages of one subscription back that were not worked on: they are handed out again after p_delay
-- seconds (null: at once).
create or replace function gapless.give_back_leases(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_delay double precision,
    out statuses smallint[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    t timestamptz;
    held bigint[];
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    t := clock_timestamp();
    held := gapless_internal.undo_claim(
        p_subscription_id, p_messages, p_leases, t, t + coalesce(p_delay, 0) * interval '1 second');
    select array_agg((case when d.lease = r.lease and d.message_id = any(held) then 0
                           when d.message_id is not null then 1 else 2 end)::smallint order by r.ord)
    into statuses
    from unnest(p_messages, p_leases) with ordinality as r (message_id, lease, ord)
    left join gapless.deliveries d on d.subscription_id = p_subscription_id and d.message_id = r.message_id;
    perform gapless_internal.note_use(p_subscription_id, t);
end $$;

-- Makes leases undone whose deadline is later than p_now: their messages are due at p_due, as if they had not
-- been handed out. So each has its attempt and its strikes of before, is as much in doubt as before, and keeps
-- its place in its lane. Returns these messages. The caller holds the subscription's lock.
create or replace function gapless_internal.undo_claim(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_now timestamptz, p_due timestamptz
) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    held bigint[];
begin
    with back as (
        update gapless.deliveries d set state = 1, at = p_due, attempts = greatest(0, d.attempts - 1)
        from unnest(p_messages, p_leases) as r (message_id, lease)
        where d.subscription_id = p_subscription_id and d.message_id = r.message_id and d.lease = r.lease
          and d.state = 0 and d.at > p_now
        returning d.message_id
    )
    select coalesce(array_agg(b.message_id), '{}') into held from back b;
    if held <> '{}' then
        update gapless.progress p set leased = p.leased - cardinality(held)
        where p.subscription_id = p_subscription_id;
    end if;
    return held;
end $$;

-- Ends leases that the service withdraws from their holders: their messages are due again. The attempts count, as the
-- messages were delivered. But the service knows why they ended, so none is more in doubt than before.
create or replace function gapless.withdraw(p_subscription_id integer, p_messages bigint[], p_leases bigint[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    held bigint[];
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    held := gapless_internal.undo_claim(p_subscription_id, p_messages, p_leases, '-infinity', clock_timestamp());
    update gapless.deliveries d set attempts = d.attempts + 1
    where d.subscription_id = p_subscription_id and d.message_id = any(held);
end $$;

-- Ends the leases of members that are gone, of each member all that it held at once: the messages are due
-- again, in the company that doubt.sql describes, or die. A lease that was never delivered is made undone,
-- also if its deadline has passed.
create or replace function gapless.release(
    p_subscription_id integer, p_messages bigint[], p_leases bigint[], p_delivered boolean, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    t timestamptz;
    deaths gapless.death[];
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    select * into s from gapless.subscriptions where id = p_subscription_id;
    t := clock_timestamp();
    if not p_delivered then
        perform gapless_internal.undo_claim(s.id, p_messages, p_leases, '-infinity', t);
        return;
    end if;
    with rows as materialized (
        select d.message_id, d.company, d.strikes, count(*) over (partition by d.member)::integer as held
        from unnest(p_messages, p_leases) as r (message_id, lease)
        join gapless.deliveries d on d.subscription_id = s.id and d.message_id = r.message_id
        where d.lease = r.lease and d.state = 0
    ), held as materialized (
        select r.message_id, r.alone, r.alone and s.max_deliver > 0 and r.strikes + 1 >= s.max_deliver as last,
               gapless_internal.less_company(r.company, r.held) as company
        from (select r.*, r.held = 1 or r.company is not distinct from 1 as alone from rows r) r
    ), back as (
        update gapless.deliveries d
        set state = 1, at = t, strikes = d.strikes + h.alone::integer, company = h.company,
            last_error = 'the member went away'
        from held h where d.subscription_id = s.id and d.message_id = h.message_id and not h.last
    ), dead as (
        delete from gapless.deliveries d using held h
        where d.subscription_id = s.id and d.message_id = h.message_id and h.last
        returning d.*
    ), counted as (
        update gapless.progress p set leased = p.leased - (select count(*) from held), doubt = true
        where p.subscription_id = s.id and exists (select from held)
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'max_deliver',
                      'the member went away')::gapless.death order by d.message_id)
    into deaths from dead d;
    if deaths is not null then
        perform gapless_internal.promote_after(s.id, deaths, t);
        select b.touched into touched from gapless_internal.bury(s, deaths, t) b;
    end if;
end $$;
