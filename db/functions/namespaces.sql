-- Namespaces.

-- Creates the namespace of this name if it is missing; returns its id.
create or replace function gapless.ensure_namespace(p_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id integer;
begin
    select n.id into found_id from gapless.namespaces n where n.name = p_name;
    if found_id is null then
        perform gapless_internal.add_namespace(p_name);
        select n.id into found_id from gapless.namespaces n where n.name = p_name;
    end if;
    return found_id;
end $$;

-- Adds the namespace of this name if it is missing; returns whether it was. One of this name may have been removed
-- before: its channels were deleted at the last id or before it.
create or replace function gapless_internal.add_namespace(p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into gapless.namespaces (name, deletion_id) values (p_name, gapless_internal.last_id()) on conflict do nothing;
    return found;
end $$;

-- Makes a namespace that every process serves, or makes an existing one such; sets its limits unless null. Returns
-- whether it was made.
create or replace function gapless.put_namespace(p_name text, p_limits jsonb) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most constant integer := 10000;
    made constant boolean := gapless_internal.add_namespace(p_name);
begin
    if made and (select count(*) from gapless.namespaces) > most then
        raise exception 'there are % namespaces, which is the most; nothing was stored', most using errcode = 'GL429';
    end if;
    update gapless.namespaces n set shared = true, limits = coalesce(p_limits, n.limits) where n.name = p_name;
    return made;
end $$;

-- Removes all keys, and up to p_limit rows of each kind that no lock guards: what is scheduled, what Spark left, the
-- names of deleted channels. Returns how many there were. Keys of idempotency go by age.
create or replace function gapless.empty_namespace(p_namespace_id integer, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    removed integer;
    total integer := gapless_internal.revoke_keys(p_namespace_id);
begin
    with gone as (
        select x.id from gapless.scheduled x where x.namespace_id = p_namespace_id limit p_limit for update skip locked
    )
    delete from gapless.scheduled x using gone g where x.id = g.id;
    get diagnostics removed = row_count;
    total := total + removed;
    with gone as (
        select x.id from gapless.spark_attempts x where x.namespace_id = p_namespace_id
        limit p_limit for update skip locked
    )
    delete from gapless.spark_attempts x using gone g where x.id = g.id;
    get diagnostics removed = row_count;
    total := total + removed;
    with gone as (
        select x.query, x.batch from gapless.spark_batches x where x.namespace_id = p_namespace_id
        limit p_limit for update skip locked
    )
    delete from gapless.spark_batches x using gone g
    where x.namespace_id = p_namespace_id and x.query = g.query and x.batch = g.batch;
    get diagnostics removed = row_count;
    total := total + removed;
    with gone as (
        select x.name from gapless.deleted_names x where x.namespace_id = p_namespace_id
        limit p_limit for update skip locked
    )
    delete from gapless.deleted_names x using gone g where x.namespace_id = p_namespace_id and x.name = g.name;
    get diagnostics removed = row_count;
    return total + removed;
end $$;

-- Removes a namespace that holds nothing but a few channels; returns whether it did. Publishers wait until this ends:
-- otherwise one that publishes all the time would always come in between. Rows in it that others are about to commit
-- refer to it, so this waits for them, and they keep it; later ones fail.
create or replace function gapless.remove_namespace(p_namespace_id integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
declare
    few text[];
begin
    perform gapless_internal.needs_fresh_snapshots();
    lock table gapless.publishing_lock in exclusive mode;
    few := array(select c.name from gapless.channels c where c.namespace_id = p_namespace_id order by c.name limit 100);
    perform gapless_internal.delete_channels(p_namespace_id, few);
    delete from gapless.deleted_names d where d.namespace_id = p_namespace_id and d.name = any(few);
    delete from gapless.looks l where l.namespace_id = p_namespace_id;
    delete from gapless.namespaces n where n.id = p_namespace_id;
    return true;
exception when foreign_key_violation then
    return false;
end $$;

-- Notes this definitions file as the last one imported; returns whether it differs from the one before. The
-- caller holds the definitions lock.
create or replace function gapless.import_once(p_namespace_id integer, p_digest bytea) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with taken as (
        update gapless.namespaces n set imported = p_digest
        where n.id = p_namespace_id and n.imported is distinct from p_digest
        returning 1
    )
    select exists (select from taken)
$$;
