-- Segments: partitions of gapless.messages by id.

-- Creates an empty segment of at most 2^24 ids: after the last one, or from p_lower.
create or replace function gapless_internal.add_segment(p_lower bigint default null) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    span constant bigint := 16777216;
    next_lower bigint;
begin
    lock table gapless.segments in exclusive mode;
    select coalesce(p_lower, max(upper), 1) into next_lower from gapless.segments;
    execute format('create table gapless.messages_%s (like gapless.messages including all)', next_lower);
    execute format('alter table gapless.messages attach partition gapless.messages_%s '
        'for values from (%s) to (%s)', next_lower, next_lower, next_lower / span * span + span);
    insert into gapless.segments (lower, upper) values (next_lower, next_lower / span * span + span);
    return next_lower;
end $$;

-- Adds segments until two lie above this id.
create or replace function gapless_internal.keep_spares(p_id bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    while 2 > (select count(*) from gapless.segments g where g.lower > p_id) loop
        perform gapless_internal.add_segment();
    end loop;
end $$;

-- Starts a new segment when the newest one in use is older than p_age seconds or nearly full, by moving the
-- sequence to the next lower bound. No session publishes meanwhile: this holds the publishing lock
-- exclusively.
create or replace function gapless.roll_segment(p_age double precision) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    current_id bigint;
    active gapless.segments;
begin
    perform gapless_internal.needs_fresh_snapshots();
    perform gapless_internal.keep_spares(gapless_internal.last_id());
    current_id := gapless_internal.last_id();
    select g.* into active from gapless.segments g where g.lower <= current_id and g.upper > current_id;
    update gapless.segments g set opened_at = now() where g.lower = active.lower and g.opened_at is null;
    if found or active.opened_at > now() - p_age * interval '1 second'
       or not exists (select from gapless.messages m where m.id >= active.lower and m.id < active.upper) then
        return false;
    end if;
    lock table gapless.publishing_lock in exclusive mode;
    current_id := gapless_internal.last_id();
    if current_id >= active.upper then
        return false;
    end if;
    perform setval('gapless.message_id', active.upper - 1, true);
    update gapless.segments g set opened_at = now() where g.lower = active.upper;
    return true;
end $$;

-- Whether a message in this segment is kept.
create or replace function gapless_internal.is_kept(g gapless.segments) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select case when g.lower = (select min(x.lower) from gapless.segments x)
                then exists (select from gapless.channels c where c.last_seq >= c.first_seq and c.first_id < g.upper)
                else exists (select from gapless.messages m where m.id >= g.lower and m.id < g.upper) end
$$;

-- Drops a segment in which nothing is kept. A publisher that holds an id in it is waited for first; if a
-- message appears then, this raises 55P03, and the next call looks again.
create or replace function gapless_internal.remove_segment(g gapless.segments) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    lock table gapless.publishing_lock in exclusive mode;
    if gapless_internal.is_kept(g) or gapless_internal.last_id() < g.upper - 1 then
        raise exception 'a message has appeared in the segment from %', g.lower using errcode = '55P03';
    end if;
    execute format('drop table gapless.messages_%s', g.lower);
    delete from gapless.segments where lower = g.lower;
    return g.lower;
end $$;

-- Drops the oldest segment if it is closed and nothing in it is kept. Returns its lower bound, or null.
-- Subscriptions behind it are moved past it first, because their losses can be counted only while it is
-- there. One call moves a thousand of them; if there are more, the segment stays until the next call.
--
-- p_settled only keeps it from looking too early. A caller may hold a settled id of a lost history, so what
-- is dropped lies below the last id taken here, and no publisher runs when it is dropped.
create or replace function gapless.drop_segment(p_settled bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    most_behind constant integer := 1000;
    settled constant bigint := least(p_settled, gapless_internal.last_id());
    oldest gapless.segments;
    behind integer[];
begin
    perform gapless_internal.needs_fresh_snapshots();
    -- A segment that a fence left behind without a message, at any place.
    select * into oldest from gapless.segments g
    where g.upper - 1 <= settled and g.lower > (select min(lower) from gapless.segments)
      and not gapless_internal.is_kept(g)
    order by g.lower limit 1 for update skip locked;
    if found then
        return gapless_internal.remove_segment(oldest);
    end if;
    select * into oldest from gapless.segments order by lower limit 1 for update skip locked;
    if oldest.lower is null or oldest.upper - 1 > settled
       or oldest.lower <> (select min(lower) from gapless.segments) or gapless_internal.is_kept(oldest) then
        return null;
    end if;
    behind := array(select p.subscription_id from gapless.progress p
                    where p.frontier < oldest.upper - 1 order by p.subscription_id limit most_behind);
    perform gapless_internal.lock_subscriptions(behind);
    update gapless.progress p
    set removed = p.removed + gapless_internal.lose_between(s, p.frontier, oldest.upper - 1),
        frontier = oldest.upper - 1
    from gapless.subscriptions s
    where p.subscription_id = any(behind) and s.id = p.subscription_id and p.frontier < oldest.upper - 1;
    delete from gapless.settled_ahead a where a.subscription_id = any(behind) and a.message_id < oldest.upper;
    if cardinality(behind) = most_behind then
        return null;
    end if;
    insert into gapless.trims (channel_id, last_id, last_seq, last_created_at)
    select c.id, m.id, m.seq, m.created_at
    from gapless.channels c cross join lateral (
        select m.id, m.seq, m.created_at from gapless.messages m
        where (m.channel_id, m.id) >= (c.id, 0::bigint) and (m.channel_id, m.id) < (c.id, oldest.upper)
          and m.id < oldest.upper
        order by m.channel_id desc, m.id desc limit 1) m
    on conflict do nothing;
    return gapless_internal.remove_segment(oldest);
end $$;

-- A new log begins with three segments, the first of them in use.
do $$
begin
    if not exists (select from gapless.segments) then
        perform gapless_internal.add_segment() from generate_series(1, 3);
        update gapless.segments set opened_at = now() where lower = 1;
    end if;
end $$;
