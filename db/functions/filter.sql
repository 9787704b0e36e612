-- Applying a changed filter to messages under way.

-- Whether a filter lets a message through: one of these types and one of these keys (null: any), and p_changes: 'none'
-- leaves out what changes another message, 'only' leaves out the rest, null nothing. It is inlined where it is called.
create or replace function gapless.admits(
    p_types text[], p_keys text[], p_changes text, p_type text, p_key text, p_change json
) returns boolean
language sql immutable as $$
    select (p_types is null or p_type = any(p_types)) and (p_keys is null or p_key = any(p_keys))
           and (p_changes is null or (p_changes = 'only') = gapless.is_change(p_change))
$$;

-- Whether the subscription has no filter.
create or replace function gapless_internal.takes_all(s gapless.subscriptions) returns boolean
language sql immutable as $$
    select s.types is null and s.keys is null and s.changes is null
$$;

-- A short text for the messages that the filter lets through; null: all.
create or replace function gapless_internal.filter_of(s gapless.subscriptions) returns text
language sql immutable as $$
    select case when not gapless_internal.takes_all(s) then md5(concat(row(s.types, s.keys)::text, s.changes)) end
$$;

-- Removes rows that the filter in force excludes, unless they are leased. Leases from before the change may
-- still give such rows back. While there may be such leases, each decision looks again, before a row that
-- came back could have to wait in a lane. Replayed messages stay: a client asked for that very message.
create or replace function gapless_internal.refilter(s gapless.subscriptions, p gapless.progress, p_now timestamptz)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    changed constant boolean := p.filter is distinct from gapless_internal.filter_of(s);
    dropped record;
begin
    with unfit as materialized (
        select d.message_id, d.state from gapless.deliveries d join gapless.messages m on m.id = d.message_id
        where d.subscription_id = s.id and d.kept_id is null and (changed or d.state < 2)
          and gapless.admits(s.types, s.keys, s.changes, m.type, m.key, m.change) is not true
    ), gone as (
        delete from gapless.deliveries d using unfit u
        where d.subscription_id = s.id and d.message_id = u.message_id and u.state > 0
        returning d.subscription_id, d.channel_id, d.lane
    )
    select exists (select from unfit u where u.state = 0) as mixed, array_agg(g.subscription_id) as subscriptions,
           array_agg(g.channel_id) as channels, array_agg(g.lane) as lanes
    into dropped from gone g where g.lane is not null;
    if dropped.lanes is not null then
        perform gapless_internal.promote(dropped.subscriptions, dropped.channels, dropped.lanes, p_now);
    end if;
    if changed or not dropped.mixed then
        update gapless.progress x set filter = gapless_internal.filter_of(s), mixed = dropped.mixed
        where x.subscription_id = s.id;
    end if;
end $$;
