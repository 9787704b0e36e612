-- What "take the lock, then read" rests on. The locks themselves: see migrations/0001_log.sql.

-- Refuses a transaction that keeps one snapshot from its first statement on: whoever takes a lock there and then reads
-- sees what was before others held that lock, and would write it back.
create or replace function gapless.needs_fresh_snapshots() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        raise exception 'this decides by what it reads after it has its lock, and cannot at isolation level %',
            current_setting('transaction_isolation')
            using errcode = '25001', hint = 'Begin the transaction at read committed.';
    end if;
end $$;

-- Holds off every other change of definitions until the transaction ends, and retention: it may come to wait.
create or replace function gapless.lock_definitions() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.needs_fresh_snapshots();
    perform gapless.hold_retention();
    lock table gapless.definitions_lock in exclusive mode;
end $$;

-- Holds off changes of policies. Publishers, which may have any isolation, do it themselves: see gapless.lock_channels.
create or replace function gapless.share_definitions() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.needs_fresh_snapshots();
    lock table gapless.definitions_lock in row share mode;
end $$;

-- Subscription locks, by id. Whoever decides comes to gapless.progress first, and to the other tables of what is under
-- way after it: see gapless.compact.
create or replace function gapless.lock_subscriptions(p_ids integer[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform gapless.needs_fresh_snapshots();
    end if;
    lock table gapless.progress in row exclusive mode;
    if cardinality(p_ids) = 1 then
        perform from gapless.progress p where p.subscription_id = p_ids[1] for update;
    else
        perform from gapless.progress p where p.subscription_id = any(p_ids) order by p.subscription_id for update;
    end if;
end $$;

-- Nobody may read what a crash could take back, so a commit is on disk before it is seen.
create or replace function gapless.commit_to_disk() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;

-- The same of one, without waiting: false where somebody else decides at the moment.
create or replace function gapless.try_lock_subscription(p_id integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.needs_fresh_snapshots();
    lock table gapless.progress in row exclusive mode;
    perform from gapless.progress p where p.subscription_id = p_id for update skip locked;
    return found or not exists (select from gapless.progress p where p.subscription_id = p_id);
end $$;

-- Who holds the publishing lock and so may have taken ids. A lock in row share mode may be known to its own backend
-- only (pg_locks.fastpath); pg_locks looks there first and at the shared table afterwards, and a lock moves in that
-- direction only, so one that is held all the time is seen.
create or replace function gapless.holders() returns text[]
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(array_agg(distinct l.virtualtransaction), '{}')
    from pg_locks l
    where l.locktype = 'relation' and l.relation = 'gapless.publishing_lock'::regclass
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.mode = 'RowShareLock' and l.granted
$$;

-- Ends the sessions that hold the publishing lock in these transactions: how many, and how many it may not end. The
-- owner of this function may end its own, and others with the role pg_signal_backend.
create or replace function gapless.end_holders(p_holders text[], out ended integer, out refused integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    holder integer;
begin
    ended := 0;
    refused := 0;
    for holder in
        select distinct l.pid from pg_locks l
        where l.locktype = 'relation' and l.relation = 'gapless.publishing_lock'::regclass and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
          and l.virtualtransaction = any(p_holders) and l.pid <> pg_backend_pid()
    loop
        begin
            ended := ended + pg_terminate_backend(holder)::integer;
        exception when insufficient_privilege then
            refused := refused + 1;
        end;
    end loop;
end $$;
