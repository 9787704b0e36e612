-- Leases that end, and the work that every decision about a subscription does first.

-- Ends leases whose deadline has passed, at most p_limit: the messages are due again at once, in the company
-- that doubt.sql describes, or die.
create or replace function gapless_internal.end_leases(s gapless.subscriptions, p_now timestamptz, p_limit integer)
returns gapless.death[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deaths gapless.death[];
    n integer;
begin
    if p_now < (select p.next_end from gapless.progress p where p.subscription_id = s.id) then
        return null;
    end if;
    with ended as materialized (
        select x.message_id, x.alone, x.alone and s.max_deliver > 0 and x.strikes + 1 >= s.max_deliver as last,
               x.company
        from gapless_internal.judge_silence(s, p_limit, p_now) x
    ), back as (
        update gapless.deliveries d
        set state = 1, at = p_now, last_error = 'the lease ended without an ack',
            strikes = d.strikes + e.alone::integer, company = e.company
        from ended e where d.subscription_id = s.id and d.message_id = e.message_id and not e.last
    ), dead as (
        delete from gapless.deliveries d using ended e
        where d.subscription_id = s.id and d.message_id = e.message_id and e.last
        returning d.*
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'max_deliver',
                      coalesce(d.last_error, 'the lease ended without an ack'))::gapless.death order by d.message_id),
           (select count(*) from ended)
    into deaths, n from dead d;
    update gapless.progress p
    set leased = p.leased - n, doubt = p.doubt or n > 0, silent = case when n > 0 then p.fence else p.silent end,
        next_end = coalesce((
            select min(d.at) from gapless.deliveries d where d.subscription_id = s.id and d.state = 0), 'infinity')
    where p.subscription_id = s.id;
    perform gapless_internal.promote_after(s.id, deaths, p_now);
    return deaths;
end $$;

-- Applies changes since the last decision to rows under way: ends leases, at most p_limit, and applies the
-- filter and the ordering in force. Returns what died; null: nothing. The caller holds the subscription's
-- lock and has read p under it.
create or replace function gapless_internal.catch_up(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_limit integer
) returns gapless.death[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deaths constant gapless.death[] := gapless_internal.end_leases(s, p_now, p_limit);
begin
    if p.mixed or p.filter is distinct from gapless_internal.filter_of(s) then
        perform gapless_internal.refilter(s, p, p_now);
    end if;
    if p.ordering <> s.ordering then
        perform gapless_internal.relane(s.id, s.ordering, p_now);
    elsif p.crowded then
        perform gapless_internal.line_up(s.id);
    end if;
    return deaths;
end $$;

-- The number of the lease after this one. Never one that was given before or that another history gives, even
-- after a restore: it follows the clock, and begins where ids went on after the last fence.
create or replace function gapless_internal.next_lease(p_lease bigint, p_now timestamptz) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(p_lease + 1, (extract(epoch from p_now) * 1000000)::bigint,
                    (select f.base from gapless.fences f order by f.number desc limit 1))
$$;
