-- Retention: removing old messages.

-- The oldest message of a channel that a subscription with `retain` has not settled; null: there is none. If
-- a subscription is restored without its progress, all messages count. It is one statement: a message that a
-- claim moves from ahead of the frontier to a row is seen in one of the two places. Reading rows first makes
-- no difference here.
create or replace function gapless_internal.retained_from(c gapless.channels) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select min(least(coalesce(p.frontier, 0) + 1, (
        select d.message_id from gapless.deliveries d
        where d.subscription_id = s.id and d.channel_id = c.id and d.kept_id is null order by d.message_id limit 1)))
    from gapless.subscriptions s left join gapless.progress p on p.subscription_id = s.id
    where s.retain and s.namespace_id = c.namespace_id and (c.name = any(s.names) or c.name ~ s.regex)
$$;

-- Blocks the next round of retention, and waits for one that runs. For callers that make settled messages
-- unsettled, or that make retention wait for a subscription that it did not wait for. So during a round the
-- settled messages only grow, and retention needs no subscription's lock. Retention never waits for this
-- lock.
create or replace function gapless_internal.hold_retention() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    lock table gapless.trimming_lock in row share mode;
end $$;

-- The newest message of a channel that its rules remove; nulls: none. p_retained: some subscription has
-- `retain`, and the messages that it has not settled stay. Reads the channel by its index: see
-- gapless_internal.seq_below, which also says why this is volatile.
create or replace function gapless_internal.cut_of(
    c gapless.channels, p_retained boolean, out cut_id bigint, out cut_seq bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    held bigint;
begin
    if c.max_age is not null then
        -- Walks forward over the messages to remove: the work depends on them, not on what is kept.
        select m.id, m.seq into cut_id, cut_seq from gapless.messages m
        where (m.channel_id, m.id) > ((select c.id), c.trimmed_id)
          and (m.channel_id, m.id) < ((select c.id), coalesce((
              select k.id from gapless.messages k
              where (k.channel_id, k.id) > ((select c.id), c.trimmed_id)
                and (k.channel_id, k.id) <= ((select c.id), 9223372036854775807)
                and k.id >= c.trimmed_id - c.trimmed_id % 16777216
                and k.created_at >= clock_timestamp() - c.max_age * interval '1 second'
              order by k.channel_id, k.id limit 1), 9223372036854775807))
          and m.id >= c.trimmed_id - c.trimmed_id % 16777216
        order by m.channel_id desc, m.id desc limit 1;
    end if;
    if c.max_messages is not null and c.last_seq - c.max_messages > coalesce(cut_seq, c.first_seq - 1) then
        select m.id, m.seq into cut_id, cut_seq from gapless.messages m
        where (m.channel_id, m.id) > ((select c.id), c.trimmed_id)
          and (m.channel_id, m.id) <= ((select c.id), 9223372036854775807)
          and m.id >= c.trimmed_id - c.trimmed_id % 16777216
        order by m.channel_id, m.id offset c.last_seq - c.max_messages - c.first_seq limit 1;
    end if;
    if p_retained and cut_id is not null then
        held := gapless_internal.retained_from(c);
        if held <= cut_id then
            select m.id, m.seq into cut_id, cut_seq from gapless.messages m
            where (m.channel_id, m.id) > ((select c.id), c.trimmed_id)
              and (m.channel_id, m.id) < ((select c.id), (select held))
              and m.id >= c.trimmed_id - c.trimmed_id % 16777216
            order by m.channel_id desc, m.id desc limit 1;
        end if;
    end if;
end $$;

-- Moves the floors of channels with a retention rule; p_limit channels in each call. Returns how many moved.
create or replace function gapless.trim_channels(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c gapless.channels;
    cut record;
    kept_id bigint;
    moved integer := 0;
    retained boolean;
begin
    perform gapless_internal.needs_fresh_snapshots();
    -- One at a time: two calls that lock the same channels would only wait for one another.
    begin
        lock table gapless.trimming_lock in exclusive mode nowait;
    exception when lock_not_available then
        return 0;
    end;
    -- Waits while gapless.compact rewrites it, and sees all of it afterwards.
    lock table gapless.progress in access share mode;
    retained := exists (select from gapless.subscriptions s where s.retain);
    for c in
        select * from gapless.channels
        where last_seq >= first_seq and (max_age is not null
              or (max_messages is not null and last_seq - first_seq + 1 > max_messages))
        order by id
    loop
        exit when moved >= p_limit;
        select * into cut from gapless_internal.cut_of(c, retained);
        continue when cut.cut_id is null;
        select m.id into kept_id from gapless.messages m
        where (m.channel_id, m.id) > ((select c.id), cut.cut_id)
          and (m.channel_id, m.id) <= ((select c.id), 9223372036854775807)
          and m.id >= cut.cut_id - cut.cut_id % 16777216
        order by m.channel_id, m.id limit 1;
        update gapless.channels u
        set first_seq = cut.cut_seq + 1, trimmed_id = cut.cut_id, first_id = coalesce(kept_id, u.last_id + 1)
        where u.id = c.id and u.first_seq <= cut.cut_seq
          -- A message that arrived since changes which one is the first kept: the next run handles that.
          and (kept_id is not null or u.last_seq = cut.cut_seq);
        if found then
            moved := moved + 1;
            perform gapless_internal.forget_changes(c.id, cut.cut_id, 10000);
            perform gapless_internal.forget_counts(c.id, cut.cut_id, cut.cut_seq, false, 10000);
            update gapless.log l set trimmed_id = greatest(l.trimmed_id, cut.cut_id) where l.trimmed_id < cut.cut_id;
        end if;
    end loop;
    return moved;
end $$;

-- Removes what became of messages up to p_upto, and which others changed them: about p_limit rows. What is left over
-- is of no message any more, and goes with a later round.
create or replace function gapless_internal.forget_changes(p_channel_id bigint, p_upto bigint, p_limit integer)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone integer;
    n integer;
begin
    delete from gapless.latest l where l.channel_id = p_channel_id and l.id in (
        select x.id from gapless.latest x where x.channel_id = p_channel_id and x.id <= p_upto order by x.id limit p_limit);
    get diagnostics gone = row_count;
    delete from gapless.deleted_ranges d where d.channel_id = p_channel_id and d.first_id in (
        select x.first_id from gapless.deleted_ranges x where x.channel_id = p_channel_id and x.first_id <= p_upto
          and x.last_id <= p_upto order by x.first_id limit p_limit);
    get diagnostics n = row_count;
    gone := gone + n;
    delete from gapless.annotation_counts c where c.channel_id = p_channel_id and c.target in (
        select distinct x.target from gapless.annotation_counts x where x.channel_id = p_channel_id and x.target <= p_upto
        order by x.target limit p_limit);
    delete from gapless.annotations a where a.channel_id = p_channel_id and a.target in (
        select x.target from gapless.annotations x where x.channel_id = p_channel_id and x.target <= p_upto
        order by x.target limit p_limit);
    get diagnostics n = row_count;
    return gone + n;
end $$;

-- Removes rows of messages that retention already removed, in segments that other channels keep: those of
-- deleted channels, and of trimmed channels whose floor is above the whole segment. At most p_limit rows.
-- Reads each channel by its index: see gapless_internal.seq_below. The places among the removed rows at which
-- subscriptions stand are marked: subscriptions count their losses from there.
create or replace function gapless.purge_rows(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone integer := 0;
    n integer;
    d record;
    g record;
begin
    perform gapless_internal.needs_fresh_snapshots();
    gone := gapless_internal.remove_aged_letters(p_limit);
    if gone >= p_limit then return gone; end if;
    for d in select * from gapless.deleted_channels order by channel_id for update skip locked loop
        delete from gapless.messages m where m.id in (
            select x.id from gapless.messages x
            where (x.channel_id, x.id) >= ((select d.channel_id), 0::bigint)
              and (x.channel_id, x.id) <= ((select d.channel_id), 9223372036854775807)
            order by x.channel_id, x.id limit p_limit - gone);
        get diagnostics n = row_count;
        gone := gone + n;
        if gone >= p_limit then return gone; end if;
        gone := gone + gapless_internal.forget_changes(d.channel_id, 9223372036854775807, p_limit - gone)
                + gapless_internal.forget_counts(d.channel_id, 9223372036854775807, 0, true, p_limit - gone);
        if gone >= p_limit then return gone; end if;
        delete from gapless.trims t where t.channel_id = d.channel_id;
        delete from gapless.gaps x where x.channel_id = d.channel_id;
        delete from gapless.deleted_channels x where x.channel_id = d.channel_id;
    end loop;
    select * into g from gapless.segments order by lower limit 1;
    for d in
        select c.id, c.trimmed_id from gapless.channels c where c.trimmed_id >= g.upper - 1
    loop
        continue when (
            select m.id from gapless.messages m
            where (m.channel_id, m.id) >= ((select d.id), 0::bigint) and (m.channel_id, m.id) < ((select d.id), g.upper)
              and m.id < g.upper
            order by m.channel_id, m.id limit 1) is null;
        insert into gapless.trims (channel_id, last_id, last_seq, last_created_at)
        select m.channel_id, m.id, m.seq, m.created_at
        from (select g.upper - 1 as id
              union select p.frontier from gapless.progress p where p.frontier < g.upper - 1) f
        cross join lateral (
            select m.channel_id, m.id, m.seq, m.created_at from gapless.messages m
            where (m.channel_id, m.id) >= ((select d.id), 0::bigint) and (m.channel_id, m.id) <= ((select d.id), f.id)
            order by m.channel_id desc, m.id desc limit 1) m
        on conflict do nothing;
        delete from gapless.messages m where m.id in (
            select x.id from gapless.messages x
            where (x.channel_id, x.id) >= ((select d.id), 0::bigint) and (x.channel_id, x.id) < ((select d.id), g.upper)
              and x.id < g.upper
            order by x.channel_id, x.id limit p_limit - gone);
        get diagnostics n = row_count;
        gone := gone + n;
        if gone >= p_limit then return gone; end if;
    end loop;
    return gone;
end $$;

-- Removes idempotency keys that are older than 24 hours, at most p_limit of them; returns how many.
create or replace function gapless.purge_idempotency(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    n integer;
begin
    delete from gapless.idempotency i where (i.namespace_id, i.key) in (
        select x.namespace_id, x.key from gapless.idempotency x
        where x.stored_at <= now() - interval '24 hours'
        order by x.stored_at limit p_limit for update skip locked);
    get diagnostics n = row_count;
    return n;
end $$;
