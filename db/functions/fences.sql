-- The log's history: which server gave out its ids, and what happens when another server takes over.
--
-- A standby that is promoted, or a database that is restored, holds an earlier moment of the log. Clients may
-- have seen messages that it lacks. So the first tick or publish on it puts up a fence: no id of the lost
-- past is given out again, and readers whose cursor may come from there are told.

-- The newest fence, and whether this is the database where it was written, without a crash since. A promotion begins
-- another timeline. A copy made by `create database ... template` has another oid. A restored dump wrote the
-- row in another transaction than the one that the row names. A crash, or a physical copy, empties the
-- unlogged table; then there is no row.
-- Each append asks: this is put in the place of the call, so nothing is set for it.
create or replace function gapless_internal.newest_fence(out number integer, out is_ours boolean) returns setof record
language sql stable rows 1 as $$
    select f.number, f.timeline = gapless_internal.timeline() and f.database = gapless_internal.database_oid()
           and f.xmin = f.transaction::pg_catalog.xid
    from gapless.fences f, gapless.lives order by f.number desc limit 1
$$;

-- Whether this is the history of the newest fence.
create or replace function gapless_internal.is_same_history() returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    return coalesce((select f.is_ours from gapless_internal.newest_fence() f), false);
end $$;

-- The timeline that is written to now. Raises an error on a standby: nothing is decided there.
create or replace function gapless_internal.timeline() returns integer
language sql volatile as $$
    select ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::integer
$$;

-- The oid of this database, from the path of a table in it. A copy has another one.
create or replace function gapless_internal.database_oid() returns oid
language sql stable as $$
    select pg_catalog.split_part(
        pg_catalog.pg_relation_filepath('gapless.fences'::pg_catalog.regclass), '/', -2)::pg_catalog.oid
$$;

-- Puts up a fence if the history differs from that of the last fence, or if p_disowned is the epoch in force:
-- the caller has seen more of that epoch than is here, and knew of the fences up to the number p_known. After
-- a crash of the same server the epoch stays, because a crash loses nothing that was committed. But others
-- may have seen ids that were taken and not committed, so ids jump after a crash too. A copy of the server's
-- files that was started looks like a crash.
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
    beginning := gapless_internal.jump(moved);
    if moved then
        update gapless.log set epoch = gen_random_uuid();
    end if;
    insert into gapless.fences
        (number, kind, epoch, timeline, database, newest, lost_from, in_doubt, base, recovered)
    select known.number + 1, case when moved then 'moved' else 'crashed' end, l.epoch, gapless_internal.timeline(),
           gapless_internal.database_oid(), newest, lost_from, in_doubt, beginning,
           case when not moved then gapless_internal.recovered() end
    from gapless.log l;
end $$;

-- How far the WAL went that the last crash left, because a recovery ends with a checkpoint. After a further checkpoint
-- it returns a larger number.
create or replace function gapless_internal.recovered() returns bigint
language sql volatile as $$
    select (c.redo_lsn - '0/0'::pg_catalog.pg_lsn)::bigint from pg_catalog.pg_control_checkpoint() c
$$;

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

