-- Lanes: messages of one channel and lane are in flight one at a time.

-- The lane of a message, by the ordering in force.
create or replace function gapless_internal.lane_of(p_ordering text, p_key text) returns text
language sql immutable as $$
    select case p_ordering when 'key' then p_key when 'channel' then '' end
$$;

-- For lanes whose row at work is gone: the first row that waits becomes due, or due when its delay is over,
-- if it was given back with a delay before this lane existed. Call it after every removal.
create or replace function gapless_internal.promote(
    p_subscriptions integer[], p_channels bigint[], p_lanes text[], p_now timestamptz
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.deliveries d set state = 1, at = greatest(d.at, p_now)
    from (
        select distinct l.subscription_id, l.channel_id, l.lane
        from unnest(p_subscriptions, p_channels, p_lanes) as l (subscription_id, channel_id, lane)
        where l.lane is not null
    ) l cross join lateral (
        -- Ordered by state first: while any row of the lane is leased or due, it is found, and nothing
        -- happens.
        select x.message_id, x.state from gapless.deliveries x
        where x.subscription_id = l.subscription_id and x.channel_id = l.channel_id and x.lane = l.lane
        order by x.state, x.message_id limit 1
    ) h
    where h.state = 2 and d.subscription_id = l.subscription_id and d.message_id = h.message_id
$$;

-- The same for the lanes of messages that died.
create or replace function gapless_internal.promote_after(
    p_subscription_id integer, p_deaths gapless.death[], p_now timestamptz
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.promote(array_agg(p_subscription_id), array_agg(d.channel_id), array_agg(d.lane), p_now)
    from unnest(p_deaths) d where d.lane is not null having count(*) > 0
$$;

-- Lets messages that replays gave back go ahead of a later one that is due and was not handed out: replays may
-- commit in any order. One that was handed out keeps its turn. Call it before gapless_internal.promote.
create or replace function gapless_internal.make_way(
    p_subscriptions integer[], p_channels bigint[], p_lanes text[]
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.deliveries d set state = 2
    from (
        select distinct l.subscription_id, l.channel_id, l.lane
        from unnest(p_subscriptions, p_channels, p_lanes) as l (subscription_id, channel_id, lane)
    ) l
    where d.subscription_id = l.subscription_id and d.channel_id = l.channel_id and d.lane = l.lane
      and d.state = 1 and d.attempts = 0
      and exists (select from gapless.deliveries x
                  where x.subscription_id = l.subscription_id and x.channel_id = l.channel_id and x.lane = l.lane
                    and x.state = 2 and x.message_id < d.message_id)
$$;

-- Applies a changed ordering: rows get the lanes of the new one, and in each lane all but one wait. Leased
-- rows stay leased.
create or replace function gapless_internal.relane(p_subscription_id integer, p_ordering text, p_now timestamptz)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.deliveries d
    set lane = gapless_internal.lane_of(p_ordering, coalesce(k.key, m.key)),
        state = case when d.state = 2 then 1 else d.state end,
        at = case when d.state = 2 then greatest(d.at, p_now) else d.at end
    from gapless.deliveries x
    left join gapless.messages m on m.id = x.message_id
    left join gapless.kept k on k.id = x.kept_id
    where x.subscription_id = p_subscription_id
      and d.subscription_id = x.subscription_id and d.message_id = x.message_id;
    update gapless.progress p set ordering = p_ordering, crowded = true where p.subscription_id = p_subscription_id;
    perform gapless_internal.line_up(p_subscription_id);
end $$;

-- In each lane all rows but one wait, and all of them while one is leased.
create or replace function gapless_internal.line_up(p_subscription_id integer) returns void
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
