-- The log's history: which server gave out its ids, and what happens when another server takes over.
--
-- A standby that is promoted, or a database that is restored, holds an earlier moment of the log. Clients may
-- have seen messages that it lacks. So the first tick or publish on it puts up a fence: no id of the lost
-- past is given out again, and readers whose cursor may come from there are told.

-- Whether this is the database where the last fence was written, without a crash since. A promotion begins
-- another timeline. A copy made by `create database ... template` has another oid. A restored dump wrote the
-- row in another transaction than the one that the row names. A crash, or a physical copy, empties the
-- unlogged table.
create or replace function gapless_internal.is_same_history() returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from (select f.*, f.xmin as written from gapless.fences f order by f.number desc limit 1) f
        where f.timeline = gapless_internal.timeline() and f.database = gapless_internal.database_oid()
          and f.written = f.transaction::xid)
        and exists (select from gapless.lives)
$$;

-- The timeline that is written to now. Raises an error on a standby: nothing is decided there.
create or replace function gapless_internal.timeline() returns integer
language sql volatile as $$
    select ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer
$$;

-- The oid of this database. A copy has another one.
create or replace function gapless_internal.database_oid() returns oid
language sql stable as $$
    select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()
$$;

-- Puts up a fence if the history differs from that of the last fence, or if p_disowned is the epoch in force:
-- the caller has seen more of that epoch than is here, and knew of the fences up to the number p_known. After
-- a crash of the same server the epoch stays, because a crash loses nothing that was committed. But others
-- may have seen ids that were taken and not committed, so ids jump after a crash too. So a copy of the
-- server's files that was started again never gives out ids that the original gave.
create or replace function gapless.fence(p_disowned uuid default null, p_known integer default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '10s' as $$
declare
    known record;
    moved boolean;
    newest bigint;
    in_doubt bigint;
    lost_from bigint;
    beginning bigint;
begin
    perform gapless_internal.commit_to_disk();
    perform gapless_internal.needs_fresh_snapshots();
    lock table gapless.publishing_lock in exclusive mode;
    select f.*, f.xmin as written into known from gapless.fences f order by f.number desc limit 1;
    moved := known.number is not null and (
        known.timeline <> gapless_internal.timeline() or known.database <> gapless_internal.database_oid()
        or known.written <> known.transaction::xid or known.epoch is not distinct from p_disowned);
    if known.number is not null and not moved and exists (select from gapless.lives) then
        return;
    end if;
    insert into gapless.lives default values on conflict do nothing;
    if known.number is null then
        insert into gapless.fences (number, kind, epoch, timeline, database, newest, lost_from, in_doubt, base)
        select 0, 'begun', l.epoch, gapless_internal.timeline(), gapless_internal.database_oid(), 0, 0, 0, 0
        from gapless.log l;
        return;
    end if;
    newest := (select greatest(l.trimmed_id, (select max(c.last_id) from gapless.channels c),
                               (select max(d.last_id) from gapless.deleted_channels d)) from gapless.log l);
    in_doubt := gapless_internal.first_in_doubt();
    lost_from := gapless_internal.last_id() + 1;
    if moved then
        -- Fences since then that looked like crashes are where the caller lost sight of this history.
        lost_from := least(in_doubt, (select min(f.in_doubt) from gapless.fences f
                                      where f.number > p_known and f.kind = 'crashed'));
    end if;
    beginning := gapless_internal.jump();
    if moved then
        update gapless.log set epoch = gen_random_uuid();
    end if;
    insert into gapless.fences (number, kind, epoch, timeline, database, newest, lost_from, in_doubt, base)
    select known.number + 1, case when moved then 'moved' else 'crashed' end, l.epoch, gapless_internal.timeline(),
           gapless_internal.database_oid(), newest, lost_from, in_doubt, beginning
    from gapless.log l;
end $$;

-- The smallest id that the lost past may have given to a message which is not here. Publishers have 5 s from
-- stamping a message to the commit, so messages stamped 10 s before the newest one are all here. Above that,
-- the first id without a message may have belonged to a lost one.
create or replace function gapless_internal.first_in_doubt() returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    with newest as (
        select m.id, m.created_at from gapless.messages m order by m.id desc limit 1
    ), sure as (
        select greatest(gapless.id_before((select n.created_at from newest n)), l.trimmed_id, (
                   select max(f.base) - 1 from gapless.fences f where f.kind <> 'crashed')) as id
        from gapless.log l
    ), rows as (
        select m.id, lag(m.id, 1, (select s.id from sure s)) over (order by m.id) as before
        from gapless.messages m where m.id > (select s.id from sure s)
    )
    select coalesce((select min(r.before) + 1 from rows r where r.before + 1 < r.id),
                    greatest((select n.id from newest n), (select s.id from sure s)) + 1)
$$;

-- Moves every sequence whose numbers others may hold beyond all numbers that any other history can have given
-- out: to the time in microseconds. Ids are taken more slowly than microseconds pass, so no history that
-- began earlier has come this far, wherever it went on. Messages begin a segment there. Returns the first id.
-- No session publishes meanwhile.
create or replace function gapless_internal.jump() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    span constant bigint := 16777216;
    microseconds constant bigint := extract(epoch from clock_timestamp()) * 1000000;
    highest constant bigint := greatest(microseconds, gapless_internal.last_id() + span,
                                        (select max(upper) from gapless.segments));
    base constant bigint := (highest / span + 1) * span;
    counter regclass;
begin
    perform gapless_internal.add_segment(base);
    perform setval('gapless.message_id', base - 1, true);
    update gapless.segments g set opened_at = now() where g.lower = base;
    foreach counter in array array['gapless.kept_id_seq', 'gapless.dead_letters_id_seq',
                                   'gapless.scheduled_id_seq']::regclass[] loop
        perform setval(counter, greatest(microseconds, coalesce(pg_sequence_last_value(counter), 0) + span), true);
    end loop;
    return base;
end $$;
