-- What login roles may do by SQL. Their grants are found by session_user, which no caller can change.

-- The regular expression of the names that some (valid) patterns stand for; null: all names.
create or replace function gapless_internal.pattern_regex(p_patterns text[]) returns text
language sql immutable as $$
    select case when not '>' = any(p_patterns) then (
        select string_agg('^' || replace(replace(replace(p, '.', '[.]'), '*', '[^.]+'), '>', '[^.]+([.][^.]+)*') || '$',
                          '|')
        from unnest(p_patterns) p) end
$$;

-- Whether the session's role needs no grant: the owner of the schema, the service, and for reading whoever may read all
-- data of the database.
create or replace function gapless_internal.is_trusted(p_kind text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select pg_has_role(session_user, current_user, 'member') or pg_has_role(session_user, 'gapless_service', 'member')
           or p_kind = 'reader' and pg_has_role(session_user, 'pg_read_all_data', 'member')
$$;

-- The grant of the session's role. A row of nulls: it needs none. Raises an error if it has none.
create or replace function gapless_internal.granted(p_kind text) returns gapless.role_grants
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    g gapless.role_grants;
begin
    select x.* into g from gapless.role_grants x where x.role = session_user and x.kind = p_kind;
    if not found and not gapless_internal.is_trusted(p_kind) then
        raise exception 'role % was not granted to %', session_user,
            case p_kind when 'publisher' then 'publish' else 'read' end
            using errcode = '42501',
                  hint = format('The owner of the schema does it: select gapless.grant_%s(%L).', p_kind, session_user);
    end if;
    return g;
end $$;

-- The grant under which the session publishes. The namespace comes from the grant; p_namespace may repeat it. Whoever
-- needs no grant names the namespace, or means `default`.
create or replace function gapless_internal.granted_to_publish(p_namespace text) returns gapless.role_grants
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    g gapless.role_grants := gapless_internal.granted('publisher');
    named integer;
begin
    if g.role is not null and p_namespace is null then
        return g;
    end if;
    select n.id into named from gapless.namespaces n where n.name = coalesce(p_namespace, 'default');
    if g.role is null and named is null then
        raise exception 'namespace % does not exist', quote_literal(left(p_namespace, 300)) using errcode = '22023';
    elsif g.role is not null and g.namespace_id is distinct from named then
        raise exception 'role % was granted to publish in its own namespace only: leave out the namespace', g.role
            using errcode = '42501';
    end if;
    g.namespace_id := named;
    return g;
end $$;

-- Raises an error unless these channels are granted.
create or replace function gapless_internal.require_channels(g gapless.role_grants, p_names text[]) returns void
language plpgsql immutable as $$
declare
    missing text;
begin
    if g.regex is null then
        return;
    end if;
    select n into missing from unnest(p_names) n where n !~ g.regex limit 1;
    if found then
        raise exception 'role % was not granted to publish to channel %', g.role, missing using errcode = '42501';
    end if;
end $$;

-- Whether the session reads every row of every table that readers may read.
-- Needs: subscribe on some channel.
create or replace function gapless.reads_everything() returns boolean
language plpgsql stable security definer parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    g gapless.role_grants := gapless_internal.granted('reader');
begin
    return g.role is null or g.regex is null and (select count(*) from gapless.namespaces) = 1;
end $$;

-- The namespace that the session reads; with p_whole null unless it reads all of it.
-- Needs: subscribe on some channel.
create or replace function gapless.readable_namespace(p_whole boolean) returns integer
language plpgsql stable security definer parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    g gapless.role_grants := gapless_internal.granted('reader');
begin
    return case when g.regex is null or not p_whole then g.namespace_id end;
end $$;

-- The channels that the session reads.
-- Needs: subscribe on some channel.
create or replace function gapless.readable_channels() returns setof bigint
language plpgsql stable security definer parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    g gapless.role_grants := gapless_internal.granted('reader');
begin
    return query select c.id from gapless.channels c
        where c.namespace_id = g.namespace_id and (g.regex is null or c.name ~ g.regex);
end $$;

-- The subscriptions that the session reads: those of its namespace if it reads all channels.
-- Needs: subscribe on some channel.
create or replace function gapless.readable_subscriptions() returns setof integer
language plpgsql stable security definer parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return query select s.id from gapless.subscriptions s where s.namespace_id = gapless.readable_namespace(true);
end $$;

-- From now on each reader sees only the rows that it was granted, by row security. The owner, whose functions work on all
-- rows, and the service see all. This begins with the first grant to a reader, not with an update: processes of the
-- version before refuse to read a table with row security, and may still run then.
--
-- It waits only briefly for each table and begins again, so it neither holds up others nor waits for them in a circle.
create or replace function gapless_internal.separate_readers() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
    most_attempts constant integer := 200;
    rule record;
begin
    for attempt in 1 .. most_attempts loop
        begin
            for rule in
                select format('gapless.%I', x.name) as of, x.seen from (values
                    ('messages', 'channel_id in (select gapless.readable_channels())'),
                    ('channels', 'id in (select gapless.readable_channels())'),
                    ('namespaces', 'id = (select gapless.readable_namespace(false))'),
                    ('trims', 'channel_id in (select gapless.readable_channels())'),
                    ('kept', 'channel_id in (select gapless.readable_channels())'),
                    ('deleted_channels', 'false'),
                    ('subscriptions', 'id in (select gapless.readable_subscriptions())'),
                    ('progress', 'subscription_id in (select gapless.readable_subscriptions())'),
                    ('deliveries', 'subscription_id in (select gapless.readable_subscriptions())'),
                    ('settled_ahead', 'subscription_id in (select gapless.readable_subscriptions())'),
                    ('gaps', 'subscription_id in (select gapless.readable_subscriptions())'),
                    ('dead_letters', 'namespace_id = (select gapless.readable_namespace(true))')
                ) x (name, seen) join pg_class c on c.oid = format('gapless.%I', x.name)::regclass
                where not c.relrowsecurity
            loop
                execute format('create policy service on %s for select to gapless_service using (true)', rule.of);
                execute format(
                    'create policy granted on %s for select using ((select gapless.reads_everything()) or %s)',
                    rule.of, rule.seen);
                execute format('alter table %s enable row level security', rule.of);
            end loop;
            return;
        exception when lock_not_available then
            if attempt = most_attempts then
                raise;
            end if;
            perform pg_sleep(0.05 + 0.1 * random());
        end;
    end loop;
end $$;

-- Gives a role what publishers or readers may do at all. It may connect, too, where nobody else has to allow that.
create or replace function gapless_internal.give_rights(p_role name, p_kind text) returns void
language plpgsql volatile as $$
begin
    if (select pg_get_userbyid(d.datdba) = current_user from pg_database d where d.datname = current_database()) then
        execute format('grant connect on database %I to %I', current_database(), p_role);
    end if;
    execute format('grant usage on schema gapless to %I', p_role);
    execute format('grant select on gapless.migrations to %I', p_role);
    if p_kind = 'publisher' then
        execute format(
            'grant execute on function gapless.publish(text, jsonb, text, text, jsonb, double precision, text),
             gapless.publish(text, jsonb, bigint, text, jsonb, double precision, text, text, text, bigint, text, text,
                             boolean, bigint),
             gapless.spark_stage, gapless.spark_stage_changes, gapless.spark_bind, gapless.spark_publish,
             gapless.spark_publish_batch, gapless.spark_discard, gapless.spark_tidy to %I', p_role);
        return;
    end if;
    -- Definitions hold the secrets of webhooks, and the log has the secret that signs hints: only the service may read
    -- those columns.
    execute format(
        'grant select on gapless.namespaces, gapless.channels, gapless.messages, gapless.segments, gapless.trims,
         gapless.deleted_channels, gapless.progress, gapless.deliveries, gapless.settled_ahead, gapless.kept,
         gapless.dead_letters, gapless.gaps, gapless.fences to %I', p_role);
    execute format('grant select (singleton, epoch, trimmed_id, created_at) on gapless.log to %I', p_role);
    execute format(
        'grant select (id, namespace_id, name, channels, names, regex, start, paused, created_at, ack_wait, max_deliver,
         backoff, max_in_flight, ordering, message_ttl, max_backlog, types, keys, changes, dead_letter, retain, expires,
         keep)
         on gapless.subscriptions to %I', p_role);
    execute format(
        'grant execute on function gapless.tick, gapless.id_before, gapless.seq_at, gapless.reads_everything,
         gapless.readable_namespace, gapless.readable_channels, gapless.readable_subscriptions to %I', p_role);
end $$;

-- Grants: stores one, in place of an earlier one of the same kind, and gives the role its rights.
create or replace function gapless_internal.grant_role(
    p_kind text, p_role name, p_channels text[], p_namespace text, p_sender text
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most_tokens constant integer := 512;
    owner_id integer;
begin
    if p_role is null or not exists (select from pg_roles r where r.rolname = p_role) then
        raise exception 'role % does not exist: create it first', coalesce(p_role::text, 'null') using errcode = '42704';
    end if;
    if left(p_role, 3) = 'pg_' or p_role in ('gapless_service', 'gapless_publisher', 'gapless_reader') then
        raise exception 'a grant is for a login role of yours, not for %', p_role using errcode = '22023';
    end if;
    if p_role = current_user then
        raise exception 'role % owns Gapless and needs no grant', p_role using errcode = '22023';
    end if;
    if coalesce(cardinality(p_channels), 0) = 0 or exists (
        select from unnest(p_channels) c
        where (length(c) <= 255 and c ~ '^(([A-Za-z0-9_~:@-]+|[*])[.])*([A-Za-z0-9_~:@-]+|[*]|>)$') is not true)
    then
        raise exception 'channels: must be names or patterns, such as {orders.eu,chat.>}' using errcode = '22023';
    end if;
    if (select sum(cardinality(string_to_array(c, '.'))) from unnest(p_channels) c) > most_tokens then
        raise exception 'channels: have more than % tokens together', most_tokens using errcode = '22023';
    end if;
    if p_sender !~ '^[^[:cntrl:]]{1,255}$' then
        raise exception 'sender: must be 1 to 255 characters, none of them a control character' using errcode = '22023';
    end if;
    select n.id into owner_id from gapless.namespaces n where n.name = p_namespace;
    if owner_id is null then
        raise exception 'namespace % does not exist', coalesce(quote_literal(left(p_namespace, 300)), 'null')
            using errcode = '22023';
    end if;
    insert into gapless.role_grants (role, kind, namespace_id, channels, regex, sender)
    values (p_role, p_kind, owner_id, p_channels, gapless_internal.pattern_regex(p_channels), p_sender)
    on conflict (role, kind) do update set namespace_id = excluded.namespace_id, channels = excluded.channels,
        regex = excluded.regex, sender = excluded.sender;
    perform gapless_internal.give_rights(p_role, p_kind);
    if p_kind = 'reader' then
        perform gapless_internal.separate_readers();
    end if;
end $$;

-- Lets a login role publish to these channels (names and patterns) of a namespace, as this sender. Only the owner may
-- call it.
create or replace function gapless.grant_publisher(
    role name, channels text[] default '{>}', namespace text default 'default', sender text default null
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.grant_role('publisher', role, channels, namespace, sender)
$$;

-- Lets a login role read these channels (names and patterns) of a namespace, and with all of them its subscriptions and
-- dead letters too. Only the owner may call it.
create or replace function gapless.grant_reader(
    role name, channels text[] default '{>}', namespace text default 'default'
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.grant_role('reader', role, channels, namespace, null)
$$;

-- Takes back what a role was granted. Another role may go on with its queries of the Spark sink. Only the owner may call
-- it.
create or replace function gapless.revoke(role name) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from gapless.spark_queries q where q.role = revoke.role;
    delete from gapless.role_grants g where g.role = revoke.role;
    -- The owner may have a grant of before, and keeps its rights.
    if found and revoke.role <> current_user and exists (select from pg_roles r where r.rolname = revoke.role) then
        execute format('revoke all on all tables in schema gapless from %I', revoke.role);
        execute format('revoke all on all functions in schema gapless from %I', revoke.role);
        execute format('revoke all on schema gapless from %I', revoke.role);
    end if;
end $$;
