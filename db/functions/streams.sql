-- Processes that stream deliveries: their leases end with them.

-- The process for which this transaction claims; 0: none, and the leases outlive the process.
create or replace function gapless_internal.streaming_process() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(nullif(current_setting('gapless.holder', true), ''), '0')::bigint
$$;

-- Enters a process: it counts as there as long as this session, or a later one in which it enters. Any
-- session may take an advisory lock. So the key is new each time, this never waits, and only this session's
-- lock counts.
create or replace function gapless.enter(p_holder bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    fresh bigint;
begin
    loop
        fresh := hashtextextended(gen_random_uuid()::text, 0);
        exit when pg_try_advisory_lock_shared(fresh);
    end loop;
    insert into gapless.processes (holder, key, session) values (p_holder, fresh, pg_backend_pid())
    on conflict (holder) do update
    set key = excluded.key, session = excluded.session, missing_since = null;
end $$;

-- Processes that are gone. A process that lost its session, as all do when Postgres restarts, has two seconds
-- to enter again and keep its leases.
create or replace function gapless_internal.gone_processes() returns setof bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select p.holder from gapless.processes p where p.missing_since <= clock_timestamp() - interval '2 seconds'
$$;

-- Removes the attendance of processes that are gone. Until now their members counted as using the
-- subscriptions.
create or replace function gapless_internal.forget_attendance() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    attended integer[] := array(select a.subscription_id from gapless.attendance a
                                where a.holder in (select gapless_internal.gone_processes()));
begin
    if attended <> '{}' then
        perform gapless_internal.lock_subscriptions(attended);
        perform gapless_internal.note_use(a, clock_timestamp()) from unnest(attended) a;
        delete from gapless.attendance a where a.holder in (select gapless_internal.gone_processes());
    end if;
end $$;

-- Checks which processes are there, and returns the leases in these namespaces of those that are gone. A
-- process that holds nothing any more is forgotten.
create or replace function gapless.departed(p_namespaces integer[])
returns table (holder bigint, subscription_id integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    with seen as materialized (
        select p.holder, exists (
            select from pg_locks l
            where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.pid = p.session
              and l.database = (select d.oid from pg_database d where d.datname = current_database())
              and l.classid::bigint = (p.key >> 32) & 4294967295 and l.objid::bigint = p.key & 4294967295) as present
        from gapless.processes p
    )
    update gapless.processes p
    set missing_since = case when not s.present then clock_timestamp() end
    from seen s where s.holder = p.holder and s.present = (p.missing_since is not null);
    if not exists (select from gapless_internal.gone_processes()) then
        return;
    end if;
    perform gapless_internal.forget_attendance();
    delete from gapless.processes p
    where p.holder in (select gapless_internal.gone_processes())
      and not exists (select from gapless.deliveries d where d.state = 0 and d.holder = p.holder);
    return query
        select distinct d.holder, d.subscription_id
        from gapless.deliveries d join gapless.subscriptions s on s.id = d.subscription_id
        where d.state = 0 and d.holder in (select gapless_internal.gone_processes())
          and s.namespace_id = any(p_namespaces);
end $$;

-- Ends leases of a process that is gone, as if it had closed its streams. The leases of one stream end
-- together, because a message in doubt is judged by what its stream held beside it. So it ends more than
-- p_limit only if one stream holds more.
create or replace function gapless.release_departed(
    p_holder bigint, p_subscription_id integer, p_limit integer, out done integer, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    messages bigint[];
    leases bigint[];
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    select array_agg(x.message_id order by x.message_id), array_agg(x.lease order by x.message_id)
    into messages, leases
    from (select d.message_id, d.lease, count(*) over (partition by d.member) as held,
                 count(*) over (order by d.member) as up_to_here
          from gapless.deliveries d
          where d.subscription_id = p_subscription_id and d.state = 0 and d.holder = p_holder
            and p_holder in (select gapless_internal.gone_processes())) x
    where x.up_to_here <= p_limit or x.up_to_here = x.held;
    done := coalesce(cardinality(messages), 0);
    if done > 0 then
        select r.touched into touched from gapless.release(p_subscription_id, messages, leases, true) r;
    end if;
end $$;

-- Notes that this process has a member of the subscription: a stream of deliveries, or a pull. Returns
-- whether the subscription exists. It runs under its lock, so that a session that removes unused
-- subscriptions comes before it or finds the member.
create or replace function gapless.attend(p_subscription_id integer, p_holder bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    if not exists (select from gapless.subscriptions s where s.id = p_subscription_id) then
        return false;
    end if;
    insert into gapless.attendance (subscription_id, holder) values (p_subscription_id, p_holder)
    on conflict do nothing;
    perform gapless_internal.note_use(p_subscription_id, clock_timestamp());
    return true;
end $$;

-- Notes that this process has no members of the subscription any more.
create or replace function gapless.leave(p_subscription_id integer, p_holder bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    delete from gapless.attendance a where a.subscription_id = p_subscription_id and a.holder = p_holder;
    if found then
        perform gapless_internal.note_use(p_subscription_id, clock_timestamp());
    end if;
end $$;

-- Whether it has a member in any process. A process that is gone counts for two seconds more.
create or replace function gapless_internal.is_attended(p_subscription_id integer) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from gapless.attendance a join gapless.processes p on p.holder = a.holder
        where a.subscription_id = p_subscription_id and p.holder not in (select gapless_internal.gone_processes()))
$$;
