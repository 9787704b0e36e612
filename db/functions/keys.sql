-- API keys.

-- A number that is not drawn again: after a restore, a count could come to a number that stood for other keys before.
create or replace function gapless_internal.new_version() returns bigint
language sql volatile as $$
    select (pg_catalog.random() * 9007199254740991)::bigint
$$;

-- Stores a key. From then on the installation needs credentials.
create or replace function gapless.create_key(
    p_id text, p_namespace_id integer, p_name text, p_digest bytea, p_grants jsonb, p_operator boolean,
    p_expires_at timestamptz
) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most constant integer := 10000;
    made_at timestamptz;
begin
    -- First, because it makes others wait who create or revoke one.
    update gapless.log l set credentials_required = true, keys_version = gapless_internal.new_version();
    if (select count(*) from gapless.keys) >= most then
        raise exception 'there are % keys, which is the most; nothing was stored', most using errcode = 'GL429';
    end if;
    insert into gapless.keys (id, namespace_id, name, digest, grants, operator, expires_at)
    values (p_id, p_namespace_id, p_name, p_digest, p_grants, p_operator, p_expires_at)
    returning created_at into made_at;
    return made_at;
end $$;

-- Removes a key of a namespace, or of any (null); returns whether it was there.
create or replace function gapless.revoke_key(p_namespace_id integer, p_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.log l set keys_version = gapless_internal.new_version();
    delete from gapless.keys k where k.id = p_id and k.namespace_id = coalesce(p_namespace_id, k.namespace_id);
    return found;
end $$;

-- Removes all keys of a namespace; returns how many there were.
create or replace function gapless_internal.revoke_keys(p_namespace_id integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    revoked integer;
begin
    if not exists (select from gapless.keys k where k.namespace_id = p_namespace_id) then
        return 0;
    end if;
    update gapless.log l set keys_version = gapless_internal.new_version();
    delete from gapless.keys k where k.namespace_id = p_namespace_id;
    get diagnostics revoked = row_count;
    return revoked;
end $$;

-- Has every request need a credential from now on, because one can be checked that is no key.
create or replace function gapless.require_credentials() returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.log l set credentials_required = true, keys_version = gapless_internal.new_version()
    where not l.credentials_required
$$;

-- Revokes all keys and lets requests come without a credential again. Only the owner may call it.
create or replace function gapless.open_installation() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.log l set credentials_required = false, keys_version = gapless_internal.new_version();
    delete from gapless.keys;
end $$;
