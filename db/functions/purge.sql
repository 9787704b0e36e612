-- Purging: removing messages that wait in a subscription.

-- Removes rows that are not leased, of messages up to p_upto or replayed, at most p_limit of them; returns
-- how many. The caller holds the subscription's lock.
create or replace function gapless_internal.drop_rows(
    p_subscription_id integer, p_upto bigint, p_limit integer, p_now timestamptz
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone record;
begin
    with first as (
        select d.message_id from gapless.deliveries d
        where d.subscription_id = p_subscription_id and d.state in (1, 2)
          and (d.message_id <= p_upto or d.kept_id is not null)
        order by d.message_id limit p_limit
    ), dead as (
        delete from gapless.deliveries d using first r
        where d.subscription_id = p_subscription_id and d.message_id = r.message_id
        returning d.channel_id, d.lane, d.kept_id
    ), copies as (
        -- Replayed messages exist only here.
        delete from gapless.kept k using dead d where k.id = d.kept_id
    )
    select count(*) as n, array_agg(p_subscription_id) filter (where d.lane is not null) as subscriptions,
           array_agg(d.channel_id) filter (where d.lane is not null) as channels,
           array_agg(d.lane) filter (where d.lane is not null) as lanes
    into gone from dead d;
    if gone.lanes is not null then
        perform gapless_internal.promote(gone.subscriptions, gone.channels, gone.lanes, p_now);
    end if;
    return gone.n;
end $$;

-- Moves the frontier up to p_upto past messages that have no row yet. Out: the new frontier, how many
-- messages it passes, and how many retention removed on the way. With a filter at most some times p_limit
-- messages are looked at; without one all at once, counted by seq.
create or replace function gapless_internal.pass_ahead(
    s gapless.subscriptions, p gapless.progress, p_upto bigint, p_limit integer,
    out frontier bigint, out passed bigint, out lost bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_rounds constant integer := 10;
    seen record;
    reached bigint;
begin
    frontier := p.frontier;
    passed := 0;
    lost := 0;
    if p_upto <= frontier then
        return;
    end if;
    if gapless_internal.takes_all(s) then
        -- One statement, one snapshot: messages published meanwhile are in both counts.
        select gapless.ahead(s, frontier) - gapless.ahead(s, p_upto) into passed;
        lost := gapless_internal.lose_between(s, frontier, p_upto);
        frontier := p_upto;
        return;
    end if;
    for i in 1 .. max_rounds loop
        exit when frontier >= p_upto;
        select * into seen from gapless_internal.scan(s, frontier, p_upto, p_limit);
        reached := least(p_upto, greatest(frontier, seen.complete_to));
        select passed + count(*) into passed from unnest(seen.ids, seen.created) as x (id, created)
        where x.id <= reached and (p.not_before is null or x.created >= p.not_before)
          and not exists (select from gapless.settled_ahead a where a.subscription_id = s.id and a.message_id = x.id);
        if seen.trimmed is not null then
            lost := lost + gapless_internal.lose(s.id, seen.trimmed, seen.trims, frontier, reached);
        end if;
        frontier := case when seen.cut then reached else p_upto end;
    end loop;
end $$;

-- Purges what was there at the first call, up to p_upto: removes messages that are ready, delayed or waiting,
-- at most about p_limit rows, and moves the frontier past messages without a row. Leased messages and the log
-- stay as they are. Call it again with the p_upto and p_moves that it returned until nothing is left; a seek
-- in between ends the purge. A null id: the subscription does not exist.
create or replace function gapless.purge_subscription(
    p_namespace_id integer, p_name text, p_settled bigint, p_limit integer, p_upto bigint default null,
    p_moves integer default null, out subscription_id integer, out purged bigint, out upto bigint, out moves integer,
    out more boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id constant integer := (select x.id from gapless.subscriptions x
                                  where x.namespace_id = p_namespace_id and x.name = p_name);
    s gapless.subscriptions;
    p gapless.progress;
    t timestamptz;
    dropped integer;
    part record;
begin
    perform gapless_internal.lock_subscriptions(array[found_id]);
    select * into s from gapless.subscriptions x where x.id = found_id;
    if not found then
        return;
    end if;
    subscription_id := s.id;
    select * into p from gapless.progress x where x.subscription_id = s.id;
    if not found then
        perform gapless_internal.no_progress(s.id);
    end if;
    t := clock_timestamp();
    purged := 0;
    more := false;
    moves := p.moves;
    if p_moves <> p.moves then
        return;
    end if;
    -- Never beyond what is there now: messages to come would be passed too.
    upto := least(p_upto, greatest(p.frontier, case
        when s.regex is null and cardinality(s.names) = 1 then coalesce((
            select c.last_id from gapless.channels c
            where c.namespace_id = s.namespace_id and c.name = s.names[1]), 0)
        else gapless_internal.settled_by_now(p_settled) end));
    dropped := gapless_internal.drop_rows(s.id, upto, p_limit, t);
    select * into part from gapless_internal.pass_ahead(s, p, upto, p_limit);
    purged := dropped + part.passed;
    more := dropped = p_limit or part.frontier < upto;
    update gapless.progress x
    set frontier = part.frontier, used_at = t, removed = x.removed + part.lost,
        purged = x.purged + purge_subscription.purged
    where x.subscription_id = s.id;
    if part.frontier > p.frontier then
        delete from gapless.settled_ahead a where a.subscription_id = s.id and a.message_id <= part.frontier;
    end if;
end $$;
