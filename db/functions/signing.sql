-- What signs receipts and hints: gapless.signing_secrets.

-- Gives a purpose ('receipts', 'hints') a new secret. It signs after ten seconds, when every process that reaches the
-- database knows it. What others signed is accepted for so long after that, and for ten seconds at least: a process may
-- see a little later that the new one signs. Returns when that begins. Only the owner may call it.
create or replace function gapless.rotate_secret(p_purpose text, p_overlap interval default '1 day') returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    new_at timestamptz;
begin
    if p_overlap is null or p_overlap < '0' then
        raise exception 'the overlap is negative' using errcode = '22023';
    end if;
    perform gapless_internal.needs_fresh_snapshots();
    -- One session at a time.
    perform from gapless.log l for no key update;
    new_at := clock_timestamp() + interval '10 s';
    delete from gapless.signing_secrets s where s.ends_at <= clock_timestamp();
    -- One that did not sign yet never will.
    delete from gapless.signing_secrets s where s.purpose = p_purpose and s.signs_at > clock_timestamp();
    update gapless.signing_secrets s set ends_at = least(s.ends_at, new_at + greatest(p_overlap, '10 s')) where s.purpose = p_purpose;
    insert into gapless.signing_secrets (purpose, secret, signs_at)
    values (p_purpose, sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')), new_at);
    return new_at;
end $$;
