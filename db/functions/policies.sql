-- Policies, and the settings in force. The definitions lock: see migrations/0002_definitions.sql.

-- Whether a policy applies to a name. With several dozen regular expressions in turn, Postgres compiles each
-- one again: so it is used only for names that begin as the pattern does.
create or replace function gapless_internal.is_about(p_pattern text, p_regex text, p_name text) returns boolean
language sql immutable as $$
    select case when starts_with(p_name, split_part(replace(p_pattern, '>', '*'), '*', 1)) then p_name ~ p_regex
                else false end
$$;

-- Resolves settings: own settings before policies before defaults, each setting by itself; among policies the
-- higher priority, then the lesser name.
create or replace function gapless_internal.resolve(
    p_namespace_id integer, p_applies_to text, p_name text, p_own jsonb, p_defaults jsonb
) returns table (setting text, value jsonb, origin text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select distinct on (x.setting) x.setting, x.value, x.origin
    from (
        select o.key as setting, o.value, 'own' as origin, 0 as rank, 0 as priority, '' collate "C" as policy
        from jsonb_each(p_own) o where o.value <> 'null'::jsonb
        union all
        select d.key, d.value, 'policy:' || p.name, 1, -p.priority, p.name
        from gapless.policies p cross join lateral jsonb_each(p.definition) d
        where p.namespace_id = p_namespace_id and p.applies_to = p_applies_to
          and gapless_internal.is_about(p.pattern, p.regex, p_name)
          and d.value <> 'null'::jsonb
        union all
        select d.key, d.value, 'default', 2, 0, '' from jsonb_each(p_defaults) d
    ) x
    order by x.setting, x.rank, x.priority, x.policy
$$;

-- The settings that policies give to channels: for each setting the policy with the highest priority, then
-- the lesser name. Each policy in turn looks at all channels, so each regular expression is compiled once.
create or replace function gapless_internal.policy_settings(p_namespaces integer[], p_names text[])
returns table (namespace_id integer, name text, settings jsonb, origins jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select b.namespace_id, b.name, jsonb_object_agg(b.setting, b.value),
           jsonb_object_agg(b.setting, 'policy:' || b.policy)
    from (
        select distinct on (p.namespace_id, w.name, d.key) p.namespace_id, w.name, d.key as setting, d.value,
               p.name as policy
        from gapless.policies p
        cross join lateral (
            select w.name from unnest(p_namespaces, p_names) as w (namespace_id, name)
            where w.namespace_id = p.namespace_id and gapless_internal.is_about(p.pattern, p.regex, w.name) offset 0
        ) w cross join lateral jsonb_each(p.definition) d
        where p.namespace_id = any(p_namespaces) and p.applies_to = 'channels' and d.value <> 'null'::jsonb
        order by p.namespace_id, w.name, d.key, p.priority desc, p.name
    ) b
    group by b.namespace_id, b.name
$$;

-- The channels with these names, and those that match. They are two queries: an index finds the names only if
-- they are alone.
create or replace function gapless_internal.channels_of(p_namespace_id integer, p_names text[], p_regex text)
returns setof bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select c.id from unnest(p_names) n join gapless.channels c on c.namespace_id = p_namespace_id and c.name = n
    union
    select c.id from gapless.channels c
    where p_regex is not null and c.namespace_id = p_namespace_id and c.name ~ p_regex
$$;

-- Updates the settings in force of channels: those named, and those that match. Rows are locked in one order.
create or replace function gapless_internal.refresh_channels(p_namespace_id integer, p_names text[], p_regex text)
returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with locked as materialized (
        select c.id, c.name, c.own from gapless.channels c
        where c.id in (select gapless_internal.channels_of(p_namespace_id, p_names, p_regex))
        order by c.id for no key update
    ), given as materialized (
        select g.* from (select array_agg(l.name) as names from locked l) l
        cross join lateral gapless_internal.policy_settings(
            array_fill(p_namespace_id, array[cardinality(l.names)]), l.names) g
        where l.names is not null
    ), wanted as (
        select l.id, coalesce(g.settings, '{}') || l.own as v,
               coalesce(g.origins, '{}') || coalesce((
                   select jsonb_object_agg(k, 'own') from jsonb_object_keys(l.own) k), '{}') as origins
        from locked l left join given g on g.name = l.name
    )
    update gapless.channels c
    set max_age = (w.v ->> 'max_age')::integer, max_messages = (w.v ->> 'max_messages')::bigint,
        message_ttl = (w.v ->> 'message_ttl')::double precision, origins = w.origins
    from wanted w
    where c.id = w.id
      and (c.max_age, c.max_messages, c.message_ttl, c.origins) is distinct from
          ((w.v ->> 'max_age')::integer, (w.v ->> 'max_messages')::bigint,
           (w.v ->> 'message_ttl')::double precision, w.origins)
$$;

-- The same for subscriptions. A subscription that is pushed retries as Standard Webhooks suggests.
create or replace function gapless_internal.refresh_subscriptions(p_namespace_id integer, p_names text[], p_regex text)
returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with locked as materialized (
        select s.id, s.name, s.own from gapless.subscriptions s
        where s.namespace_id = p_namespace_id and (s.name = any(p_names) or s.name ~ p_regex)
        order by s.id for no key update
    ), wanted as (
        select l.id, jsonb_object_agg(r.setting, r.value) as v, jsonb_object_agg(r.setting, r.origin) as origins
        from locked l cross join lateral gapless_internal.resolve(
            p_namespace_id, 'subscriptions', l.name, l.own,
            '{"ack_wait": 30, "max_in_flight": 1000, "ordering": "key"}'::jsonb ||
            case when l.own ? 'push'
                 then '{"max_deliver": 10,
                        "backoff": [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]}'::jsonb
                 else '{"max_deliver": 5, "backoff": [1, 5, 30]}'::jsonb end) r
        group by l.id
    )
    update gapless.subscriptions s
    set ack_wait = (w.v ->> 'ack_wait')::double precision, max_deliver = (w.v ->> 'max_deliver')::integer,
        backoff = array(select x::double precision from jsonb_array_elements_text(w.v -> 'backoff') x),
        max_in_flight = (w.v ->> 'max_in_flight')::integer, ordering = w.v ->> 'ordering',
        message_ttl = (w.v ->> 'message_ttl')::double precision,
        max_backlog = (w.v ->> 'max_backlog')::bigint,
        types = nullif(array(select jsonb_array_elements_text(w.v #> '{filter,types}')), '{}'),
        keys = nullif(array(select jsonb_array_elements_text(w.v #> '{filter,keys}')), '{}'),
        changes = w.v #>> '{filter,changes}',
        dead_letter = w.v #>> '{dead_letter,channel}',
        keep = case w.v #>> '{dead_letter,keep}' when 'false' then 0 when 'true' then null
               else (w.v #>> '{dead_letter,keep}')::double precision end,
        origins = w.origins,
        retain = coalesce((w.v ->> 'retain')::boolean, false), expires = (w.v ->> 'expires')::double precision,
        changed_at = case when s.expires is distinct from (w.v ->> 'expires')::double precision then clock_timestamp()
                          else s.changed_at end
    from wanted w
    where s.id = w.id
$$;

-- Updates the settings in force of all that a policy's pattern matches.
create or replace function gapless_internal.follow_policy(p_namespace_id integer, p_applies_to text, p_regex text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_applies_to = 'channels' then
        perform gapless_internal.refresh_channels(p_namespace_id, '{}', p_regex);
    else
        perform gapless_internal.refresh_subscriptions(p_namespace_id, '{}', p_regex);
    end if;
end $$;

-- Notes a change, so that a publisher with an older snapshot does not create a channel by the old policies:
-- see gapless_internal.lock_channels.
create or replace function gapless_internal.note_policy_change(p_namespace_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.namespaces n set policy_changes = n.policy_changes + 1 where n.id = p_namespace_id
$$;

-- Creates or replaces a policy, and updates the settings in force of all that it applies to, or applied to
-- before. Returns whether it is new. GL429: there are already as many as allowed.
create or replace function gapless.put_policy(
    p_namespace_id integer, p_name text, p_pattern text, p_regex text, p_applies_to text, p_priority integer,
    p_definition jsonb
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most constant integer := 1000;
    old gapless.policies;
begin
    perform gapless.lock_definitions();
    perform gapless_internal.note_policy_change(p_namespace_id);
    select * into old from gapless.policies p where p.namespace_id = p_namespace_id and p.name = p_name;
    if old.name is null and most <= (select count(*) from gapless.policies p where p.namespace_id = p_namespace_id) then
        raise exception 'there are % policies already', most using errcode = 'GL429';
    end if;
    insert into gapless.policies (namespace_id, name, pattern, regex, applies_to, priority, definition)
    values (p_namespace_id, p_name, p_pattern, p_regex, p_applies_to, p_priority, p_definition)
    on conflict (namespace_id, name) do update
    set pattern = excluded.pattern, regex = excluded.regex, applies_to = excluded.applies_to,
        priority = excluded.priority, definition = excluded.definition;
    if old.applies_to = p_applies_to and old.regex <> p_regex then
        -- In one step, because rows are locked in one order.
        perform gapless_internal.follow_policy(p_namespace_id, p_applies_to, p_regex || '|' || old.regex);
    else
        perform gapless_internal.follow_policy(p_namespace_id, p_applies_to, p_regex);
        if old.applies_to <> p_applies_to then
            perform gapless_internal.follow_policy(p_namespace_id, old.applies_to, old.regex);
        end if;
    end if;
    return old.name is null;
end $$;

-- Removes a policy, and updates the settings in force. Returns whether it existed.
create or replace function gapless.delete_policy(p_namespace_id integer, p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    old gapless.policies;
begin
    perform gapless.lock_definitions();
    delete from gapless.policies p where p.namespace_id = p_namespace_id and p.name = p_name
    returning * into old;
    if old.name is null then
        return false;
    end if;
    perform gapless_internal.note_policy_change(p_namespace_id);
    perform gapless_internal.follow_policy(p_namespace_id, old.applies_to, old.regex);
    return true;
end $$;
