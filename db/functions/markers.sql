-- How far users have come in channels, and how much of a channel is unread.

-- Counts the originals that deletions without a stretch delete anew, before gapless_internal.fold_changes notes that they
-- do. Ids of messages that were not stored are null. A deletion of a stretch is counted by gapless_internal.hide.
create or replace function gapless_internal.count_deletions(
    p_channel integer[], p_channel_ids bigint[], p_ids bigint[], p_changes json[], p_targets bigint[], p_actions text[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    lowest constant bigint := (select min(t) from unnest(p_targets) t);
    highest constant bigint := (select max(t) from unnest(p_targets) t);
    gone record;
begin
    for gone in
        select x.channel_id, array_agg(t.seq) as seqs
        from (
            select distinct p_channel_ids[m.channel] as channel_id, m.target
            from unnest(p_channel, p_ids, p_changes, p_targets, p_actions) as m (channel, id, change, target, action)
            where m.id is not null and m.action = 'delete' and m.change ->> 'through' is null
        ) x
        cross join lateral (
            select m.seq from gapless.messages m where m.id = x.target and m.id between lowest and highest offset 0) t
        where gapless_internal.deleted_by(x.channel_id, x.target) is null
          and not exists (select from gapless.latest l where l.channel_id = x.channel_id and l.id = x.target and l.deleted)
        group by x.channel_id
    loop
        perform gapless_internal.reach_deleted(gone.channel_id, (select max(s) from unnest(gone.seqs) s));
        perform gapless_internal.count_deleted(gone.channel_id, s, 1) from unnest(gone.seqs) s;
    end loop;
end $$;

-- Notes that originals up to this seq are deleted, before they are counted.
create or replace function gapless_internal.reach_deleted(p_channel_id bigint, p_seq bigint) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.channels c
    set deleted_seq = greatest(p_seq, coalesce(c.deleted_seq, case
            -- What was deleted before the column was there is somewhere up to the newest message.
            when exists (select from gapless.deleted_sums d where d.channel_id = c.id)
                 or exists (select from gapless.deleted_ranges d where d.channel_id = c.id) then c.last_seq end))
    where c.id = p_channel_id and (c.deleted_seq >= p_seq) is not true
$$;

-- How many messages of a channel change others, up to this id; for an id that retention removed, up to the newest that
-- it removed at least.
create or replace function gapless_internal.changes_up_to(p_channel_id bigint, p_id bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(
        (select c.number from gapless.changes c
         where c.channel_id = p_channel_id and c.id <= p_id order by c.id desc limit 1),
        (select c.number - (c.action <> 'reply')::integer from gapless.changes c
         where c.channel_id = p_channel_id order by c.id limit 1), 0)
$$;

-- How many deletions of originals are counted above this seq.
create or replace function gapless_internal.deleted_after(p_channel_id bigint, p_seq bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    -- In the row of each level, what comes after the place of the seq. What lies beyond is in the row of the next level.
    select coalesce(sum(d.sums[(p_seq >> (6 * d.level) & 63)::integer + 2]), 0)::bigint
    from gapless.deleted_sums d cross join generate_series(0, 6) level
    where d.channel_id = p_channel_id and d.level = level.level and d.bucket = p_seq >> (6 * level.level + 6)
$$;

-- Counts so many more deleted originals at this seq.
create or replace function gapless_internal.count_deleted(p_channel_id bigint, p_seq bigint, p_by bigint) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into gapless.deleted_sums as d (channel_id, level, bucket, sums)
    select p_channel_id, level, p_seq >> (6 * level + 6),
           array_fill(p_by, array[p.place + 1]) || array_fill(0::bigint, array[63 - p.place])
    from generate_series(0, 6) level
    cross join lateral (select (p_seq >> (6 * level) & 63)::integer as place) p
    where p_by <> 0
    on conflict (channel_id, level, bucket) do update
    set sums = array(select x.before + x.more from unnest(d.sums, excluded.sums) with ordinality as x (before, more, place)
                     order by x.place)
$$;

-- The seqs of a stretch of a channel, and how many of its originals no other deletion is counted for.
create or replace function gapless_internal.stretch(
    p_channel_id bigint, p_first bigint, p_last bigint, out first_seq bigint, out last_seq bigint, out total bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    first_seq := gapless_internal.seq_below(p_channel_id, p_first - 1) + 1;
    last_seq := gapless_internal.seq_below(p_channel_id, p_last);
    total := last_seq - first_seq + 1
        - gapless_internal.changes_up_to(p_channel_id, p_last) + gapless_internal.changes_up_to(p_channel_id, p_first - 1)
        - gapless_internal.deleted_after(p_channel_id, first_seq - 1) + gapless_internal.deleted_after(p_channel_id, last_seq);
end $$;

-- Moves markers, all or none, each forward only unless it is forced. An id beyond the channel's newest message stands
-- for that one. A null id: the channel does not exist, and nothing was moved. A marker that is moved while its channel
-- is deleted may stay as a row that nobody sees.
create or replace function gapless.mark(
    p_namespace_id integer, p_channels text[], p_users text[], p_names text[], p_ids bigint[], p_force boolean[]
) returns table (channel text, "user" text, name text, id bigint, updated_at timestamptz, moved boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    now_at constant timestamptz := clock_timestamp();
    asked record;
    upto bigint;
begin
    perform gapless_internal.needs_fresh_snapshots();
    -- In one order, so that no two calls wait for one another; channels that do not exist come first. All channels are
    -- looked up in one statement: one may be deleted meanwhile.
    for asked in
        select c.id as channel_id, c.last_id, w.*
        from unnest(p_channels, p_users, p_names, p_ids, p_force) with ordinality
            as w (channel, "user", name, id, force, ord)
        left join gapless.channels c on c.namespace_id = p_namespace_id and c.name = w.channel
        order by c.id nulls first, w.name, w."user", w.ord
    loop
        if asked.channel_id is null then
            return query select asked.channel, asked."user", asked.name, null::bigint, null::timestamptz, false;
            return;
        end if;
        upto := least(asked.id, asked.last_id);
        return query
        insert into gapless.markers as k (namespace_id, channel_id, "user", name, id, seq, changes, updated_at)
        values (p_namespace_id, asked.channel_id, asked."user", asked.name, upto,
                gapless_internal.seq_below(asked.channel_id, upto),
                gapless_internal.changes_up_to(asked.channel_id, upto), now_at)
        on conflict on constraint markers_pkey do update
        set id = excluded.id, seq = excluded.seq, changes = excluded.changes, updated_at = excluded.updated_at
        where excluded.id > k.id or (asked.force and excluded.id <> k.id)
        returning asked.channel, k."user", k.name, k.id, k.updated_at, true;
        if not found then
            return query
            select asked.channel, k."user", k.name, k.id, k.updated_at, false from gapless.markers k
            where k.channel_id = asked.channel_id and k.name = asked.name and k."user" = asked."user";
        end if;
    end loop;
end $$;

-- Removes what is not needed any more to count in a channel whose messages up to p_upto are gone, about p_limit rows of
-- each kind. p_all: the channel is gone too.
create or replace function gapless_internal.forget_counts(
    p_channel_id bigint, p_upto bigint, p_seq bigint, p_all boolean, p_limit integer
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone integer;
    n integer;
begin
    delete from gapless.changes x where x.channel_id = p_channel_id and x.id in (
        select y.id from gapless.changes y where y.channel_id = p_channel_id and y.id <= p_upto
          and (p_all or exists (select from gapless.changes z where z.channel_id = p_channel_id and z.id > y.id))
        order by y.id limit p_limit);
    get diagnostics gone = row_count;
    delete from gapless.deleted_sums x where x.channel_id = p_channel_id and (x.level, x.bucket) in (
        select y.level, y.bucket from gapless.deleted_sums y where y.channel_id = p_channel_id
          and (p_all or y.bucket < (p_seq + 1) >> (6 * y.level + 6))
        limit p_limit);
    get diagnostics n = row_count;
    gone := gone + n;
    if p_all then
        delete from gapless.markers x where x.channel_id = p_channel_id and (x.name, x."user") in (
            select y.name, y."user" from gapless.markers y where y.channel_id = p_channel_id limit p_limit);
        get diagnostics n = row_count;
        gone := gone + n;
    end if;
    return gone;
end $$;