-- A number to go on after, which other histories do not go on after: anywhere among the p_width (a power of
-- two) above p_given and the clock. The server's strong source decides where: random() goes on the same way in
-- two copies of a machine, and whoever has seen some of its numbers knows the next.
create or replace function gapless_internal.unlike(p_given bigint, p_width bigint) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(p_given, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
           + (('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint & (p_width - 1))
$$;

-- The largest id that a history can have given out at p_time, if p_base was its first one at p_since: at most one every
-- 8 microseconds.
create or replace function gapless_internal.reached(p_base bigint, p_since timestamptz, p_time timestamptz)
returns bigint language sql immutable as $$
    select p_base + (extract(epoch from p_time - p_since) * 125000)::bigint
$$;

-- Moves every sequence whose numbers others may hold beyond all that a history which knows the last fence can
-- have given out, to a random place: histories that do not know of
-- each other may begin at the same moment. A crash happens more often than a promotion, so it uses up less.
-- Messages go on there, in a segment with two spare ones behind it. Returns the first id. No session publishes
-- meanwhile.
create or replace function gapless_internal.jump(p_moved boolean) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    span constant bigint := 16777216;
    width constant bigint := case when p_moved then gapless_internal.widest_jump() else 4294967296 end;
    reached constant bigint := greatest(gapless_internal.last_id() + span, (
        select gapless_internal.reached(f.base, f.at, clock_timestamp())
        from gapless.fences f order by f.number desc limit 1));
    base constant bigint := gapless_internal.unlike(reached, width) + 1;
    counter regclass;
begin
    if not exists (select from gapless.segments g where g.lower <= base and g.upper > base) then
        perform gapless_internal.add_segment(base);
    end if;
    perform setval('gapless.message_id', base - 1, true);
    perform gapless_internal.keep_spares(base);
    update gapless.segments g set opened_at = clock_timestamp() where g.lower <= base and g.upper > base;
    foreach counter in array array['gapless.kept_id_seq', 'gapless.dead_letters_id_seq', 'gapless.scheduled_id_seq',
                                   'gapless.gap_number']::regclass[] loop
        perform setval(counter, gapless_internal.unlike(
            coalesce(pg_sequence_last_value(counter), 0) + span, width), true);
    end loop;
    return base;
end $$;

-- How many ids a jump passes at most: 2^40, as many as 12.7 days have microseconds.
create or replace function gapless_internal.widest_jump() returns bigint
language sql immutable as $$
    select 1099511627776
$$;

-- What a reader at p_cursor may have seen that is not here: ids from first_id to p_cursor. It goes on after
-- `stands`. Nulls: nothing.
--
-- A cursor that a fence passed, close above what was there, is of the history that was lost there. One far above
-- that, or ahead of the log by at most the widest jump, is of a history that this one does not know. Such a
-- history parted from this one before a fence of ours, and began at most a widest jump above what had been reached
-- there: above the clock, and above the fence before. So its reader knows nothing from the oldest fence on of which
-- that can be true, back to where the primary last changed. If it is true of none, the other history parted after our
-- last fence, and its reader knows nothing from the first moment on at which it can have begun. It gets all of that.
-- A caller that followed that history says where it parted from this one (p_parted, the first id that it may
-- lack): one that parted before our fence lacks more.
create or replace function gapless.lost_at(
    p_cursor bigint, p_parted bigint default null, out first_id bigint, out stands bigint
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    span constant bigint := 16777216;
    hour constant bigint := 3600000000;
    now_us constant bigint := extract(epoch from clock_timestamp()) * 1000000;
    least_base constant bigint := p_cursor - gapless_internal.widest_jump() - hour;
    passed gapless.fences;
    parted record;
    since timestamptz;
begin
    select * into passed from gapless.fences f
    where f.lost_from <= p_cursor and f.base > p_cursor order by f.lost_from, f.number limit 1;
    if p_cursor < greatest(passed.lost_from, passed.newest) + span then
        first_id := passed.lost_from;
        stands := p_cursor;
        return;
    end if;
    if passed.number is null and (
        p_cursor <= gapless_internal.last_id()
        or p_cursor > greatest(now_us, gapless_internal.last_id()) + gapless_internal.widest_jump()
        or p_cursor < (select extract(epoch from l.created_at) * 1000000 - hour from gapless.log l)
    ) then
        return;
    end if;
    with fences as (
        select f.*, least_base <= greatest(
                   (extract(epoch from f.at) * 1000000)::bigint,
                   gapless_internal.reached(lag(f.base) over earlier, lag(f.at) over earlier, f.at)) as may_lack
        from gapless.fences f window earlier as (order by f.number)
    )
    select min(f.lost_from) filter (where f.may_lack) as lost_from, min(f.base) filter (where f.may_lack) as base,
           max(f.base) filter (where f.kind = 'moved') as moved
    into parted
    from fences f
    where f.number <= coalesce(passed.number, f.number) and f.base > coalesce((
        -- A history that was disowned had put up fences that looked like crashes: those are unknown too.
        select x.lost_from from gapless.fences x
        where x.kind = 'moved' and x.number <= coalesce(passed.number, x.number)
        order by x.number desc limit 1), 0);
    -- Both by the clock and by the ids since our last fence, the earliest moment from which least_base was reached.
    since := (select least(to_timestamp(least_base / 1000000.0),
                           f.at + greatest(least_base - f.base, 0) * interval '8 microseconds')
              from gapless.fences f order by f.number desc limit 1);
    stands := least(p_cursor, p_parted - 1,
                    coalesce(parted.base - 1, greatest(parted.moved - 1, gapless.id_before(since))));
    first_id := least(p_cursor, parted.lost_from, stands + 1);
end $$;
