-- Tickets: each opens one stream.

-- Stores a ticket for p_seconds; returns when it ends. Removes up to p_limit that ended.
create or replace function gapless.put_ticket(
    p_digest bytea, p_namespace_id integer, p_holder jsonb, p_seconds double precision, p_limit integer
) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    ends_at constant timestamptz := clock_timestamp() + p_seconds * interval '1 second';
begin
    delete from gapless.tickets t using (
        select x.digest from gapless.tickets x where x.expires_at < clock_timestamp()
        order by x.expires_at limit p_limit for update skip locked
    ) gone where t.digest = gone.digest;
    insert into gapless.tickets (digest, namespace_id, holder, expires_at)
    values (p_digest, p_namespace_id, p_holder, ends_at);
    return ends_at;
end $$;

-- Takes a ticket: it is gone with the commit, so nobody can take it again. No row: it was taken, or it has ended, or there
-- never was one.
create or replace function gapless.take_ticket(p_digest bytea, out namespace text, out holder jsonb)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with taken as (
        delete from gapless.tickets t where t.digest = p_digest
        returning t.namespace_id, t.holder, t.expires_at
    )
    select n.name, t.holder from taken t join gapless.namespaces n on n.id = t.namespace_id
    where t.expires_at > clock_timestamp()
$$;
