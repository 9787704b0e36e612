-- Processes that stream deliveries: their leases end with them.

-- For which process the claims of this transaction are; 0: for none, their leases outlive it.
create or replace function gapless.streaming_process() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(nullif(current_setting('gapless.holder', true), ''), '0')::bigint
$$;

-- The process is there for as long as this session is, or one in which it enters later. Anybody may take an advisory
-- lock. So its key is new each time, nobody is waited for, and only this session's lock of it counts.
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

-- Processes that are gone. One that lost its session, as all do when Postgres restarts, has two seconds to enter
-- again and keep its leases.
create or replace function gapless.gone_processes() returns setof bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select p.holder from gapless.processes p where p.missing_since <= clock_timestamp() - interval '2 seconds'
$$;

-- Of processes that are gone. Until now their members used what they read.
create or replace function gapless.forget_attendance() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    attended integer[] := array(select a.subscription_id from gapless.attendance a
                                where a.holder in (select gapless.gone_processes()));
begin
    if attended <> '{}' then
        perform gapless.lock_subscriptions(attended);
        perform gapless.note_use(a, clock_timestamp()) from unnest(attended) a;
        delete from gapless.attendance a where a.holder in (select gapless.gone_processes());
    end if;
end $$;

-- Looks who is there, and returns what those who are gone still hold in these namespaces. Who holds nothing any more
-- is forgotten.
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
    if not exists (select from gapless.gone_processes()) then
        return;
    end if;
    perform gapless.forget_attendance();
    delete from gapless.processes p
    where p.holder in (select gapless.gone_processes())
      and not exists (select from gapless.deliveries d where d.state = 0 and d.holder = p.holder);
    return query
        select distinct d.holder, d.subscription_id
        from gapless.deliveries d join gapless.subscriptions s on s.id = d.subscription_id
        where d.state = 0 and d.holder in (select gapless.gone_processes()) and s.namespace_id = any(p_namespaces);
end $$;

-- Ends leases of a process that is gone: as if it had closed its streams. Of each stream all at once, for what is in
-- doubt is judged by what its stream held beside it; so more than p_limit only where one stream holds more.
create or replace function gapless.release_departed(
    p_holder bigint, p_subscription_id integer, p_limit integer, out done integer, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    messages bigint[];
    leases bigint[];
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    select array_agg(x.message_id order by x.message_id), array_agg(x.lease order by x.message_id)
    into messages, leases
    from (select d.message_id, d.lease, count(*) over (partition by d.member) as held,
                 count(*) over (order by d.member) as up_to_here
          from gapless.deliveries d
          where d.subscription_id = p_subscription_id and d.state = 0 and d.holder = p_holder
            and p_holder in (select gapless.gone_processes())) x
    where x.up_to_here <= p_limit or x.up_to_here = x.held;
    done := coalesce(cardinality(messages), 0);
    if done > 0 then
        select r.touched into touched from gapless.release(p_subscription_id, messages, leases, true) r;
    end if;
end $$;

-- In this process somebody waits for messages of the subscription: a stream of deliveries, or a pull. Whether it is
-- there. Under its lock, so that whoever removes what is not used comes before it or finds it.
create or replace function gapless.attend(p_subscription_id integer, p_holder bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    if not exists (select from gapless.subscriptions s where s.id = p_subscription_id) then
        return false;
    end if;
    insert into gapless.attendance (subscription_id, holder) values (p_subscription_id, p_holder) on conflict do nothing;
    perform gapless.note_use(p_subscription_id, clock_timestamp());
    return true;
end $$;

-- Nobody does any more.
create or replace function gapless.leave(p_subscription_id integer, p_holder bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    delete from gapless.attendance a where a.subscription_id = p_subscription_id and a.holder = p_holder;
    if found then
        perform gapless.note_use(p_subscription_id, clock_timestamp());
    end if;
end $$;

-- Whether it has a member in any process. One that is gone counts for two seconds more.
create or replace function gapless.is_attended(p_subscription_id integer) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from gapless.attendance a join gapless.processes p on p.holder = a.holder
        where a.subscription_id = p_subscription_id and p.holder not in (select gapless.gone_processes()))
$$;
