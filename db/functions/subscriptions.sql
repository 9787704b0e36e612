-- Subscriptions as definitions, and where they begin to read. Locks: see migrations/0003_queues.sql.

-- The place of a start: the frontier, and, for a start in time, the time from which messages count. Null: it
-- lies in the future. Messages above the frontier that must be skipped are marked as settled; see
-- gapless_internal.stand_at.
create or replace function gapless_internal.place_of(
    s gapless.subscriptions, p_start text, p_settled bigint, out frontier bigint, out not_before timestamptz
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_start = 'earliest' then
        frontier := 0;
    elsif p_start = 'latest' then
        frontier := gapless_internal.stand_at(s, gapless_internal.last_id(), p_settled);
    elsif p_start ~ '^[0-9]+$' then
        if p_start::numeric <= gapless_internal.last_id() then
            frontier := gapless_internal.stand_at(s, p_start::bigint, p_settled);
        end if;
    else
        not_before := p_start::timestamptz;
        frontier := gapless.id_before(not_before);
    end if;
end $$;

-- The frontier of a subscription that has passed all messages up to p_id that are visible now, and no others:
-- a message at or below p_id that a running transaction makes visible later is ahead of it. For one channel,
-- its own order ensures this. For several, the frontier is the settled id, and visible messages above it are
-- marked. p_settled may be any id that was settled before; the older it is, the more there is to mark.
create or replace function gapless_internal.stand_at(s gapless.subscriptions, p_id bigint, p_settled bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    settled constant bigint := gapless_internal.settled_by_now(p_settled);
begin
    if s.regex is null and cardinality(s.names) = 1 then
        return least(p_id, greatest(settled, coalesce((
            select c.last_id from gapless.channels c
            where c.namespace_id = s.namespace_id and c.name = s.names[1]), 0)));
    end if;
    insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
    select s.id, m.id, m.channel_id
    from gapless.messages m join gapless.channels c on c.id = m.channel_id
    where m.id > settled and m.id <= p_id and c.namespace_id = s.namespace_id
      and (c.name = any(s.names) or c.name ~ s.regex)
    on conflict do nothing;
    return least(p_id, settled);
end $$;

-- Creates a subscription. `made` is false if one of this name exists; a null id: the start lies in the
-- future.
create or replace function gapless.create_subscription(
    p_namespace_id integer, p_name text, p_channels text[], p_names text[], p_regex text, p_start text, p_own jsonb,
    p_settled bigint default null, out subscription_id integer, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    place record;
begin
    perform gapless_internal.hold_retention();
    perform gapless_internal.share_definitions();
    made := false;
    -- A caller that gets an existing one is about to use it. One removed at this moment is created again.
    update gapless.subscriptions x set changed_at = clock_timestamp()
    where x.namespace_id = p_namespace_id and x.name = p_name and x.expires is not null;
    select x.id into subscription_id from gapless.subscriptions x
    where x.namespace_id = p_namespace_id and x.name = p_name;
    if subscription_id is not null then
        return;
    end if;
    if p_start ~ '^[0-9]+$' and p_start::numeric > gapless_internal.last_id() then
        return;
    end if;
    insert into gapless.subscriptions (namespace_id, name, channels, names, regex, start, own)
    values (p_namespace_id, p_name, p_channels, p_names, p_regex, p_start, p_own)
    on conflict do nothing returning * into s;
    if s.id is null then
        select x.id into subscription_id from gapless.subscriptions x
        where x.namespace_id = p_namespace_id and x.name = p_name;
        return;
    end if;
    made := true;
    subscription_id := s.id;
    select * into place from gapless_internal.place_of(s, p_start, p_settled);
    perform gapless_internal.refresh_subscriptions(p_namespace_id, array[p_name], null);
    -- Messages that retention removed before are not its losses, even those above its frontier.
    insert into gapless.progress (subscription_id, frontier, not_before, ordering, filter, removed)
    select x.id, place.frontier, place.not_before, x.ordering, gapless_internal.filter_of(x),
           -gapless.removed_between(x, place.frontier, 9007199254740991)
    from gapless.subscriptions x where x.id = create_subscription.subscription_id;
end $$;

-- Changes the members given (null clears one), or, with p_replace, all own settings. A push without a secret
-- keeps the existing one. Null: not there; 0: nothing was changed, because there is no secret to keep
-- (p_replace allows that).
create or replace function gapless.change_subscription(
    p_namespace_id integer, p_name text, p_channels text[], p_names text[], p_regex text, p_patch jsonb,
    p_replace boolean, p_settled bigint default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    found_id constant integer := (select x.id from gapless.subscriptions x
                                  where x.namespace_id = p_namespace_id and x.name = p_name);
    wanted jsonb := p_patch;
begin
    if found_id is null then
        return null;
    end if;
    if p_channels is not null or p_patch ? 'filter' then
        perform gapless_internal.lock_subscriptions(array[found_id]);
    end if;
    perform gapless_internal.hold_retention();
    perform gapless_internal.share_definitions();
    select * into s from gapless.subscriptions where id = found_id for no key update;
    if not found then
        return null;
    end if;
    if jsonb_typeof(wanted -> 'push') = 'object' and s.own ? 'push' then
        wanted := jsonb_set(wanted, '{push}', (s.own -> 'push') - 'by' || (wanted -> 'push'));
    end if;
    if not p_replace then
        if jsonb_typeof(wanted -> 'push') = 'object' and not wanted -> 'push' ? 'secret' then
            return 0;
        end if;
        wanted := s.own || wanted;
    end if;
    update gapless.subscriptions u
    set own = (select coalesce(jsonb_object_agg(x.key, x.value), '{}') from jsonb_each(wanted) x
               where x.value <> 'null'::jsonb),
        changed_at = clock_timestamp(), channels = coalesce(p_channels, u.channels),
        names = case when p_channels is null then u.names else p_names end,
        regex = case when p_channels is null then u.regex else p_regex end
    where u.id = s.id;
    perform gapless_internal.refresh_subscriptions(p_namespace_id, array[p_name], null);
    if (s.names, s.regex) is distinct from
       (coalesce(p_names, s.names), case when p_channels is null then s.regex else p_regex end) then
        -- Its frontier may lie above the settled id, by the order of the one channel that it read.
        update gapless.progress p set frontier = gapless_internal.stand_at(u, p.frontier, p_settled)
        from gapless.subscriptions u
        where u.id = s.id and p.subscription_id = u.id;
    end if;
    if p_channels is not null or p_patch ? 'filter' then
        -- A policy's filter holds from the next decision on. This one applies at once: the lock is there.
        perform gapless_internal.refilter(u, p, clock_timestamp())
        from gapless.subscriptions u join gapless.progress p on p.subscription_id = u.id
        where u.id = s.id and p.filter is distinct from gapless_internal.filter_of(u);
    end if;
    return s.id;
end $$;

-- Changes the channels if they still are p_expected. Null: not there; 0: the channels are others by now.
create or replace function gapless.replace_channels(
    p_namespace_id integer, p_name text, p_expected text[], p_channels text[], p_names text[], p_regex text,
    p_settled bigint default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id constant integer := (select x.id from gapless.subscriptions x
                                  where x.namespace_id = p_namespace_id and x.name = p_name);
    there text[];
begin
    perform gapless_internal.lock_subscriptions(array[found_id]);
    select s.channels into there from gapless.subscriptions s where s.id = found_id;
    if there = p_expected then
        return gapless.change_subscription(
            p_namespace_id, p_name, p_channels, p_names, p_regex, '{}', false, p_settled);
    end if;
    return case when there is not null then 0 end;
end $$;

-- Pauses it or resumes it. Returns whether it exists.
create or replace function gapless.pause_subscription(p_namespace_id integer, p_name text, p_paused boolean)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.share_definitions();
    update gapless.subscriptions s set paused = p_paused, changed_at = clock_timestamp()
    where s.namespace_id = p_namespace_id and s.name = p_name;
    return found;
end $$;

-- Pauses it if it is pushed to this address at this moment; returns whether it is.
create or replace function gapless.pause_pushed(p_namespace_id integer, p_name text, p_url text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.share_definitions();
    update gapless.subscriptions s set paused = true
    where s.namespace_id = p_namespace_id and s.name = p_name and s.own -> 'push' ->> 'url' = p_url;
    return found;
end $$;

-- Removes all rows of messages under way. The log still has these messages, except replayed ones: those
-- become dead letters again, as before, but with a new number and time, for as long as before.
create or replace function gapless_internal.forget_deliveries(p_subscription_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from gapless.settled_ahead a where a.subscription_id = p_subscription_id;
    with gone as (
        delete from gapless.deliveries d where d.subscription_id = p_subscription_id returning d.kept_id
    ), returned as (
        insert into gapless.dead_letters
            (namespace_id, subscription_id, subscription, channel, kept_id, reason, attempts, last_error,
             created_at, journey, published, unroutable, remove_at)
        select l.namespace_id, p_subscription_id, l.subscription, l.channel, k.id, l.reason, l.attempts, l.last_error,
               clock_timestamp(), l.journey, l.published, l.unroutable,
               case when l.remove_at is not null
                    then clock_timestamp() + (l.remove_at - l.created_at) end
        from gone g join gapless.kept k on k.id = g.kept_id
        cross join lateral json_populate_record(null::gapless.dead_letters, k.letter) l
        order by k.message_id
        returning kept_id
    ), counted as (
        update gapless.progress p set dead_lettered = p.dead_lettered + (select count(*) from returned)
        where p.subscription_id = p_subscription_id and exists (select from returned)
    )
    update gapless.kept k set letter = null from returned r where k.id = r.kept_id;
$$;

-- Moves the frontier. Null: not there; false: the place lies in the future.
create or replace function gapless.seek_subscription(
    p_namespace_id integer, p_name text, p_to text, p_settled bigint default null
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer := (select s.id from gapless.subscriptions s
                         where s.namespace_id = p_namespace_id and s.name = p_name);
begin
    if found_id is null then
        return null;
    end if;
    perform gapless_internal.hold_retention();
    perform gapless_internal.lock_subscriptions(array[found_id]);
    if p_to ~ '^[0-9]+$' and p_to::numeric > gapless_internal.last_id() then
        return false;
    end if;
    update gapless.progress p
    set removed = p.removed + gapless.removed_between(s, p.frontier, 9007199254740991)
    from gapless.subscriptions s
    where p.subscription_id = found_id and s.id = found_id;
    if not found then
        -- It was restored without progress: from here on its progress is known again.
        insert into gapless.progress (subscription_id, frontier, ordering)
        select s.id, 0, s.ordering from gapless.subscriptions s where s.id = found_id;
    end if;
    perform gapless_internal.forget_deliveries(found_id);
    update gapless.progress p
    set frontier = x.frontier, not_before = x.not_before, moves = p.moves + 1, used_at = clock_timestamp(),
        expired_to = '-infinity', look_to = null, leased = 0,
        next_end = 'infinity'
    from gapless.subscriptions s cross join lateral gapless_internal.place_of(s, p_to, p_settled) x
    where p.subscription_id = found_id and s.id = found_id;
    -- Messages that are already gone are not losses, seen from the new place.
    update gapless.progress p set removed = p.removed - gapless.removed_between(s, p.frontier, 9007199254740991)
    from gapless.subscriptions s
    where p.subscription_id = found_id and s.id = found_id;
    return true;
end $$;

-- Removes a subscription with all that is kept for it, except its dead letters. The caller holds its locks.
create or replace function gapless_internal.take_away(p_subscription_id integer) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from gapless.subscriptions s where s.id = p_subscription_id;
    perform gapless_internal.forget_deliveries(p_subscription_id);
    delete from gapless.attendance a where a.subscription_id = p_subscription_id;
    delete from gapless.gaps g where g.subscription_id = p_subscription_id;
    delete from gapless.progress p where p.subscription_id = p_subscription_id;
end $$;

-- Removes it, unless p_if_empty and it holds a message, or p_if_unused and it has a member. Returns
-- 'removed', 'not empty', 'used', or null: not there. Its dead letters stay.
create or replace function gapless.remove_subscription(
    p_namespace_id integer, p_name text, p_if_empty boolean, p_if_unused boolean
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer := (select s.id from gapless.subscriptions s
                         where s.namespace_id = p_namespace_id and s.name = p_name);
    s gapless.subscriptions;
begin
    perform gapless_internal.lock_subscriptions(array[found_id]);
    perform gapless_internal.share_definitions();
    select * into s from gapless.subscriptions x where x.id = found_id for update;
    if not found then
        return null;
    elsif p_if_empty and gapless_internal.holds_messages(s) then
        return 'not empty';
    elsif p_if_unused and gapless_internal.is_attended(s.id) then
        return 'used';
    end if;
    perform gapless_internal.take_away(s.id);
    return 'removed';
end $$;

-- Locks these subscriptions before the definitions lock, for a caller that changes several of them under it.
create or replace function gapless.lock_defined_subscriptions(p_namespace_id integer, p_names text[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.lock_subscriptions(array(
        select s.id from gapless.subscriptions s where s.namespace_id = p_namespace_id and s.name = any(p_names)))
$$;

-- The result that a seek would have. The seek is made, its result is read, and it is rolled back: so this
-- always says what a seek does. `moved` as gapless.seek_subscription gives it; the statistics before (null:
-- there is no progress) and after, as JSON.
create or replace function gapless.try_seek(
    p_namespace_id integer, p_name text, p_to text, p_settled bigint default null,
    out moved boolean, out before json, out after json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id constant integer := (select s.id from gapless.subscriptions s
                                  where s.namespace_id = p_namespace_id and s.name = p_name);
begin
    perform gapless_internal.lock_subscriptions(array[found_id]);
    select to_json(x) into before
    from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id,
                 lateral gapless.stats(s, p) x
    where s.id = found_id;
    begin
        moved := gapless.seek_subscription(p_namespace_id, p_name, p_to, p_settled);
        if moved then
            select to_json(x) into after
            from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id,
                 lateral gapless.stats(s, p) x
            where s.id = found_id;
            raise exception using errcode = 'GL000';
        end if;
    exception when sqlstate 'GL000' then
        null;
    end;
    perform set_config('synchronous_commit', 'off', true);
end $$;
