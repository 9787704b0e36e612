-- Lanes: messages of one channel and lane are in flight one at a time.

-- What orders a message: its lane, by the ordering in force.
create or replace function gapless.lane_of(p_ordering text, p_key text) returns text
language sql immutable as $$
    select case p_ordering when 'key' then p_key when 'channel' then '' end
$$;

-- Lanes whose row at work has gone: the first that waits becomes due, or, if it was given back with a delay before
-- there was this lane, when that is over. Call it after every removal.
create or replace function gapless.promote(
    p_subscriptions integer[], p_channels bigint[], p_lanes text[], p_now timestamptz
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.deliveries d set state = 1, at = greatest(d.at, p_now)
    from (
        select distinct l.subscription_id, l.channel_id, l.lane
        from unnest(p_subscriptions, p_channels, p_lanes) as l (subscription_id, channel_id, lane)
        where l.lane is not null
    ) l cross join lateral (
        -- By state first: while any row of the lane is leased or due, that one is found, and nothing happens.
        select x.message_id, x.state from gapless.deliveries x
        where x.subscription_id = l.subscription_id and x.channel_id = l.channel_id and x.lane = l.lane
        order by x.state, x.message_id limit 1
    ) h
    where h.state = 2 and d.subscription_id = l.subscription_id and d.message_id = h.message_id
$$;

create or replace function gapless.promote_after(p_subscription_id integer, p_deaths gapless.death[], p_now timestamptz)
returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.promote(array_agg(p_subscription_id), array_agg(d.channel_id), array_agg(d.lane), p_now)
    from unnest(p_deaths) d where d.lane is not null having count(*) > 0
$$;

-- The ordering changed: rows get the lanes of the new one, and of each lane all but one wait. What is leased
-- already stays leased.
create or replace function gapless.relane(p_subscription_id integer, p_ordering text, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.deliveries d
    set lane = gapless.lane_of(p_ordering, coalesce(k.key, m.key)),
        state = case when d.state = 2 then 1 else d.state end,
        at = case when d.state = 2 then greatest(d.at, p_now) else d.at end
    from gapless.deliveries x
    left join gapless.messages m on m.id = x.message_id
    left join gapless.kept k on k.id = x.kept_id
    where x.subscription_id = p_subscription_id
      and d.subscription_id = x.subscription_id and d.message_id = x.message_id;
    update gapless.progress p set ordering = p_ordering, crowded = true where p.subscription_id = p_subscription_id;
    perform gapless.line_up(p_subscription_id);
end $$;

-- Of each lane all but one wait, and all while one is leased.
create or replace function gapless.line_up(p_subscription_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.deliveries d set state = 2
    from (
        select x.message_id, row_number() over (partition by x.channel_id, x.lane
                                                order by x.state, x.message_id) as n
        from gapless.deliveries x
        where x.subscription_id = p_subscription_id and x.lane is not null
    ) x
    where d.subscription_id = p_subscription_id and d.message_id = x.message_id and x.n > 1 and d.state = 1;
    update gapless.progress p set crowded = exists (
        select from gapless.deliveries d
        where d.subscription_id = p_subscription_id and d.lane is not null and d.state = 0
        group by d.channel_id, d.lane having count(*) > 1)
    where p.subscription_id = p_subscription_id
$$;
