-- Subscriptions as definitions, and the list of dead letters. Locks as 0003 says.

-- Where a start is: the frontier, and for a time from when on messages count. Null: it lies in the future.
create function gapless.place_of(p_start text, out frontier bigint, out not_before timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    newest bigint := (select case when s.is_called then s.last_value else 0 end from gapless.message_id s);
begin
    if p_start = 'earliest' then
        frontier := 0;
    elsif p_start = 'latest' then
        frontier := newest;
    elsif p_start ~ '^[0-9]+$' then
        if p_start::numeric <= newest then
            frontier := p_start::bigint;
        end if;
    else
        not_before := p_start::timestamptz;
        frontier := gapless.id_before(not_before);
    end if;
end $$;

-- Makes a subscription. `made` is false where one of this name is there; a null id: the start lies in the future.
create function gapless.create_subscription(
    p_namespace_id integer, p_name text, p_channels text[], p_names text[], p_regex text, p_start text, p_own jsonb,
    out subscription_id integer, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    place record;
begin
    perform pg_advisory_xact_lock_shared(1195462739, 4);
    made := false;
    select s.id into subscription_id from gapless.subscriptions s
    where s.namespace_id = p_namespace_id and s.name = p_name;
    if subscription_id is not null then
        return;
    end if;
    select * into place from gapless.place_of(p_start);
    if place.frontier is null then
        return;
    end if;
    insert into gapless.subscriptions (namespace_id, name, channels, names, regex, start, own)
    values (p_namespace_id, p_name, p_channels, p_names, p_regex, p_start, p_own)
    on conflict do nothing returning id into subscription_id;
    if subscription_id is null then
        select s.id into subscription_id from gapless.subscriptions s
        where s.namespace_id = p_namespace_id and s.name = p_name;
        return;
    end if;
    made := true;
    perform gapless.refresh_subscriptions(p_namespace_id, array[p_name], null);
    -- What retention took before is none of its losses, though it lies above its frontier.
    insert into gapless.progress (subscription_id, frontier, not_before, ordering, removed)
    select s.id, place.frontier, place.not_before, s.ordering,
           -gapless.removed_between(s, place.frontier, 9007199254740991)
    from gapless.subscriptions s where s.id = subscription_id;
end $$;

-- Changes the members given (null clears one), or, p_replace, all own settings. A push without a secret keeps the
-- one that is there. Null: not there.
create function gapless.change_subscription(
    p_namespace_id integer, p_name text, p_channels text[], p_names text[], p_regex text, p_patch jsonb,
    p_replace boolean
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    wanted jsonb := p_patch;
begin
    perform pg_advisory_xact_lock_shared(1195462739, 4);
    select * into s from gapless.subscriptions
    where namespace_id = p_namespace_id and name = p_name for no key update;
    if not found then
        return null;
    end if;
    if jsonb_typeof(wanted -> 'push') = 'object' and s.own ? 'push' then
        wanted := jsonb_set(wanted, '{push}', (s.own -> 'push') || (wanted -> 'push'));
    end if;
    if not p_replace then
        wanted := s.own || wanted;
    end if;
    update gapless.subscriptions u
    set own = (select coalesce(jsonb_object_agg(x.key, x.value), '{}') from jsonb_each(wanted) x
               where x.value <> 'null'::jsonb),
        channels = coalesce(p_channels, u.channels),
        names = case when p_channels is null then u.names else p_names end,
        regex = case when p_channels is null then u.regex else p_regex end
    where u.id = s.id;
    perform gapless.refresh_subscriptions(p_namespace_id, array[p_name], null);
    return s.id;
end $$;

create function gapless.pause_subscription(p_namespace_id integer, p_name text, p_paused boolean) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.subscriptions s set paused = p_paused
    where s.namespace_id = p_namespace_id and s.name = p_name;
    return found;
end $$;

-- Forgets all that is under way.
create function gapless.forget_deliveries(p_subscription_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from gapless.settled_ahead a where a.subscription_id = p_subscription_id;
    with gone as (
        delete from gapless.deliveries d where d.subscription_id = p_subscription_id returning d.kept_id
    )
    delete from gapless.kept k using gone g where k.id = g.kept_id;
$$;

-- Null: not there; false: the place lies in the future.
create function gapless.seek_subscription(p_namespace_id integer, p_name text, p_to text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer := (select s.id from gapless.subscriptions s
                         where s.namespace_id = p_namespace_id and s.name = p_name);
    place record;
begin
    if found_id is null then
        return null;
    end if;
    perform pg_advisory_xact_lock(1195462741, found_id);
    select * into place from gapless.place_of(p_to);
    if place.frontier is null then
        return false;
    end if;
    update gapless.progress p
    set removed = p.removed + gapless.removed_between(s, p.frontier, 9007199254740991), frontier = place.frontier,
        not_before = place.not_before, expired_to = '-infinity', look_to = null, leased = 0, next_end = 'infinity'
    from gapless.subscriptions s
    where p.subscription_id = found_id and s.id = found_id;
    if not found then
        return null;
    end if;
    perform gapless.forget_deliveries(found_id);
    -- Seen from its new place, what is gone by now is no loss either.
    update gapless.progress p set removed = p.removed - gapless.removed_between(s, p.frontier, 9007199254740991)
    from gapless.subscriptions s
    where p.subscription_id = found_id and s.id = found_id;
    return true;
end $$;

-- Its dead letters stay.
create function gapless.drop_subscription(p_namespace_id integer, p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer := (select s.id from gapless.subscriptions s
                         where s.namespace_id = p_namespace_id and s.name = p_name);
begin
    perform gapless.lock_subscriptions(array[found_id]);
    delete from gapless.subscriptions s where s.id = found_id;
    if not found then
        return false;
    end if;
    perform gapless.forget_deliveries(found_id);
    delete from gapless.progress p where p.subscription_id = found_id;
    return true;
end $$;

-- Gives dead letters, locked by the caller, back to the subscription that failed them. As its only copy is the
-- kept one, it travels along. Returns the ids given back: not those whose subscription is gone.
create function gapless.give_back(p_ids bigint[]) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Another subscription of the same name may come while this waits: it is not locked, and not given anything.
    held constant integer[] := array(
        select s.id from gapless.dead_letters e
        join gapless.subscriptions s on s.namespace_id = e.namespace_id and s.name = e.subscription
        where e.id = any(p_ids));
    t timestamptz;
    given record;
begin
    perform gapless.lock_subscriptions(held);
    t := clock_timestamp();
    with gone as materialized (
        delete from gapless.dead_letters e using gapless.subscriptions s
        where e.id = any(p_ids) and s.namespace_id = e.namespace_id and s.name = e.subscription
          and s.id = any(held)
        returning e.id, e.kept_id, e.last_error, e.journey, s.id as subscription_id
    ), letters as (
        -- By the ordering that the rows beside it have: where another is in force now, the next claim changes all.
        select g.*, k.message_id, k.channel_id, p.frontier, gapless.lane_of(p.ordering, k.key) as lane,
               -- One message may have died several times, of a subscription that was moved back.
               row_number() over (partition by g.subscription_id, k.message_id order by g.id) as nth
        from gone g join gapless.kept k on k.id = g.kept_id
        join gapless.progress p on p.subscription_id = g.subscription_id
    ), passed as (
        insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
        select l.subscription_id, l.message_id, l.channel_id
        from letters l where l.message_id > l.frontier and l.nth = 1
        on conflict do nothing
    ), stored as (
        insert into gapless.deliveries (subscription_id, message_id, channel_id, lease, at, entered_at, kept_id,
                                        attempts, state, lane, last_error)
        select l.subscription_id, l.message_id, l.channel_id, 0,
               case when l.lane is not null then 'epoch' else t end, t, l.kept_id, 0,
               case when l.lane is not null then 2 else 1 end, l.lane, l.last_error
        from letters l where l.nth = 1
        -- It is under way already: then it begins again there, with the lease that is out, if there is one.
        on conflict (subscription_id, message_id)
            do update set attempts = (gapless.deliveries.state = 0)::integer
        returning kept_id
    ), remembered as (
        update gapless.kept k set journey = l.journey from letters l
        where k.id = l.kept_id and exists (select from stored x where x.kept_id = l.kept_id)
    ), unused as (
        delete from gapless.kept k using letters l
        where k.id = l.kept_id and not exists (select from stored x where x.kept_id = l.kept_id)
    )
    select array_agg(l.id) as ids, array_agg(l.subscription_id) filter (where l.lane is not null) as subscriptions,
           array_agg(l.channel_id) filter (where l.lane is not null) as channels,
           array_agg(l.lane) filter (where l.lane is not null) as lanes
    into given from letters l;
    -- Those with a lane wait behind whatever of it is under way; where nothing is, the first becomes due.
    if given.lanes is not null then
        perform gapless.promote(given.subscriptions, given.channels, given.lanes, t);
    end if;
    return given.ids;
end $$;

-- Replays one. Status: 0 done, 1 there is no such dead letter (any more), 2 its subscription is gone.
create function gapless.replay(
    p_namespace_id integer, p_id bigint, out status integer, out subscription text, out message_id bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    select e.subscription, k.message_id into subscription, message_id
    from gapless.dead_letters e join gapless.kept k on k.id = e.kept_id
    where e.namespace_id = p_namespace_id and e.id = p_id for update of e;
    if not found then
        status := 1;
        return;
    end if;
    status := case when gapless.give_back(array[p_id]) is null then 2 else 0 end;
end $$;

-- The filter of the functions below: null members match all. Planned for what is asked: a plan for every filter reads
-- every dead letter for each.
create function gapless.replay_some(
    p_namespace_id integer, p_subscription text, p_channel text, p_reason text, p_ids bigint[], p_after bigint,
    p_upto bigint, p_limit integer, out replayed integer, out reached bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan as $$
declare
    chosen bigint[];
begin
    chosen := array(
        select e.id from gapless.dead_letters e
        where e.namespace_id = p_namespace_id and e.id > p_after and e.id <= p_upto
          and (p_subscription is null or e.subscription = p_subscription)
          and (p_channel is null or e.channel = p_channel) and (p_reason is null or e.reason = p_reason)
          and (p_ids is null or e.id = any(p_ids))
        order by e.id limit p_limit for update skip locked);
    reached := (select max(x) from unnest(chosen) x);
    replayed := coalesce(cardinality(gapless.give_back(chosen)), 0);
end $$;

-- Removes dead letters for good, and their copies. What is being replayed at the moment is passed over.
create function gapless.purge_dead_letters(
    p_namespace_id integer, p_subscription text, p_channel text, p_reason text, p_ids bigint[],
    p_before timestamptz, p_limit integer
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan as $$
declare
    n integer;
begin
    with gone as (
        delete from gapless.dead_letters e where e.id in (
            select x.id from gapless.dead_letters x
            where x.namespace_id = p_namespace_id
              and (p_subscription is null or x.subscription = p_subscription)
              and (p_channel is null or x.channel = p_channel) and (p_reason is null or x.reason = p_reason)
              and (p_ids is null or x.id = any(p_ids)) and (p_before is null or x.created_at < p_before)
            order by x.id limit p_limit for update skip locked)
        returning e.kept_id
    ), forgotten as (
        delete from gapless.kept k using gone g where k.id = g.kept_id
    )
    select count(*) into n from gone;
    return n;
end $$;

-- Removes one, waiting for whoever holds it.
create function gapless.delete_dead_letter(p_namespace_id integer, p_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    copy bigint;
begin
    delete from gapless.dead_letters e where e.namespace_id = p_namespace_id and e.id = p_id
    returning e.kept_id into copy;
    delete from gapless.kept k where k.id = copy;
    return copy is not null;
end $$;

-- Rewrites the tables of what is under way when dead rows outweigh what lives in them. Copy and truncate does not
-- wait for old snapshots, as vacuum must: a transaction that stays open for hours elsewhere cannot make queues
-- slow. Whoever decides meanwhile waits for some milliseconds. For the same reason an old snapshot finds a table
-- empty that was rewritten since, and a dump would keep that: while one runs there is nothing to be done. Returns
-- the bytes given back.
create function gapless.compact(p_min_bytes bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    -- Each with the bytes that a row takes with its indexes, and the share of p_min_bytes at which it is looked at: of
    -- progress there is one row a subscription, and each decision goes by all of its dead versions.
    tables constant text[] := array['progress', 'deliveries', 'settled_ahead'];
    row_bytes constant integer[] := array[200, 400, 200];
    shares constant integer[] := array[64, 1, 1];
    least_bytes bigint;
    size bigint;
    live bigint;
    freed bigint := 0;
    locked boolean := false;
begin
    for i in 1 .. cardinality(tables) loop
        size := pg_total_relation_size(('gapless.' || tables[i])::regclass);
        least_bytes := p_min_bytes / shares[i];
        continue when size < least_bytes;
        execute format('select count(*) from gapless.%I', tables[i]) into live;
        continue when size < live * row_bytes[i] * 4 + least_bytes / 2;
        if not locked then
            -- All who decide or count come to progress first: none of them sees one table rewritten and not another.
            lock table gapless.progress in access exclusive mode;
            locked := true;
            exit when exists (select from pg_stat_activity a
                              where a.datname = current_database() and a.application_name = 'pg_dump');
        end if;
        execute format('lock table gapless.%I in access exclusive mode', tables[i]);
        execute format('create temporary table gapless_compacting on commit drop as select * from gapless.%I', tables[i]);
        execute format('truncate gapless.%I', tables[i]);
        execute format('insert into gapless.%I select * from pg_temp.gapless_compacting', tables[i]);
        drop table pg_temp.gapless_compacting;
        freed := freed + size - pg_total_relation_size(('gapless.' || tables[i])::regclass);
    end loop;
    return freed;
end $$;

-- As in 0001, reading each channel by its index: see gapless.seq_at.
create or replace function gapless.trim_channels(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c record;
    cut_id bigint;
    cut_seq bigint;
    kept_id bigint;
    moved integer := 0;
begin
    -- One at a time: two that lock the same channels would only wait for one another.
    if not pg_try_advisory_xact_lock(1195462739, 2) then
        return 0;
    end if;
    for c in
        select * from gapless.channels
        where last_seq >= first_seq and (max_age is not null
              or (max_messages is not null and last_seq - first_seq + 1 > max_messages))
        order by id
    loop
        exit when moved >= p_limit;
        cut_id := null;
        cut_seq := null;
        if c.max_age is not null then
            -- Walks forward over what goes: work in proportion to what is removed, not to what is kept.
            select m.id, m.seq into cut_id, cut_seq from gapless.messages m
            where (m.channel_id, m.id) > ((select c.id), c.trimmed_id)
              and (m.channel_id, m.id) < ((select c.id), coalesce((
                  select k.id from gapless.messages k
                  where (k.channel_id, k.id) > ((select c.id), c.trimmed_id)
                    and (k.channel_id, k.id) <= ((select c.id), 9223372036854775807)
                    and k.id >= c.trimmed_id - c.trimmed_id % 16777216
                    and k.created_at >= clock_timestamp() - c.max_age * interval '1 second'
                  order by k.channel_id, k.id limit 1), 9223372036854775807))
              and m.id >= c.trimmed_id - c.trimmed_id % 16777216
            order by m.channel_id desc, m.id desc limit 1;
        end if;
        if c.max_messages is not null and c.last_seq - c.max_messages > coalesce(cut_seq, c.first_seq - 1) then
            select m.id, m.seq into cut_id, cut_seq from gapless.messages m
            where (m.channel_id, m.id) > ((select c.id), c.trimmed_id)
              and (m.channel_id, m.id) <= ((select c.id), 9223372036854775807)
              and m.id >= c.trimmed_id - c.trimmed_id % 16777216
            order by m.channel_id, m.id offset c.last_seq - c.max_messages - c.first_seq limit 1;
        end if;
        continue when cut_id is null;
        select m.id into kept_id from gapless.messages m
        where (m.channel_id, m.id) > ((select c.id), cut_id)
          and (m.channel_id, m.id) <= ((select c.id), 9223372036854775807) and m.id >= cut_id - cut_id % 16777216
        order by m.channel_id, m.id limit 1;
        update gapless.channels u
        set first_seq = cut_seq + 1, trimmed_id = cut_id, first_id = coalesce(kept_id, u.last_id + 1)
        where u.id = c.id and u.first_seq <= cut_seq
          -- A message that arrived since changes which one is the first kept: leave that to the next run.
          and (kept_id is not null or u.last_seq = cut_seq);
        if found then
            moved := moved + 1;
            update gapless.log l set trimmed_id = greatest(l.trimmed_id, cut_id) where l.trimmed_id < cut_id;
        end if;
    end loop;
    return moved;
end $$;

-- As in 0001. Whoever has not come so far is taken past it first: what each loses can be counted as long as it is
-- there. A thousand a call; then the segment stays until the next.
create or replace function gapless.drop_segment(p_settled bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    most_behind constant integer := 1000;
    oldest gapless.segments;
    behind integer[];
begin
    select * into oldest from gapless.segments order by lower limit 1 for update skip locked;
    if oldest.lower is null or oldest.upper - 1 > p_settled
       or oldest.lower <> (select min(lower) from gapless.segments) then
        return null;
    end if;
    if exists (select from gapless.channels c
               where c.last_seq >= c.first_seq and c.first_id < oldest.upper) then
        return null;
    end if;
    behind := array(select p.subscription_id from gapless.progress p
                    where p.frontier < oldest.upper - 1 order by p.subscription_id limit most_behind);
    perform gapless.lock_subscriptions(behind);
    update gapless.progress p
    set removed = p.removed + gapless.removed_between(s, p.frontier, oldest.upper - 1), frontier = oldest.upper - 1
    from gapless.subscriptions s
    where p.subscription_id = any(behind) and s.id = p.subscription_id and p.frontier < oldest.upper - 1;
    delete from gapless.settled_ahead a where a.subscription_id = any(behind) and a.message_id < oldest.upper;
    if cardinality(behind) = most_behind then
        return null;
    end if;
    insert into gapless.trims (channel_id, last_id, last_seq, last_created_at)
    select c.id, m.id, m.seq, m.created_at
    from gapless.channels c cross join lateral (
        select m.id, m.seq, m.created_at from gapless.messages m
        where (m.channel_id, m.id) >= (c.id, 0::bigint) and (m.channel_id, m.id) < (c.id, oldest.upper)
          and m.id < oldest.upper
        order by m.channel_id desc, m.id desc limit 1) m
    on conflict do nothing;
    execute format('drop table gapless.messages_%s', oldest.lower);
    delete from gapless.segments where lower = oldest.lower;
    return oldest.lower;
end $$;

-- As in 0001, reading each channel by its index: see gapless.seq_at. Of what goes, the places where subscriptions stand
-- are marked: from there on they lose it.
create or replace function gapless.purge_rows(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone integer := 0;
    n integer;
    d record;
    g record;
begin
    for d in select * from gapless.deleted_channels order by channel_id for update skip locked loop
        delete from gapless.messages m where m.id in (
            select x.id from gapless.messages x
            where (x.channel_id, x.id) >= ((select d.channel_id), 0::bigint)
              and (x.channel_id, x.id) <= ((select d.channel_id), 9223372036854775807)
            order by x.channel_id, x.id limit p_limit - gone);
        get diagnostics n = row_count;
        gone := gone + n;
        if gone >= p_limit then return gone; end if;
        delete from gapless.trims t where t.channel_id = d.channel_id;
        delete from gapless.deleted_channels x where x.channel_id = d.channel_id;
    end loop;
    select * into g from gapless.segments order by lower limit 1;
    for d in
        select c.id, c.trimmed_id from gapless.channels c where c.trimmed_id >= g.upper - 1
    loop
        continue when (
            select m.id from gapless.messages m
            where (m.channel_id, m.id) >= ((select d.id), 0::bigint) and (m.channel_id, m.id) < ((select d.id), g.upper)
              and m.id < g.upper
            order by m.channel_id, m.id limit 1) is null;
        insert into gapless.trims (channel_id, last_id, last_seq, last_created_at)
        select m.channel_id, m.id, m.seq, m.created_at
        from (select g.upper - 1 as id
              union select p.frontier from gapless.progress p where p.frontier < g.upper - 1) f
        cross join lateral (
            select m.channel_id, m.id, m.seq, m.created_at from gapless.messages m
            where (m.channel_id, m.id) >= ((select d.id), 0::bigint) and (m.channel_id, m.id) <= ((select d.id), f.id)
            order by m.channel_id desc, m.id desc limit 1) m
        on conflict do nothing;
        delete from gapless.messages m where m.id in (
            select x.id from gapless.messages x
            where (x.channel_id, x.id) >= ((select d.id), 0::bigint) and (x.channel_id, x.id) < ((select d.id), g.upper)
              and x.id < g.upper
            order by x.channel_id, x.id limit p_limit - gone);
        get diagnostics n = row_count;
        gone := gone + n;
        if gone >= p_limit then return gone; end if;
    end loop;
    return gone;
end $$;
