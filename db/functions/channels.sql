-- Channels: creating, locking, settings, deleting.

-- Locks the named channels in one order. Missing ones are created with the settings that policies give them.
-- Arrays come back in the order of p_names.
create or replace function gapless_internal.lock_channels(
    p_namespaces integer[], p_names text[], p_create boolean,
    out ids bigint[], out last_ids bigint[], out last_seqs bigint[], out ttls double precision[],
    out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    -- Create before locking: a writer that waits for another's new row holds no other row yet. No session
    -- deletes a channel in between, because that takes the publishing lock exclusively.
    if p_create and exists (
        select from unnest(p_namespaces, p_names) as w (namespace_id, name)
        where not exists (
            select from gapless.channels c
            where c.namespace_id = w.namespace_id and c.name = w.name))
    then
        lock table gapless.definitions_lock in row share mode;
        if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
            -- Policies and deletions are read with the transaction's snapshot. If one came since, this row
            -- changed too: the statement fails with 40001, and a retry of the transaction sees it.
            perform from gapless.namespaces n where n.id = any(p_namespaces) order by n.id for share;
        end if;
        insert into gapless.channels (namespace_id, name, deletion_id, max_age, max_messages, message_ttl, origins)
        select w.namespace_id, w.name, gapless_internal.last_deletion(w.namespace_id, w.name),
               (r.settings ->> 'max_age')::integer, (r.settings ->> 'max_messages')::bigint,
               (r.settings ->> 'message_ttl')::double precision, coalesce(r.origins, '{}')
        from unnest(p_namespaces, p_names) as w (namespace_id, name)
        left join gapless_internal.policy_settings(p_namespaces, p_names) r
               on r.namespace_id = w.namespace_id and r.name = w.name
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

-- Called before channels are created in another way than by publishing: no channel is deleted until this
-- transaction ends. An insertion takes its id first and then waits for a session that deletes the channel of
-- that name. If other sessions created and deleted that channel again meanwhile, the id would be smaller than
-- theirs.
create or replace function gapless_internal.make_channels() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- Publishers hold it in row share mode. This lock takes no ids of messages and does not hold back the
    -- watermark.
    lock table gapless.publishing_lock in row exclusive mode;
end $$;

-- Creates a channel or changes its own settings, then updates the settings in force. p_patch: only the given
-- members change ('max_age', 'max_messages', 'message_ttl'; a JSON null clears one); otherwise the settings
-- become exactly p_settings. A null id: p_patch was asked for a channel that does not exist. `made`: this
-- call created the channel.
create or replace function gapless.set_channel(
    p_namespace_id integer, p_name text, p_settings jsonb, p_patch boolean, out channel_id bigint, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    perform gapless_internal.share_definitions();
    if not p_patch then
        perform gapless_internal.make_channels();
        insert into gapless.channels (namespace_id, name, deletion_id)
        values (p_namespace_id, p_name, gapless_internal.last_deletion(p_namespace_id, p_name))
        on conflict do nothing returning id into channel_id;
        made := channel_id is not null;
    end if;
    update gapless.channels c
    set own = jsonb_strip_nulls(case when p_patch then c.own || p_settings else p_settings end)
    where c.namespace_id = p_namespace_id and c.name = p_name
    returning c.id into channel_id;
    perform gapless_internal.refresh_channels(p_namespace_id, array[p_name], null);
end $$;

-- As gapless.set_channel without p_patch, for many channels: for an import, which holds the definitions lock.
create or replace function gapless.set_channels(p_namespace_id integer, p_names text[], p_settings jsonb[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.make_channels();
    perform gapless.lock_definitions();
    insert into gapless.channels (namespace_id, name, deletion_id, own)
    select p_namespace_id, w.name, gapless_internal.last_deletion(p_namespace_id, w.name), jsonb_strip_nulls(w.settings)
    from unnest(p_names, p_settings) as w (name, settings)
    order by w.name collate "C" on conflict do nothing;
    perform gapless.lock_defined_channels(p_namespace_id, p_names, null);
    update gapless.channels c set own = jsonb_strip_nulls(w.settings)
    from unnest(p_names, p_settings) as w (name, settings)
    where c.namespace_id = p_namespace_id and c.name = w.name and c.own <> jsonb_strip_nulls(w.settings);
    perform gapless_internal.refresh_channels(p_namespace_id, p_names, null);
end $$;

-- Locks the channels that an import is about to change, in the order in which all sessions lock channels: the
-- import itself would take them in the order of its document. Channels that it will create are not visible to
-- others.
create or replace function gapless.lock_defined_channels(p_namespace_id integer, p_names text[], p_regex text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform from gapless.channels c
    where c.id in (select gapless_internal.channels_of(p_namespace_id, p_names, p_regex))
    order by c.id for no key update;
end $$;

-- Deletes a channel; returns whether it was there.
create or replace function gapless.delete_channel(p_namespace_id integer, p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
begin
    return gapless_internal.delete_channels(p_namespace_id, array[p_name]) > 0;
end $$;

-- Deletes p_limit channels of a namespace; returns how many there were.
create or replace function gapless.delete_some_channels(p_namespace_id integer, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
begin
    return gapless_internal.delete_channels(p_namespace_id, array(
        select c.name from gapless.channels c where c.namespace_id = p_namespace_id order by c.name limit p_limit));
end $$;

-- Deletes channels under the exclusive publishing lock; returns how many there were. Without the lock, a publisher that
-- finds its channel deleted half way would have to create it again while it holds others, and two such publishers could
-- deadlock.
create or replace function gapless_internal.delete_channels(p_namespace_id integer, p_names text[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deleted integer;
begin
    perform gapless_internal.needs_fresh_snapshots();
    lock table gapless.publishing_lock in exclusive mode;
    perform gapless_internal.share_definitions();
    with gone as (
        delete from gapless.channels c where c.namespace_id = p_namespace_id and c.name = any(p_names)
        returning c.id, c.last_id
    )
    insert into gapless.deleted_channels (channel_id, last_id) select g.id, g.last_id from gone g;
    get diagnostics deleted = row_count;
    return deleted;
end $$;

-- The last id that was taken when a channel of this name was last deleted; 0 if none was. If the name may have been
-- forgotten, the largest id that it can be. Who makes a channel holds the publishing lock, so no deletion comes in
-- between.
create or replace function gapless_internal.last_deletion(p_namespace_id integer, p_name text) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce((select d.deletion_id from gapless.deleted_names d
                     where d.namespace_id = n.id and d.name = p_name), n.forgotten_id, n.deletion_id)
    from gapless.namespaces n where n.id = p_namespace_id
$$;

-- Runs when a channel that had messages was deleted, under the exclusive publishing lock: remembers its name, and
-- forgets the oldest names, so that each namespace keeps those of its 100,000 newest deletions. A trigger, because a
-- call that began before an update of the functions runs on with the old text.
create or replace function gapless_internal.note_deletion() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    kept constant bigint := 100000;
    nth bigint;
begin
    update gapless.namespaces n
    set deletions = n.deletions + 1, forgotten_id = coalesce(n.forgotten_id, n.deletion_id),
        deletion_id = gapless_internal.last_id()
    where n.id = old.namespace_id
    returning n.deletions into nth;
    insert into gapless.deleted_names as d (namespace_id, name, number, deletion_id)
    values (old.namespace_id, old.name, nth, gapless_internal.last_id())
    on conflict (namespace_id, name) do update set number = excluded.number, deletion_id = excluded.deletion_id;
    with forgotten as (
        delete from gapless.deleted_names d where d.namespace_id = old.namespace_id and d.number <= nth - kept
        returning d.deletion_id
    )
    update gapless.namespaces n set forgotten_id = greatest(n.forgotten_id, f.deletion_id)
    from (select max(x.deletion_id) as deletion_id from forgotten x) f
    where n.id = old.namespace_id and f.deletion_id is not null;
    return null;
end $$;

do $$
begin
    if not exists (select from pg_trigger t
                   where t.tgrelid = 'gapless.channels'::regclass and t.tgname = 'note_deletion') then
        create trigger note_deletion after delete on gapless.channels
            for each row when (old.last_seq > 0) execute function gapless_internal.note_deletion();
        alter table gapless.channels enable always trigger note_deletion;
    end if;
end $$;
