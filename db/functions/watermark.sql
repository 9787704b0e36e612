-- Where the log stands: the reading that settles ids, and positions in it.

-- The last id taken; 0: none. All readers of the sequence use this function. A plain `select last_value`
-- takes no lock on the sequence's page, and `nextval` writes the value that it logs ahead (+32) into that
-- page before the real one: so now and then a reader sees ids that were never taken. pg_sequence_last_value
-- takes the lock.
create or replace function gapless_internal.last_id() returns bigint
language sql volatile as $$
    select coalesce(pg_catalog.pg_sequence_last_value('gapless.message_id'::pg_catalog.regclass), 0)
$$;

-- The raw reading for the watermark, in this order: the last id taken, how far the WAL had come then, and
-- which transactions may still hold an id without having committed. Once those holders are gone and the WAL
-- is on disk up to `lsn`, nothing can appear at or below `last_id` any more, not even after a crash (a
-- sequence value taken by a transaction that rolled back is not on disk yet: after a crash it may be given
-- out again). All of that holds within one `life` of the server.
--
-- Reading writes to the WAL too (a pruned page, for example), and this part is not flushed until something
-- commits, up to 15 s later in an idle database. So a tick that finds the WAL unflushed, and no transaction
-- that could still publish, commits a few bytes itself; the next tick sees them flushed.
--
-- After a crash since the fence p_known, `flushed` is no more than what the crash left. A caller that saw more flushed
-- before saw commits that are not here: these are copied files, of an earlier moment.
--
-- `newest` is the newest id that a message had when a fence was put up: the smallest of all fences above the
-- number p_known, or that of the last one. Between two of them other sessions may have published.
-- Needs: subscribe on some channel. It tells ids, which are common to all namespaces.
create or replace function gapless.tick(
    p_known integer default null, out last_id bigint, out lsn bigint, out flushed bigint, out holders text[],
    out life uuid, out fences integer, out epoch uuid, out newest bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not gapless_internal.is_same_history() then
        perform gapless.fence();
    end if;
    -- Another one after each start of the server, and on each copy of it: a reading of one does not hold for
    -- another.
    select md5(concat_ws(' ', l.id, gapless_internal.database_oid(), pg_postmaster_start_time()))::uuid into life
    from gapless.lives l;
    select f.number, f.epoch, least(f.newest, (select min(x.newest) from gapless.fences x where x.number > p_known))
    into fences, epoch, newest
    from gapless.fences f order by f.number desc limit 1;
    last_id := gapless_internal.last_id();
    lsn := pg_current_wal_insert_lsn() - '0/0'::pg_lsn;
    -- At the end of a page the WAL position includes the header of the next page, which is only written with
    -- the next record: without this an idle database would stay unsettled there.
    lsn := lsn - case
        when lsn % pg_size_bytes(current_setting('wal_segment_size')) = 40 then 40
        when lsn % current_setting('wal_block_size')::integer = 24 then 24
        else 0 end;
    flushed := least(pg_current_wal_flush_lsn() - '0/0'::pg_lsn,
                     (select min(f.recovered) from gapless.fences f where f.number > p_known));
    holders := gapless.holders();
    if flushed < lsn and holders = '{}' then
        perform gapless_internal.commit_to_disk();
        -- A commit with a WAL record of its own waits for the disk; an empty one does not.
        perform pg_logical_emit_message(true, 'gapless', '');
    end if;
end $$;

-- The seq of the newest message of a channel at or below an id, including removed messages. Exact while the
-- rows are there; for a dropped segment, the nearest mark below (then a lower bound).
--
-- The messages of one channel are always read by both columns of its index, and bounds are written so that
-- the planner cannot guess how many rows lie between them. With `channel_id = x order by id limit n`, the
-- planner assumes that a channel with many messages has them everywhere. Then it scans the whole log by its
-- primary key until it finds the first, or else it reads the whole channel and sorts. The plain bound of the
-- id leaves out segments, which are 2^24 ids. It is no tighter than that: otherwise the planner would again
-- expect few rows above it where there are many.
--
-- It is volatile, like its callers: a stable function keeps its caller's snapshot, which is older than its
-- wait for a segment that is being dropped. With that snapshot it would find neither the segment nor the
-- mark.
create or replace function gapless_internal.seq_below(p_channel_id bigint, p_id bigint) returns bigint
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

-- As gapless_internal.seq_below; null if the session may not know of the channel.
-- Needs: subscribe on the channel.
create or replace function gapless.seq_at(p_channel_id bigint, p_id bigint) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select case when gapless.reads_everything() or p_channel_id in (select gapless.readable_channels())
                then gapless_internal.seq_below(p_channel_id, p_id) end
$$;

-- The id of a channel's newest message at or below a seq. If retention removed that message, the id of the
-- newest one that it removed. Binary search over the channel's index, with the bounds of gapless_internal.seq_below.
create or replace function gapless.id_at_seq(p_channel_id bigint, p_seq bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    channel record;
    -- At or below `lo` no message has a larger seq than p_seq; the first message from `hi` on has.
    lo bigint;
    hi bigint;
    mid bigint;
    probe record;
begin
    select c.last_id, c.last_seq, c.first_seq, c.trimmed_id into channel
    from gapless.channels c where c.id = p_channel_id;
    if p_seq >= channel.last_seq then
        return channel.last_id;
    end if;
    lo := channel.trimmed_id;
    hi := channel.last_id;
    if p_seq < channel.first_seq then
        return lo;
    end if;
    while hi - lo > 1 loop
        mid := lo + (hi - lo) / 2;
        select m.id, m.seq into probe from gapless.messages m
        where (m.channel_id, m.id) >= (p_channel_id, mid)
          and (m.channel_id, m.id) <= (p_channel_id, channel.last_id)
          and m.id >= mid - mid % 16777216
        order by m.channel_id, m.id limit 1;
        if probe.seq = p_seq then
            return probe.id;
        end if;
        if probe.seq > p_seq then
            hi := mid;
        else
            lo := probe.id;
        end if;
    end loop;
    -- Retention removed it meanwhile.
    return lo;
end $$;

-- An id such that all messages at or below it were created before p_time; the nearest such id, up to the few
-- seconds by which the clocks of concurrent writers may differ. Binary search over the primary key.
-- Needs: subscribe on some channel. It tells an id.
create or replace function gapless.id_before(p_time timestamptz) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    lo bigint := 0;
    hi bigint;
    mid bigint;
    probe record;
begin
    hi := gapless_internal.last_id() + 1;
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

-- Whether what the caller takes for a settled id can be one here: not if it is null, nor if it was settled in
-- another history, which came further. Before the fence nothing of another history is believed; a fence waits
-- for whoever still holds an id below it.
create or replace function gapless_internal.may_be_settled(p_settled bigint) returns boolean
language sql volatile as $$
    select coalesce(p_settled <= gapless_internal.last_id() and gapless_internal.is_same_history(), false)
$$;

-- An id that is settled: p_settled if it can be, or else one is found by time.
create or replace function gapless_internal.settled_by_now(p_settled bigint) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select case when gapless_internal.may_be_settled(p_settled) then p_settled
                else gapless.id_before(clock_timestamp()) end
$$;
