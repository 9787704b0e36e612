-- What users define: policies over channels and subscriptions, and subscriptions themselves.
--
-- The settings in force are worked out when a definition or a policy changes, in that same transaction, and
-- stand as plain columns: a decision reads one row, and every decision after the commit follows it.
--
-- Lock 4 (advisory, 1195462739): a change of policies holds it alone; whoever makes a channel or a subscription,
-- or changes one, holds it shared. It comes after the publishing lock and before any row, so that its holders
-- never wait for one another in a circle.

create table gapless.policies (
    namespace_id integer not null references gapless.namespaces,
    name text collate "C" not null,
    pattern text not null,
    regex text not null,
    applies_to text not null check (applies_to in ('channels', 'subscriptions')),
    priority integer not null,
    definition jsonb not null,
    primary key (namespace_id, name)
);

alter table gapless.channels
    add column own jsonb not null default '{}',
    add column origins jsonb not null default '{}';
comment on column gapless.channels.own is
    'the settings given to this channel itself; the plain columns are those in force';

update gapless.channels c set own = x.own, origins = x.origins
from (
    select y.id, y.own, (select coalesce(jsonb_object_agg(k, 'own'), '{}') from jsonb_object_keys(y.own) k) as origins
    from (select c.id, jsonb_strip_nulls(jsonb_build_object('max_age', c.max_age,
              'max_messages', c.max_messages, 'message_ttl', c.message_ttl)) as own
          from gapless.channels c) y
) x
where x.id = c.id and x.own <> '{}';

create table gapless.subscriptions (
    id integer generated always as identity primary key,
    namespace_id integer not null references gapless.namespaces,
    name text collate "C" not null
        check (length(name) <= 255 and name ~ '^[A-Za-z0-9_~:@-]+(\.[A-Za-z0-9_~:@-]+)*$'),
    channels text[] not null check (cardinality(channels) between 1 and 128),
    -- The same taken apart: names of channels, and one regular expression for all patterns or null.
    names text[] not null,
    regex text,
    start text not null,
    own jsonb not null,
    paused boolean not null default false,
    created_at timestamptz not null default now(),
    -- In force:
    ack_wait double precision not null default 30,
    max_deliver integer not null default 5,
    backoff double precision[] not null default '{1,5,30}',
    max_in_flight integer not null default 1000,
    ordering text not null default 'key',
    message_ttl double precision,
    max_backlog bigint,
    types text[],
    keys text[],
    dead_letter text,
    origins jsonb not null default '{}',
    unique (namespace_id, name)
);

