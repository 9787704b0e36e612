-- Subscriptions that are removed when they are not used.

-- By how much the noted last use may lie before the real one.
create or replace function gapless_internal.unknown_use(p_expires double precision) returns interval
language sql immutable as $$
    select least(10, p_expires / 10) * interval '1 second'
$$;

-- Notes that the subscription is used now. It writes only if the noted last use is old enough, so the noted
-- one may lie a little before the real one. The caller holds its lock.
create or replace function gapless_internal.note_use(p_subscription_id integer, p_now timestamptz) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.progress p set used_at = p_now
    from gapless.subscriptions s
    where p.subscription_id = p_subscription_id and s.id = p.subscription_id
      and p.used_at < p_now - gapless_internal.unknown_use(s.expires)
$$;

-- Subscriptions that were not used for as long as their `expires` says.
create or replace function gapless_internal.unused(p_namespaces integer[]) returns setof gapless.subscriptions
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.* from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id
    where s.namespace_id = any(p_namespaces)
      and greatest(p.used_at, s.changed_at) + s.expires * interval '1 second' + gapless_internal.unknown_use(s.expires)
          <= clock_timestamp()
$$;

-- Removes those, at most p_limit of them, except those with a member or a lease. If no service of the
-- namespace was there for p_absent seconds (a minute to a day), they could not be used: then their time starts
-- again.
create or replace function gapless.remove_unused(p_names text[], p_absent double precision, p_limit integer)
returns table (namespace text, subscription text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
#variable_conflict use_column
declare
    away constant interval := least(greatest(p_absent, 60), 86400) * interval '1 second';
    namespaces integer[] := array(
        select n.id from gapless.namespaces n
        where n.name = any(p_names) and exists (select from gapless.subscriptions s
                                                where s.namespace_id = n.id and s.expires is not null)
        order by n.id);
    absent integer[];
    found_id integer;
    s gapless.subscriptions;
begin
    if namespaces = '{}' then
        return;
    end if;
    perform gapless_internal.share_definitions();
    absent := array(
        select n from unnest(namespaces) n left join gapless.looks l on l.namespace_id = n
        where l.at is null or l.at < clock_timestamp() - away);
    insert into gapless.looks as l (namespace_id, at) select n, clock_timestamp() from unnest(namespaces) n order by n
    on conflict (namespace_id) do update set at = excluded.at;
    if absent <> '{}' then
        perform from gapless.subscriptions s where s.namespace_id = any(absent) and s.expires is not null
        order by s.id for no key update;
        update gapless.subscriptions s set changed_at = clock_timestamp()
        where s.namespace_id = any(absent) and s.expires is not null;
    end if;
    for found_id in select u.id from gapless_internal.unused(namespaces) u order by u.id limit p_limit loop
        -- A session that decides about it uses it. This never waits for locks, so their order does not
        -- matter.
        continue when not gapless_internal.try_lock_subscription(found_id);
        perform from gapless.subscriptions s where s.id = found_id for update;
        select u.* into s from gapless_internal.unused(namespaces) u where u.id = found_id;
        continue when not found;
        if gapless_internal.is_attended(s.id) then
            perform gapless_internal.note_use(s.id, clock_timestamp());
            continue;
        end if;
        continue when exists (select from gapless.deliveries d
                              where d.subscription_id = s.id and d.state = 0 and d.at > clock_timestamp());
        perform gapless_internal.take_away(s.id);
        return query select n.name, s.name from gapless.namespaces n where n.id = s.namespace_id;
    end loop;
end $$;
