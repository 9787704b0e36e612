-- Where the log stands: the reading that settles ids, and positions in it.

-- The last id taken; 0: none. Every reader of the sequence asks here. A plain `select last_value` takes no lock on the
-- sequence's page, and `nextval` writes the value it logs ahead (+32) into that page before the real one: now and then
-- it sees ids that nobody has taken. pg_sequence_last_value takes the lock.
create or replace function gapless.last_id() returns bigint
language sql volatile as $$
    select coalesce(pg_catalog.pg_sequence_last_value('gapless.message_id'::pg_catalog.regclass), 0)
$$;

-- The watermark's raw reading, in this order: the last id taken, how far the journal had come then, and who
-- may still hold an id without having committed. Once those holders are gone and the journal is on disk up
-- to `lsn`, nothing can appear at or below `last_id` any more, not even after a crash (a sequence value
-- taken by a transaction that rolled back is not on disk yet: a crash may hand it out again). All of that
-- holds within one `life` of the server.
--
-- Reading leaves something in the WAL too (a pruned page, say), which nobody flushes until something commits, up to
-- 15 s later in an idle database. So a tick that finds the WAL unflushed and nobody who could still publish commits
-- a few bytes itself; the next tick sees them flushed.
--
-- `newest` is the newest id that a message had when a fence was put up: the smallest of all fences above the number
-- p_known, or that of the last one. Between two of them others may have published.
create or replace function gapless.tick(
    p_known integer default null, out last_id bigint, out lsn bigint, out flushed bigint, out holders text[], out life uuid, out fences integer,
    out epoch uuid, out newest bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not gapless.is_same_history() then
        perform gapless.fence();
    end if;
    -- Another one after each start of the server, and of each copy of it: what was read of one says nothing of another.
    select md5(concat_ws(' ', l.id, gapless.database_oid(), pg_postmaster_start_time()))::uuid into life
    from gapless.lives l;
    select f.number, f.epoch, least(f.newest, (select min(x.newest) from gapless.fences x where x.number > p_known))
    into fences, epoch, newest
    from gapless.fences f order by f.number desc limit 1;
    last_id := gapless.last_id();
    lsn := pg_current_wal_insert_lsn() - '0/0'::pg_lsn;
    -- At the end of a page the journal's position counts the header of the next, which is written with the
    -- next record only: without this an idle database would stay unsettled there.
    lsn := lsn - case
        when lsn % pg_size_bytes(current_setting('wal_segment_size')) = 40 then 40
        when lsn % current_setting('wal_block_size')::integer = 24 then 24
        else 0 end;
    flushed := pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
    holders := gapless.holders();
    if flushed < lsn and holders = '{}' then
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true);
        end if;
        -- A commit with something of its own in the journal waits for the disk; an empty one does not.
        perform pg_logical_emit_message(true, 'gapless', '');
    end if;
end $$;

-- The seq of the newest message of a channel at or below an id, whether retention kept it or not.
-- Exact while the rows are there; for a dropped segment, the nearest mark below (then a lower bound).
--
-- One channel's messages are read by both columns of its index at once, also where one would do, and bounds are written
-- so that nobody can guess how many rows lie between them. Asked for `channel_id = x order by id limit n`, the planner
-- takes a channel that has many messages to have them everywhere, and walks the whole log by its primary key until it
-- meets the first, or else reads all of the channel and sorts. The plain bound of the id leaves out segments, which are
-- 2^24 ids: it says no more than that, or the planner would again take few rows to be above it where there are many.
--
-- Volatile, as what calls it: a stable function keeps its caller's snapshot, which is older than its wait for a
-- segment that is being dropped. It would find neither the segment nor the mark.
create or replace function gapless.seq_at(p_channel_id bigint, p_id bigint) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(
        coalesce((select m.seq from gapless.messages m
                  where (m.channel_id, m.id) >= ((select p_channel_id), 0::bigint)
                    and (m.channel_id, m.id) <= ((select p_channel_id), (select p_id)) and m.id <= p_id
                  order by m.channel_id desc, m.id desc limit 1), 0),
        coalesce((select t.last_seq from gapless.trims t
                  where t.channel_id = p_channel_id and t.last_id <= p_id
                  order by t.last_id desc limit 1), 0))
$$;

-- An id such that everything at or below it was created before p_time; the nearest such id up to the few
-- seconds by which the clocks of concurrent writers may cross. Binary search over the primary key.
create or replace function gapless.id_before(p_time timestamptz) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    lo bigint := 0;
    hi bigint;
    mid bigint;
    probe record;
begin
    hi := gapless.last_id() + 1;
    while hi - lo > 1 loop
        mid := lo + (hi - lo) / 2;
        select m.id, m.created_at into probe from gapless.messages m where m.id >= mid order by m.id limit 1;
        if not found or probe.created_at >= p_time - interval '10 seconds' then
            hi := mid;
        else
            lo := probe.id;
        end if;
    end loop;
    return lo;
end $$;