-- Makes the namespace of this name if it is missing; its id.
create function gapless.ensure_namespace(p_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer;
begin
    select n.id into found_id from gapless.namespaces n where n.name = p_name;
    if found_id is null then
        insert into gapless.namespaces (name) values (p_name) on conflict do nothing;
        select n.id into found_id from gapless.namespaces n where n.name = p_name;
    end if;
    return found_id;
end $$;

alter table gapless.namespaces add column imported bytea;
comment on column gapless.namespaces.imported is
    'SHA-256 of the definitions file imported last: every worker has it, and a worker that comes back later'
    ' must not undo what was changed since';

-- Whether this definitions file is another than the one imported last; from now on it is that one. For whoever
-- holds lock 4.
create function gapless.import_once(p_namespace_id integer, p_digest bytea) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with taken as (
        update gapless.namespaces n set imported = p_digest
        where n.id = p_namespace_id and n.imported is distinct from p_digest
        returning 1
    )
    select exists (select from taken)
$$;

-- Own settings over policies over defaults, each setting by itself; among policies the higher priority, then
-- the lesser name.
create function gapless.resolve(
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
        where p.namespace_id = p_namespace_id and p.applies_to = p_applies_to and p_name ~ p.regex
          and d.value <> 'null'::jsonb
        union all
        select d.key, d.value, 'default', 2, 0, '' from jsonb_each(p_defaults) d
    ) x
    order by x.setting, x.rank, x.priority, x.policy
$$;

-- Puts in force what channels are to keep: those named, and those that match. Rows are locked in one order.
create function gapless.refresh_channels(p_namespace_id integer, p_names text[], p_regex text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with locked as materialized (
        select c.id, c.name, c.own from gapless.channels c
        where c.namespace_id = p_namespace_id and (c.name = any(p_names) or c.name ~ p_regex)
        order by c.id for no key update
    ), wanted as (
        select l.id, jsonb_object_agg(r.setting, r.value) filter (where r.setting is not null) as v,
               coalesce(jsonb_object_agg(r.setting, r.origin) filter (where r.setting is not null), '{}') as origins
        from locked l left join lateral gapless.resolve(p_namespace_id, 'channels', l.name, l.own, '{}') r on true
        group by l.id
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
create function gapless.refresh_subscriptions(p_namespace_id integer, p_names text[], p_regex text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with locked as materialized (
        select s.id, s.name, s.own from gapless.subscriptions s
        where s.namespace_id = p_namespace_id and (s.name = any(p_names) or s.name ~ p_regex)
        order by s.id for no key update
    ), wanted as (
        select l.id, jsonb_object_agg(r.setting, r.value) as v, jsonb_object_agg(r.setting, r.origin) as origins
        from locked l cross join lateral gapless.resolve(
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
        dead_letter = w.v #>> '{dead_letter,channel}', origins = w.origins
    from wanted w
    where s.id = w.id
$$;

create function gapless.put_policy(
    p_namespace_id integer, p_name text, p_pattern text, p_regex text, p_applies_to text, p_priority integer,
    p_definition jsonb
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    old gapless.policies;
begin
    perform pg_advisory_xact_lock(1195462739, 4);
    select * into old from gapless.policies p where p.namespace_id = p_namespace_id and p.name = p_name;
    insert into gapless.policies (namespace_id, name, pattern, regex, applies_to, priority, definition)
    values (p_namespace_id, p_name, p_pattern, p_regex, p_applies_to, p_priority, p_definition)
    on conflict (namespace_id, name) do update
    set pattern = excluded.pattern, regex = excluded.regex, applies_to = excluded.applies_to,
        priority = excluded.priority, definition = excluded.definition;
    if old.applies_to = p_applies_to and old.regex <> p_regex then
        -- In one step: rows are locked in one order.
        perform gapless.follow_policy(p_namespace_id, p_applies_to, p_regex || '|' || old.regex);
    else
        perform gapless.follow_policy(p_namespace_id, p_applies_to, p_regex);
        if old.applies_to <> p_applies_to then
            perform gapless.follow_policy(p_namespace_id, old.applies_to, old.regex);
        end if;
    end if;
    return old.name is null;
end $$;

create function gapless.delete_policy(p_namespace_id integer, p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    old gapless.policies;
begin
    perform pg_advisory_xact_lock(1195462739, 4);
    delete from gapless.policies p where p.namespace_id = p_namespace_id and p.name = p_name
    returning * into old;
    if old.name is null then
        return false;
    end if;
    perform gapless.follow_policy(p_namespace_id, old.applies_to, old.regex);
    return true;
end $$;

create function gapless.follow_policy(p_namespace_id integer, p_applies_to text, p_regex text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_applies_to = 'channels' then
        perform gapless.refresh_channels(p_namespace_id, '{}', p_regex);
    else
        perform gapless.refresh_subscriptions(p_namespace_id, '{}', p_regex);
    end if;
end $$;

-- Holds off every other change of definitions until the transaction ends.
create function gapless.lock_definitions() returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select pg_advisory_xact_lock(1195462739, 4)
$$;

-- Locks, in the order of all who lock channels, those that an import is about to change: by themselves it takes
-- them in the order of its document. What it will make nobody else can see.
create function gapless.lock_defined_channels(p_namespace_id integer, p_names text[], p_regex text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform from gapless.channels c
    where c.namespace_id = p_namespace_id and (c.name = any(p_names) or c.name ~ p_regex)
    order by c.id for no key update;
end $$;

-- As in 0001; a new channel begins with what policies give it.
create or replace function gapless.lock_channels(
    p_namespaces integer[], p_names text[], p_create boolean,
    out ids bigint[], out last_ids bigint[], out last_seqs bigint[], out ttls double precision[],
    out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    -- Making comes before locking: a writer that waits for another's new row holds no other row yet. Nobody
    -- deletes a channel between the two, for that takes the publishing lock alone.
    if p_create and exists (
        select from unnest(p_namespaces, p_names) as w (namespace_id, name)
        where not exists (
            select from gapless.channels c
            where c.namespace_id = w.namespace_id and c.name = w.name))
    then
        perform pg_advisory_xact_lock_shared(1195462739, 4);
        insert into gapless.channels (namespace_id, name, max_age, max_messages, message_ttl, origins)
        select w.namespace_id, w.name, (r.v ->> 'max_age')::integer, (r.v ->> 'max_messages')::bigint,
               (r.v ->> 'message_ttl')::double precision, coalesce(r.origins, '{}')
        from unnest(p_namespaces, p_names) as w (namespace_id, name)
        cross join lateral (
            select jsonb_object_agg(x.setting, x.value) as v, jsonb_object_agg(x.setting, x.origin) as origins
            from gapless.resolve(w.namespace_id, 'channels', w.name, '{}', '{}') x) r
        where not exists (
            select from gapless.channels c
            where c.namespace_id = w.namespace_id and c.name = w.name)
        order by w.namespace_id, w.name
        on conflict do nothing;
        made := found;
    end if;

    with wanted as (
        select * from unnest(p_namespaces, p_names) with ordinality as w (namespace_id, name, ord)
    ), locked as materialized (
        select c.id, c.namespace_id, c.name, c.last_id, c.last_seq, c.message_ttl
        from gapless.channels c
        where (c.namespace_id, c.name) in (select w.namespace_id, w.name from wanted w)
        order by c.id
        for no key update
    )
    select array_agg(l.id order by w.ord), array_agg(l.last_id order by w.ord),
           array_agg(l.last_seq order by w.ord), array_agg(l.message_ttl order by w.ord)
    into ids, last_ids, last_seqs, ttls
    from wanted w left join locked l on l.namespace_id = w.namespace_id and l.name = w.name;

    if p_create and array_position(ids, null) is not null then
        raise exception 'a channel disappeared while it was published to' using errcode = '40001';
    end if;
end $$;

-- As in 0001; own settings, then what is in force.
create or replace function gapless.set_channel(
    p_namespace_id integer, p_name text, p_settings jsonb, p_patch boolean, out channel_id bigint, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    perform pg_advisory_xact_lock_shared(1195462739, 4);
    if not p_patch then
        insert into gapless.channels (namespace_id, name) values (p_namespace_id, p_name)
        on conflict do nothing returning id into channel_id;
        made := channel_id is not null;
    end if;
    update gapless.channels c
    set own = jsonb_strip_nulls(case when p_patch then c.own || p_settings else p_settings end)
    where c.namespace_id = p_namespace_id and c.name = p_name
    returning c.id into channel_id;
    perform gapless.refresh_channels(p_namespace_id, array[p_name], null);
end $$;
