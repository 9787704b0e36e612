-- Publishing by SQL, inside a user's own transaction.

-- Refuses channels that do not exist if the service says that a publish creates none. This is checked when a
-- message is given, not when it is appended: a channel that is deleted in between is created again, as by a
-- publish that comes a little later.
create or replace function gapless_internal.may_publish_to(p_namespaces integer[], p_names text[]) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    missing text;
begin
    if (select l.auto_create from gapless.log l) then
        return;
    end if;
    select w.name into missing from unnest(p_namespaces, p_names) as w (namespace_id, name)
    where not exists (select from gapless.channels c where c.namespace_id = w.namespace_id and c.name = w.name) limit 1;
    if found then
        raise exception 'channel % does not exist and is not made by publishing here', missing using errcode = '22023';
    end if;
end $$;

-- Stores GAPLESS_AUTO_CREATE_CHANNELS of the service that started last.
create or replace function gapless.set_auto_create(p_on boolean) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.log set auto_create = p_on where auto_create <> p_on
$$;

-- Keeps a message of the caller's own transaction until that commits.
create or replace function gapless_internal.keep_for_commit(
    g gapless.role_grants, p_channel text, p_data jsonb, p_key text, p_type text, p_headers jsonb, p_ttl double precision,
    p_change json, p_version bigint, p_moderates boolean
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most_bytes constant bigint := 33554432;
    body constant text := p_data::text;
    bytes bigint;
    bytes_before bigint;
    wrong text;
begin
    wrong := gapless_internal.flaw(p_channel, p_type, p_key, body, null, p_headers::text, p_ttl);
    if wrong is not null then
        raise exception '%', wrong using errcode = '22023';
    end if;
    perform gapless_internal.require_channels(g, array[p_channel]);
    perform gapless_internal.may_publish_to(array[g.namespace_id], array[p_channel]);
    select o.bytes into bytes_before from gapless.outbox o
    where o.transaction_id = pg_current_xact_id() order by o.ord desc limit 1;
    bytes := gapless_internal.size_of(body, null, p_headers::text);
    if bytes_before + bytes > most_bytes then
        raise exception 'the messages of one transaction take at most % bytes', most_bytes
            using errcode = '54000', hint = 'Publish them in several transactions.';
    end if;
    insert into gapless.outbox (namespace_id, channel, type, key, headers, data, ttl, sender, bytes, change, version,
                                moderates)
    values (g.namespace_id, p_channel, p_type, p_key, nullif(p_headers, '{}'::jsonb)::json, body::json, p_ttl, g.sender,
            coalesce(bytes_before, 0) + bytes, p_change, p_version, p_moderates);
    if bytes_before is null then
        -- The first of the transaction. A savepoint that takes back its row takes back this one too.
        insert into gapless.commits (kind) values (0) on conflict do nothing;
    end if;
end $$;

-- Publishes inside the caller's own transaction: visible if and when it commits, in channel order. The
-- channel is locked only while the transaction commits, so a long transaction blocks no other. Namespace and
-- sender are those of the role's grant; whoever needs no grant may name a namespace.
-- Needs: publish on p_channel.
create or replace function gapless.publish(
    channel text, data jsonb, key text default null, type text default 'message',
    headers jsonb default null, ttl double precision default null, namespace text default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.keep_for_commit(
        gapless_internal.granted_to_publish(publish.namespace), publish.channel, publish.data, publish.key, publish.type,
        publish.headers, publish.ttl, null, null, null);
end $$;

-- The same for a message that changes an earlier one of its channel. It is judged at the commit: until then somebody
-- else may change its target. A role changes what its own sender sent; the owner, and everybody as long as no credential
-- is required, changes all. Arguments have such an order that a call without names, and without types, is one of the
-- function above: an untyped third argument is a key.
-- Needs: publish on p_channel.
create or replace function gapless.publish(
    channel text, data jsonb, target bigint, action text, headers jsonb default null, ttl double precision default null,
    namespace text default null, key text default null, type text default 'message', through bigint default null,
    annotation text default null, mode text default null, remove boolean default null, expected_version bigint default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    g constant gapless.role_grants := gapless_internal.granted_to_publish(publish.namespace);
    wrong text;
begin
    perform gapless_internal.needs_fresh_snapshots();
    wrong := gapless_internal.flaw_of_change(
        publish.target, publish.action, publish.through, publish.annotation, publish.mode, publish.remove);
    if wrong is not null then
        raise exception '%', wrong using errcode = '22023';
    end if;
    perform gapless_internal.keep_for_commit(
        g, publish.channel, case when publish.action in ('delete', 'annotate') then coalesce(publish.data, 'null')
                                 else publish.data end, publish.key, publish.type, publish.headers, publish.ttl,
        gapless_internal.change_of(publish.target, publish.action, publish.through, publish.annotation, publish.mode,
                                   publish.remove),
        publish.expected_version, gapless_internal.changes_all(g));
end $$;

-- Moves the messages that this transaction has published into the log. For gapless_internal.flush_outbox.
create or replace function gapless_internal.append_outbox() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    status smallint;
begin
    select (gapless.append_messages(
        x.namespaces, x.names, true, null, null, null, null, null, x.request, x.channel, x.types, x.keys, x.data,
        x.bin, x.headers, x.senders, x.ttls, x.changes, x.versions, x.moderates)).statuses[1]
    into status
    from (
        with mine as materialized (
            select * from gapless.outbox o where o.transaction_id = pg_current_xact_id()
        ), named as (
            select m.namespace_id, m.channel,
                   row_number() over (order by m.namespace_id, m.channel)::integer as n
            from mine m
            group by m.namespace_id, m.channel
        ), messages as (
            select m.*, n.n from mine m join named n using (namespace_id, channel)
        )
        select c.namespaces, c.names, a.*
        from (
            select array_agg(n.namespace_id order by n.n) as namespaces,
                   array_agg(n.channel order by n.n) as names
            from named n
        ) c, (
            select array_agg(1 order by m.ord) as request, array_agg(m.n order by m.ord) as channel,
                   array_agg(m.type order by m.ord) as types, array_agg(m.key order by m.ord) as keys,
                   array_agg(m.data::text order by m.ord) as data,
                   array_agg(null::bytea order by m.ord) as bin,
                   array_agg(m.headers::text order by m.ord) as headers,
                   array_agg(m.sender order by m.ord) as senders,
                   array_agg(m.ttl order by m.ord) as ttls,
                   case when count(m.change) > 0 then array_agg(m.change order by m.ord) end as changes,
                   array_agg(m.version order by m.ord) as versions, array_agg(m.moderates order by m.ord) as moderates
            from messages m
        ) a
        where a.request is not null
    ) x;
    delete from gapless.outbox o where o.transaction_id = pg_current_xact_id();
    if status > 0 then
        perform gapless_internal.refuse_change(status);
    end if;
end $$;

-- This function was once in the other schema. The trigger refers to it by its id, so it is moved: creating
-- the trigger again would wait for every transaction that publishes.
do $$
begin
    if to_regprocedure('gapless.flush_outbox()') is not null
       and to_regprocedure('gapless_internal.flush_outbox()') is null then
        alter function gapless.flush_outbox() set schema gapless_internal;
    end if;
end $$;

-- Runs when a row was added to gapless.commits, just before the commit: gives back the dead letters that the
-- transaction replays, and moves its messages into the log, in this order: subscriptions are locked before channels.
-- It must not run earlier, whatever constraint mode the caller sets: from here on ids and channel
-- locks are held, and only the commit itself may follow. At `prepare transaction` it runs then, and ids and locks
-- are held until `commit prepared`: no time limit ends a prepared transaction.
--
-- `set constraints all immediate` runs it early. It notices this by adding a second row. A deferred trigger
-- runs only at the commit: if the trigger of the second row does not run at once, and this one runs, the
-- commit has come. If it does run at once, this trigger defers itself again, and stays deferred from then on.
create or replace function gapless_internal.flush_outbox() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if new.kind = 1 then
        delete from gapless.commits c where c.transaction_id = new.transaction_id and c.kind = 1;
        if not found then
            -- The commit has come. Other deferred triggers have run and may have changed this setting.
            perform gapless_internal.commit_to_disk();
        end if;
        return null;
    end if;
    insert into gapless.commits (kind) values (1);
    delete from gapless.commits c where c.transaction_id = new.transaction_id and c.kind = 1;
    if not found then
        set constraints gapless.publish_at_commit deferred;
        delete from gapless.commits c where c.transaction_id = new.transaction_id and c.kind = 0;
        insert into gapless.commits (kind) values (0);
        return null;
    end if;
    delete from gapless.commits c where c.transaction_id = new.transaction_id;
    perform gapless_internal.limit_waits();
    perform gapless_internal.give_back_replays();
    perform gapless_internal.append_outbox();
    return null;
end $$;

do $$
begin
    if not exists (select from pg_trigger t
                   where t.tgrelid = 'gapless.commits'::regclass and t.tgname = 'publish_at_commit') then
        create constraint trigger publish_at_commit after insert on gapless.commits
            deferrable initially deferred for each row execute function gapless_internal.flush_outbox();
        -- Also if session_replication_role is `replica`, as in sessions that apply logical replication.
        alter table gapless.commits enable always trigger publish_at_commit;
    end if;
end $$;
