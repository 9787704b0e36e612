-- Namespaces.

-- Creates the namespace of this name if it is missing; returns its id.
create or replace function gapless.ensure_namespace(p_name text) returns integer
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
