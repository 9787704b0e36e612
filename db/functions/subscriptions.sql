-- Subscriptions as definitions, and where they begin to read. Locks: see migrations/0003_queues.sql.

-- Where a start is: the frontier, and for a time from when on messages count. Null: it lies in the future. What is to be
-- passed over above the frontier is marked as settled; see gapless.stand_at.
create or replace function gapless.place_of(
    s gapless.subscriptions, p_start text, p_settled bigint, out frontier bigint, out not_before timestamptz
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_start = 'earliest' then
        frontier := 0;
    elsif p_start = 'latest' then
        frontier := gapless.stand_at(s, gapless.last_id(), p_settled);
    elsif p_start ~ '^[0-9]+$' then
        if p_start::numeric <= gapless.last_id() then
            frontier := gapless.stand_at(s, p_start::bigint, p_settled);
        end if;
    else
        not_before := p_start::timestamptz;
        frontier := gapless.id_before(not_before);
    end if;
end $$;

-- The frontier of a subscription that has passed everything up to p_id that can be seen now, and nothing else: what a
-- running transaction still makes visible at or below p_id is ahead of it. In one channel its own order sees to that. Of
-- several, the frontier is the settled id, and what can be seen above it is marked. p_settled may be any id that was
-- settled before; the older it is, the more there is to mark. Null: one is found by time.
create or replace function gapless.stand_at(s gapless.subscriptions, p_id bigint, p_settled bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    settled constant bigint := coalesce(p_settled, gapless.id_before(clock_timestamp()));
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

-- Makes a subscription. `made` is false where one of this name is there; a null id: the start lies in the future.
create or replace function gapless.create_subscription(
    p_namespace_id integer, p_name text, p_channels text[], p_names text[], p_regex text, p_start text, p_own jsonb,
    p_settled bigint default null, out subscription_id integer, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s gapless.subscriptions;
    place record;
begin
    perform gapless.hold_retention();
    perform gapless.share_definitions();
    made := false;
    -- Who asks for one that is there is about to use it. One that goes in this moment is made anew.
    update gapless.subscriptions x set changed_at = clock_timestamp()
    where x.namespace_id = p_namespace_id and x.name = p_name and x.expires is not null;
    select x.id into subscription_id from gapless.subscriptions x
    where x.namespace_id = p_namespace_id and x.name = p_name;
    if subscription_id is not null then
        return;
    end if;
    if p_start ~ '^[0-9]+$' and p_start::numeric > gapless.last_id() then
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
    select * into place from gapless.place_of(s, p_start, p_settled);
    perform gapless.refresh_subscriptions(p_namespace_id, array[p_name], null);
    -- What retention took before is none of its losses, though it lies above its frontier.
    insert into gapless.progress (subscription_id, frontier, not_before, ordering, filter, removed)
    select x.id, place.frontier, place.not_before, x.ordering, gapless.filter_of(x),
           -gapless.removed_between(x, place.frontier, 9007199254740991)
    from gapless.subscriptions x where x.id = create_subscription.subscription_id;
end $$;

-- Changes the members given (null clears one), or, p_replace, all own settings. A push without a secret keeps the
-- one that is there. Null: not there; 0: nothing was changed, for there is no secret to keep (p_replace allows that).
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
        perform gapless.lock_subscriptions(array[found_id]);
    end if;
    perform gapless.hold_retention();
    perform gapless.share_definitions();
    select * into s from gapless.subscriptions where id = found_id for no key update;
    if not found then
        return null;
    end if;
    if jsonb_typeof(wanted -> 'push') = 'object' and s.own ? 'push' then
        wanted := jsonb_set(wanted, '{push}', (s.own -> 'push') || (wanted -> 'push'));
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
    perform gapless.refresh_subscriptions(p_namespace_id, array[p_name], null);
    if (s.names, s.regex) is distinct from (coalesce(p_names, s.names), case when p_channels is null then s.regex else p_regex end) then
        -- Its frontier may lie above the settled id, by the order of the one channel that it read.
        update gapless.progress p set frontier = gapless.stand_at(u, p.frontier, p_settled)
        from gapless.subscriptions u
        where u.id = s.id and p.subscription_id = u.id;
    end if;
    if p_channels is not null or p_patch ? 'filter' then
        -- A policy's filter holds from the next decision on. This one need not wait for it: the lock is there.
        perform gapless.refilter(u, p, clock_timestamp())
        from gapless.subscriptions u join gapless.progress p on p.subscription_id = u.id
        where u.id = s.id and p.filter is distinct from gapless.filter_of(u);
    end if;
    return s.id;
end $$;

-- Changes the channels where they still are p_expected. Null: not there; 0: they are others by now.
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
    perform gapless.lock_subscriptions(array[found_id]);
    select s.channels into there from gapless.subscriptions s where s.id = found_id;
    if there = p_expected then
        return gapless.change_subscription(
            p_namespace_id, p_name, p_channels, p_names, p_regex, '{}', false, p_settled);
    end if;
    return case when there is not null then 0 end;
end $$;

create or replace function gapless.pause_subscription(p_namespace_id integer, p_name text, p_paused boolean) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.share_definitions();
    update gapless.subscriptions s set paused = p_paused, changed_at = clock_timestamp()
    where s.namespace_id = p_namespace_id and s.name = p_name;
    return found;
end $$;

-- Pauses it if it is pushed to this address at this very moment; whether it is.
create or replace function gapless.pause_pushed(p_namespace_id integer, p_name text, p_url text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.share_definitions();
    update gapless.subscriptions s set paused = true
    where s.namespace_id = p_namespace_id and s.name = p_name and s.own -> 'push' ->> 'url' = p_url;
    return found;
end $$;

-- Forgets all that is under way. The log has all of it still, but for what was replayed: that is a dead letter again,
-- as it was, though with a number and a time of its own.
create or replace function gapless.forget_deliveries(p_subscription_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from gapless.settled_ahead a where a.subscription_id = p_subscription_id;
    with gone as (
        delete from gapless.deliveries d where d.subscription_id = p_subscription_id returning d.kept_id
    ), returned as (
        insert into gapless.dead_letters
            (namespace_id, subscription_id, subscription, channel, kept_id, reason, attempts, last_error,
             created_at, journey, published, unroutable)
        select l.namespace_id, p_subscription_id, l.subscription, l.channel, k.id, l.reason, l.attempts, l.last_error,
               clock_timestamp(), l.journey, l.published, l.unroutable
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

-- Null: not there; false: the place lies in the future.
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
    perform gapless.hold_retention();
    perform gapless.lock_subscriptions(array[found_id]);
    if p_to ~ '^[0-9]+$' and p_to::numeric > gapless.last_id() then
        return false;
    end if;
    update gapless.progress p
    set removed = p.removed + gapless.removed_between(s, p.frontier, 9007199254740991)
    from gapless.subscriptions s
    where p.subscription_id = found_id and s.id = found_id;
    if not found then
        -- It was restored without: from here on it is known again.
        insert into gapless.progress (subscription_id, frontier, ordering)
        select s.id, 0, s.ordering from gapless.subscriptions s where s.id = found_id;
    end if;
    perform gapless.forget_deliveries(found_id);
    update gapless.progress p
    set frontier = x.frontier, not_before = x.not_before, moves = p.moves + 1, used_at = clock_timestamp(), expired_to = '-infinity', look_to = null, leased = 0,
        next_end = 'infinity'
    from gapless.subscriptions s cross join lateral gapless.place_of(s, p_to, p_settled) x
    where p.subscription_id = found_id and s.id = found_id;
    -- Seen from its new place, what is gone by now is no loss either.
    update gapless.progress p set removed = p.removed - gapless.removed_between(s, p.frontier, 9007199254740991)
    from gapless.subscriptions s
    where p.subscription_id = found_id and s.id = found_id;
    return true;
end $$;

-- With all that is kept of it but its dead letters. For whoever holds its locks.
create or replace function gapless.take_away(p_subscription_id integer) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from gapless.subscriptions s where s.id = p_subscription_id;
    perform gapless.forget_deliveries(p_subscription_id);
    delete from gapless.attendance a where a.subscription_id = p_subscription_id;
    delete from gapless.gaps g where g.subscription_id = p_subscription_id;
    delete from gapless.progress p where p.subscription_id = p_subscription_id;
end $$;

-- Removes it, unless p_if_empty and it holds a message, or p_if_unused and it has a member: 'removed', 'not empty',
-- 'used', or null: not there. Its dead letters stay.
create or replace function gapless.remove_subscription(
    p_namespace_id integer, p_name text, p_if_empty boolean, p_if_unused boolean
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer := (select s.id from gapless.subscriptions s
                         where s.namespace_id = p_namespace_id and s.name = p_name);
    s gapless.subscriptions;
begin
    perform gapless.lock_subscriptions(array[found_id]);
    perform gapless.share_definitions();
    select * into s from gapless.subscriptions x where x.id = found_id for update;
    if not found then
        return null;
    elsif p_if_empty and gapless.holds_messages(s) then
        return 'not empty';
    elsif p_if_unused and gapless.is_attended(s.id) then
        return 'used';
    end if;
    perform gapless.take_away(s.id);
    return 'removed';
end $$;

drop function if exists gapless.drop_subscription(integer, text);

-- Before the definitions lock, for whoever changes several of them under it.
create or replace function gapless.lock_defined_subscriptions(p_namespace_id integer, p_names text[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.lock_subscriptions(array(
        select s.id from gapless.subscriptions s where s.namespace_id = p_namespace_id and s.name = any(p_names)))
$$;
