-- Progress: where a subscription stands.

-- Raises an error for a subscription without its progress row (it was restored from a dump that is not
-- whole): it is unknown which messages are settled. A seek sets where it goes on. Read progress in a
-- statement of its own: inside another statement it would be read with a snapshot from before the wait for
-- gapless.compact.
create or replace function gapless_internal.no_progress(p_subscription_id integer) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'subscription % has no progress: it was restored from a dump that is not whole; seek it to where '
                    'it is to go on', p_subscription_id using errcode = 'GL500';
end $$;
