-- Taking away what waits in a subscription.

-- Of what was there when it was asked for first, at p_upto: removes what is ready, delayed or waiting, at most about
-- p_limit rows, and moves the frontier past what nobody had yet. What is leased stays. The log stays as it is. With a
-- filter at most some times p_limit messages are looked at; else all at once, counted by seq. Called again with the
-- p_upto and the p_moves that it gave, until nothing is left to do; a seek that comes between ends it. A null id: it is
-- not there.
create or replace function gapless.purge_subscription(
    p_namespace_id integer, p_name text, p_settled bigint, p_limit integer, p_upto bigint default null,
    p_moves integer default null, out subscription_id integer, out purged bigint, out upto bigint, out moves integer,
    out more boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_rounds constant integer := 10;
    found_id constant integer := (select x.id from gapless.subscriptions x
                                  where x.namespace_id = p_namespace_id and x.name = p_name);
    s gapless.subscriptions;
    p gapless.progress;
    t timestamptz;
    seen record;
    gone record;
    was bigint;
    reached bigint;
    lost bigint := 0;
    dropped integer;
begin
    perform gapless.lock_subscriptions(array[found_id]);
    select * into s from gapless.subscriptions x where x.id = found_id;
    if not found then
        return;
    end if;
    subscription_id := s.id;
    select * into p from gapless.progress x where x.subscription_id = s.id;
    if not found then
        perform gapless.no_progress(s.id);
    end if;
    t := clock_timestamp();
    purged := 0;
    more := false;
    moves := p.moves;
    if p_moves <> p.moves then
        return;
    end if;
    upto := coalesce(p_upto, greatest(p.frontier, case
        when s.regex is null and cardinality(s.names) = 1 then coalesce((
            select c.last_id from gapless.channels c
            where c.namespace_id = s.namespace_id and c.name = s.names[1]), 0)
        else least(coalesce(p_settled, gapless.id_before(t)), gapless.last_id()) end));

    with first as (
        select d.message_id from gapless.deliveries d
        where d.subscription_id = s.id and d.state in (1, 2) and (d.message_id <= upto or d.kept_id is not null)
        order by d.message_id limit p_limit
    ), dead as (
        delete from gapless.deliveries d using first r where d.subscription_id = s.id and d.message_id = r.message_id
        returning d.channel_id, d.lane, d.kept_id
    ), copies as (
        -- What a replay gave back exists here only.
        delete from gapless.kept k using dead d where k.id = d.kept_id
    )
    select count(*) as n, array_agg(s.id) filter (where d.lane is not null) as subscriptions,
           array_agg(d.channel_id) filter (where d.lane is not null) as channels,
           array_agg(d.lane) filter (where d.lane is not null) as lanes
    into gone from dead d;
    dropped := gone.n;
    purged := gone.n;
    if gone.lanes is not null then
        perform gapless.promote(gone.subscriptions, gone.channels, gone.lanes, t);
    end if;

    was := p.frontier;
    if s.types is null and s.keys is null then
        if upto > p.frontier then
            -- One statement, one snapshot: what is published meanwhile is in both counts.
            select purged + gapless.ahead(s, p.frontier) - gapless.ahead(s, upto) into purged;
            lost := gapless.lose_between(s, p.frontier, upto);
            p.frontier := upto;
        end if;
    else
        for i in 1 .. max_rounds loop
            exit when p.frontier >= upto;
            select * into seen from gapless.scan(s, p.frontier, upto, p_limit);
            reached := least(upto, greatest(p.frontier, seen.complete_to));
            select purged + count(*) into purged from unnest(seen.ids, seen.created) as x (id, created)
            where x.id <= reached and (p.not_before is null or x.created >= p.not_before)
              and not exists (select from gapless.settled_ahead a where a.subscription_id = s.id and a.message_id = x.id);
            if seen.trimmed is not null then
                lost := lost + gapless.lose(s.id, seen.trimmed, seen.trims, p.frontier, reached);
            end if;
            p.frontier := case when seen.cut then reached else upto end;
        end loop;
    end if;
    more := dropped = p_limit or p.frontier < upto;
    update gapless.progress x
    set frontier = p.frontier, used_at = t, removed = x.removed + lost, purged = x.purged + purge_subscription.purged
    where x.subscription_id = s.id;
    if p.frontier > was then
        delete from gapless.settled_ahead a where a.subscription_id = s.id and a.message_id <= p.frontier;
    end if;
end $$;
