-- Basics for functions that take a lock and then read. The locks themselves: see migrations/0001_log.sql.

-- Refuses a transaction that keeps one snapshot from its first statement on: after taking a lock it would
-- still read the state from before others held that lock, and write it back.
create or replace function gapless_internal.needs_fresh_snapshots() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        raise exception 'this decides by what it reads after it has its lock, and cannot at isolation level %',
            current_setting('transaction_isolation')
            using errcode = '25001', hint = 'Begin the transaction at read committed.';
    end if;
end $$;

-- Blocks all other changes of definitions, and retention, until the transaction ends. It may wait for them.
create or replace function gapless.lock_definitions() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.needs_fresh_snapshots();
    perform gapless_internal.hold_retention();
    lock table gapless.definitions_lock in exclusive mode;
end $$;

-- Blocks changes of policies. Publishers, which may have any isolation level, do it themselves: see
-- gapless_internal.lock_channels.
create or replace function gapless_internal.share_definitions() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.needs_fresh_snapshots();
    lock table gapless.definitions_lock in row share mode;
end $$;

-- Takes subscription locks, in order of ids. Every decision uses gapless.progress first, and the other queue
-- tables after it: see gapless.compact.
create or replace function gapless_internal.lock_subscriptions(p_ids integer[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform gapless_internal.needs_fresh_snapshots();
    end if;
    lock table gapless.progress in row exclusive mode;
    if cardinality(p_ids) = 1 then
        perform from gapless.progress p where p.subscription_id = p_ids[1] for update;
    else
        perform from gapless.progress p where p.subscription_id = any(p_ids) order by p.subscription_id for update;
    end if;
end $$;

-- The same for one, without waiting: false if another session is deciding at the moment.
create or replace function gapless_internal.try_lock_subscription(p_id integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.needs_fresh_snapshots();
    lock table gapless.progress in row exclusive mode;
    perform from gapless.progress p where p.subscription_id = p_id for update skip locked;
    return found or not exists (select from gapless.progress p where p.subscription_id = p_id);
end $$;

-- A reader must never see what a crash could take back, so a commit is on disk before it is visible.
create or replace function gapless_internal.commit_to_disk() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;

-- For a transaction that is about to hold ids, and locks of channels or subscriptions: the database ends it if it
-- stays longer than 5 s.
create or replace function gapless_internal.limit_waits() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    setting text;
begin
    foreach setting in array '{lock_timeout,idle_in_transaction_session_timeout,transaction_timeout}'::text[] loop
        if current_setting(setting, true) is not null then
            perform set_config(setting, '5s', true);
        end if;
    end loop;
end $$;

-- The transactions that hold the publishing lock and so may have taken ids. A lock in row share mode may be
-- known only to its own backend (pg_locks.fastpath). pg_locks reads the backends first and the shared table
-- afterwards, and a lock moves only in that direction, so a lock that is held all the time is seen.
create or replace function gapless.holders() returns text[]
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(array_agg(distinct l.virtualtransaction), '{}')
    from pg_locks l
    where l.locktype = 'relation' and l.relation = 'gapless.publishing_lock'::regclass
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.mode = 'RowShareLock' and l.granted
$$;

-- Ends the sessions that hold the publishing lock in these transactions. Returns how many it ended, and how
-- many it may not end. The owner of this function may end its own sessions, and others with the role
-- pg_signal_backend.
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
