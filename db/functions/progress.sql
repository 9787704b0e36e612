-- Where a subscription stands.

-- Without its row (it was restored from a dump that is not whole) nothing may be said about it: what is settled and what
-- is not, nobody knows. A seek says where it goes on. Whoever reads progress does it in a statement of its own: inside
-- of another it would read with a snapshot of before it waited for gapless.compact.
create or replace function gapless.no_progress(p_subscription_id integer) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'subscription % has no progress: it was restored from a dump that is not whole; seek it to where '
                    'it is to go on', p_subscription_id using errcode = 'GL500';
end $$;
