-- Claims: handing messages out.

-- Leases up to p_limit messages, and about 8 MiB: first those that are due again, then new ones above the
-- frontier. p_hands names the member for each (0: a pull), and p_places how many that member then holds;
-- without them all are for one pull. Rows of kind 0 are the messages; note: their `change`. The last row, of kind 1, has the rest:
-- note = {"status": "ok" | "gone" | "paused", "more", "doubt", "touched", "gaps"}, deadline = when the next
-- message becomes due by time alone.
create or replace function gapless.claim(
    p_subscription_id integer, p_settled bigint, p_limit integer, p_hands bigint[] default null,
    p_places integer[] default null
) returns table (
    kind integer, id bigint, channel text, seq bigint, created_at timestamptz, expires_at timestamptz,
    type text, key text, sender text, headers json, data json, "binary" bytea, attempts integer, lease bigint,
    deadline timestamptz, member bigint, company integer, note json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    s gapless.subscriptions;
    p gapless.progress;
    t timestamptz;
    room integer;
    due record;
    ahead record;
    deaths gapless.death[];
    taken bigint[];
    ends bigint[];
    idle boolean;
    touched json;
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    kind := 1;
    select * into s from gapless.subscriptions where id = p_subscription_id;
    if not found then
        note := '{"status": "gone"}';
        return next;
        return;
    end if;
    select * into p from gapless.progress where subscription_id = s.id;
    if not found then
        perform gapless_internal.no_progress(s.id);
    end if;
    t := clock_timestamp();
    deaths := coalesce(gapless_internal.catch_up(s, p, t, 1000), '{}');
    select case when s.paused then 0 else least(coalesce(cardinality(p_hands), p_limit), s.max_in_flight - leased) end,
           gapless_internal.doubts(s.id, doubt)
    into room, p.doubt
    from gapless.progress where subscription_id = s.id;
    p.fence := gapless_internal.next_lease(p.fence, t);
    select * into due from gapless_internal.lease_due(
        s, p, t, p_limit, room, p_hands, p_places, cardinality(deaths));
    select * into ahead from gapless_internal.lease_ahead(
        s, p, t, gapless_internal.readable(s, p_settled), case when due.more then 0 else due.room end, due.hands,
        due.bytes_left, cardinality(deaths) + cardinality(due.deaths));
    deaths := deaths || due.deaths || ahead.deaths;
    taken := due.taken || ahead.taken;
    idle := ahead.frontier = p.frontier and taken = '{}';
    if idle then
        perform gapless_internal.note_use(s.id, t);
    else
        perform gapless_internal.note_claim(s, p, t, cardinality(taken), due.repeated, ahead.frontier, ahead.lost);
    end if;
    if cardinality(deaths) > 0 then
        select b.touched into touched from gapless_internal.bury(s, deaths, t) b;
    elsif idle then
        -- The next claim would find all this again: a commit that only locked need not be on disk.
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if taken <> '{}' then
        select array[min(i), max(i)] into ends from unnest(taken) i;
        return query select 0, x.* from gapless_internal.handed_messages(s.id, taken, ends[1], ends[2]) x;
    end if;
    deadline := gapless_internal.next_due(s.id, t);
    note := json_build_object(
        'status', case when s.paused then 'paused' else 'ok' end, 'more', due.more or ahead.more, 'doubt', p.doubt,
        'touched', touched, 'gaps', gapless_internal.gaps_of(s.id, 100));
    return next;
end $$;

-- Writes the results of a claim: the new frontier, how many it leased, and how many of those not for the
-- first time.
create or replace function gapless_internal.note_claim(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_taken integer, p_repeated bigint,
    p_frontier bigint, p_lost bigint
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.progress
    set frontier = p_frontier, used_at = p_now, fence = p.fence, redelivered = redelivered + p_repeated,
        leased = leased + p_taken, removed = removed + p_lost,
        next_end = case when p_taken = 0 then next_end
                        else least(next_end, p_now + s.ack_wait * interval '1 second') end
    where subscription_id = s.id;
    if p_frontier > p.frontier then
        delete from gapless.settled_ahead where subscription_id = s.id and message_id <= p_frontier;
    end if;
end $$;

-- The messages that were leased just now, in this order, as gapless.claim returns them. A message that
-- retention removes at this moment is left out; the end of its lease finds that. It has no security definer,
-- so that it is planned as a part of the claim. p_lowest and p_highest of the ids: so segments that have none of
-- them are not even opened.
create or replace function gapless_internal.handed_messages(
    p_subscription_id integer, p_ids bigint[], p_lowest bigint, p_highest bigint
) returns table (
    id bigint, channel text, seq bigint, created_at timestamptz, expires_at timestamptz, type text, key text,
    sender text, headers json, data json, "binary" bytea, attempts integer, lease bigint, deadline timestamptz,
    member bigint, company integer, change json
)
language sql stable as $$
    select d.message_id, coalesce(k.channel, c.name), coalesce(k.seq, m.seq),
           coalesce(k.created_at, m.created_at), case when k.id is null then m.expires_at else k.expires_at end,
           coalesce(k.type, m.type), case when k.id is null then m.key else k.key end,
           case when k.id is null then m.sender else k.sender end,
           case when k.id is null then m.headers else k.headers end,
           case when k.id is null then m.data else k.data end,
           case when k.id is null then m."binary" else k."binary" end,
           d.attempts, d.lease, d.at, d.member, d.company,
           case when k.id is null then m.change else k.change end
    from unnest(p_ids) with ordinality as x (id, ord)
    join gapless.deliveries d on d.subscription_id = p_subscription_id and d.message_id = x.id
    left join gapless.kept k on k.id = d.kept_id
    left join gapless.messages m on m.id = d.message_id and d.kept_id is null and m.id between p_lowest and p_highest
    left join gapless.channels c on c.id = d.channel_id
    where k.id is not null or m.id is not null and c.id is not null
    order by x.ord
$$;

-- When a lease or a delay ends next; null: there is none.
create or replace function gapless_internal.next_due(p_subscription_id integer, p_now timestamptz) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return least((select nullif(p.next_end, 'infinity') from gapless.progress p
                  where p.subscription_id = p_subscription_id),
                 (select min(d.at) from gapless.deliveries d
                  where d.subscription_id = p_subscription_id and d.state = 1 and d.at > p_now));
end $$;

-- Leases messages that are due again to p_hands (null: p_limit of a pull), at most p_room; p_dead messages
-- have died in this claim before. A death makes room for the next message of its lane, so this may take a few
-- rounds. Out: what was leased, how many of it not for the first time, what died, and the hands, room and
-- bytes left for new messages. more: some due message is left.
create or replace function gapless_internal.lease_due(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_limit integer, p_room integer,
    p_hands bigint[], p_places integer[], p_dead integer, out taken bigint[], out repeated bigint,
    out deaths gapless.death[], out hands bigint[], out room integer, out bytes_left bigint, out more boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    max_rounds constant integer := 20;
    max_deaths constant integer := 1000;
    places integer[] := coalesce(p_places, array_fill(0, array[p_limit]));
    seated record;
    given record;
    left_over integer[];
    rounds integer := 0;
begin
    taken := '{}';
    repeated := 0;
    deaths := '{}';
    hands := coalesce(p_hands, array_fill(0::bigint, array[p_limit]));
    room := p_room;
    bytes_left := 8388608;
    more := false;
    while room > 0 and exists (select from gapless.deliveries d
                               where d.subscription_id = s.id and d.state = 1 and d.at <= p_now) loop
        rounds := rounds + 1;
        select * into seated from gapless_internal.seat(s.id, p.doubt, p_now, hands, places, room);
        select * into given from gapless_internal.lease_seated(
            s, p.fence, p_now, seated.ids, seated.seats, hands, bytes_left);
        bytes_left := bytes_left - given.bytes;
        taken := taken || given.ids;
        repeated := repeated + given.repeated;
        left_over := array(
            select o from unnest(seated.open) o
            union all
            select x.seat from unnest(seated.ids, seated.seats) as x (id, seat)
            where not x.id = any(given.ids) order by 1);
        hands := array(select hands[o] from unnest(left_over) with ordinality as l (o, ord) order by ord);
        places := array(select places[o] from unnest(left_over) with ordinality as l (o, ord) order by ord);
        room := least(room - cardinality(given.ids), cardinality(hands));
        if given.deaths is not null then
            deaths := deaths || given.deaths;
            perform gapless_internal.promote_after(s.id, given.deaths, p_now);
        end if;
        more := room = 0 or bytes_left <= 0
                or given.deaths is not null and (rounds >= max_rounds or p_dead + cardinality(deaths) >= max_deaths);
        exit when more or given.deaths is null;
    end loop;
end $$;

-- Leases these rows, each to the hand at its seat, up to p_bytes. A message that was removed, has expired or
-- was handed out too often dies instead. bytes: of those leased.
create or replace function gapless_internal.lease_seated(
    s gapless.subscriptions, p_fence bigint, p_now timestamptz, p_ids bigint[], p_seats integer[], p_hands bigint[],
    p_bytes bigint, out ids bigint[], out repeated bigint, out deaths gapless.death[], out bytes bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    streamed_by constant bigint := gapless_internal.streaming_process();
    lowest constant bigint := (select min(i) from unnest(p_ids) i);
    highest constant bigint := (select max(i) from unnest(p_ids) i);
begin
    with due as materialized (
        select d.message_id, d.seat, d.size, case
                   when d.kept_id is null and (d.stored_id is null or c.id is null) then 'removed'
                   when d.expires_at <= p_now or d.entered_at + s.message_ttl * interval '1 second' <= p_now
                   then 'expired'
                   when s.max_deliver > 0 and d.strikes >= s.max_deliver then 'max_deliver' end as verdict
        from (
            select d.*, m.id as stored_id, x.size,
                   sum(x.size) over (order by d.ord) - x.size as bytes_before
            from (select d.*, x.seat, x.ord
                  from unnest(p_ids, p_seats) with ordinality as x (id, seat, ord)
                  join gapless.deliveries d on d.subscription_id = s.id and d.message_id = x.id) d
            left join gapless.messages m on m.id = d.message_id and m.id between lowest and highest
            left join gapless.kept k on k.id = d.kept_id
            cross join lateral (select coalesce(k.size, m.size, 0) as size) x
        ) d
        left join gapless.channels c on c.id = d.channel_id
        where d.bytes_before < p_bytes
    ), given as (
        update gapless.deliveries d
        set state = 0, at = p_now + s.ack_wait * interval '1 second', attempts = d.attempts + 1, lease = p_fence,
            holder = streamed_by, member = p_hands[due.seat]
        from due where d.subscription_id = s.id and d.message_id = due.message_id and due.verdict is null
        returning d.message_id, d.attempts
    ), ended as (
        delete from gapless.deliveries d using due
        where d.subscription_id = s.id and d.message_id = due.message_id and due.verdict is not null
        returning d.*, due.verdict
    )
    select coalesce((select array_agg(g.message_id order by g.message_id) from given g), '{}'),
           (select count(*) from given g where g.attempts > 1),
           array_agg((e.message_id, e.channel_id, e.attempts, e.lane, e.kept_id, e.verdict,
                      e.last_error)::gapless.death order by e.message_id),
           (select coalesce(sum(due.size), 0) from due where due.verdict is null)
    into ids, repeated, deaths, bytes from ended e;
end $$;

-- Leases new messages to p_hands, at most p_room and about p_bytes; p_dead messages have died in this claim
-- before. A message whose lane is taken waits as a row, so that others of the same batch can pass it. Out:
-- what was leased, what died, the new frontier, and how many messages retention removed on the way. more:
-- another claim may find more at once.
create or replace function gapless_internal.lease_ahead(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_settled bigint, p_room integer,
    p_hands bigint[], p_bytes bigint, p_dead integer, out taken bigint[], out deaths gapless.death[],
    out frontier bigint, out lost bigint, out more boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    lookahead constant integer := 10000;
    max_rounds constant integer := 20;
    max_deaths constant integer := 1000;
    max_waiting constant integer := 2000;
    chunk integer := p_room;
    waiting_room integer := max_waiting;
    lookahead_ends boolean := false;
    seen record;
    given record;
    reached bigint;
begin
    taken := '{}';
    deaths := '{}';
    frontier := p.frontier;
    lost := 0;
    more := false;
    if p_room > 0 and s.ordering <> 'none' then
        select lookahead - count(*) into waiting_room
        from (select from gapless.deliveries d where d.subscription_id = s.id and d.state = 2
              limit lookahead) d;
        lookahead_ends := waiting_room <= max_waiting;
        waiting_room := least(waiting_room, max_waiting);
    end if;
    for i in 1 .. max_rounds loop
        exit when p_room <= 0;
        select * into seen from gapless_internal.scan(s, frontier, p_settled, chunk);
        exit when seen.ids is null and not seen.cut and seen.complete_to <= frontier;
        select * into given from gapless_internal.lease_scanned(
            s, p, p_now, seen.ids, seen.channel_ids, seen.keys, seen.created, seen.expires, seen.sizes,
            p_room, p_hands, waiting_room, p_bytes);
        reached := greatest(frontier, coalesce(given.reached, seen.complete_to));
        if seen.trimmed is not null then
            lost := lost + gapless_internal.lose(s.id, seen.trimmed, seen.trims, frontier, reached);
        end if;
        frontier := reached;
        p_bytes := p_bytes - given.bytes;
        taken := taken || given.ids;
        p_hands := p_hands[cardinality(given.ids) + 1:];
        p_room := p_room - cardinality(given.ids);
        waiting_room := waiting_room - given.blocked;
        deaths := deaths || given.deaths;
        -- At the end of the look-ahead, no message is free before one in it is settled.
        more := case when given.reached is null then seen.cut
                     else p_room = 0 or p_bytes <= 0 or not lookahead_ends end;
        exit when given.reached is not null or not seen.cut or p_room = 0;
        exit when i = max_rounds or p_dead + cardinality(deaths) >= max_deaths;
        more := false;
        chunk := least(1000, greatest(p_room, chunk * 4));
    end loop;
end $$;

-- Of these messages, in id order: leases the free ones, at most p_room and about p_bytes; makes rows of those
-- whose lane is taken, at most p_waiting_room; lets expired ones die. Nothing above `reached` is touched,
-- because the next one would not fit; null: all of them fitted. bytes: of those leased.
create or replace function gapless_internal.lease_scanned(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_ids bigint[], p_channels bigint[], p_keys text[],
    p_created timestamptz[], p_expires timestamptz[], p_sizes integer[], p_room integer, p_hands bigint[],
    p_waiting_room integer, p_bytes bigint,
    out ids bigint[], out blocked integer, out deaths gapless.death[], out bytes bigint, out reached bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    streamed_by constant bigint := gapless_internal.streaming_process();
begin
    with c as (
        select x.*, gapless_internal.lane_of(s.ordering, x.key) as lane,
               x.expires <= p_now or x.created + s.message_ttl * interval '1 second' <= p_now as expired
        from unnest(p_ids, p_channels, p_keys, p_created, p_expires, p_sizes)
            as x (id, channel_id, key, created, expires, size)
        where (p.not_before is null or x.created >= p.not_before)
          and not exists (select from gapless.settled_ahead a
                          where a.subscription_id = s.id and a.message_id = x.id)
    ), laned as (
        select c.*, c.expired is not true and c.lane is not null and (
                   row_number() over (partition by c.channel_id, c.lane, c.expired is true order by c.id) > 1
                   or exists (select from gapless.deliveries d
                              where d.subscription_id = s.id and d.channel_id = c.channel_id
                                and d.lane = c.lane)) as waits
        from c
    ), counted as (
        select l.*, count(*) filter (where l.leased) over w as leases,
               count(*) filter (where l.waits) over w as waiting,
               coalesce(sum(l.size) filter (where l.leased) over w, 0)
               - case when l.leased then l.size else 0 end as bytes
        from (select laned.*, laned.expired is not true and not laned.waits as leased from laned) l
        window w as (order by l.id)
    ), judged as (
        select x.*, x.leases <= p_room and x.waiting <= p_waiting_room and x.bytes < p_bytes as fits from counted x
    ), fit as (
        select * from judged x where x.fits
    ), stored as (
        insert into gapless.deliveries (subscription_id, message_id, channel_id, lease, at, entered_at,
                                        expires_at, attempts, state, lane, holder, member)
        select s.id, f.id, f.channel_id, p.fence,
               case when f.waits then 'epoch' else p_now + s.ack_wait * interval '1 second' end,
               f.created, f.expires, (not f.waits)::integer, case when f.waits then 2 else 0 end, f.lane, streamed_by,
               case when f.waits then 0 else p_hands[f.leases] end
        from fit f where f.expired is not true
        on conflict do nothing
        returning message_id, state
    )
    select coalesce((select array_agg(x.message_id order by x.message_id) from stored x where x.state = 0), '{}'),
           (select count(*) from stored x where x.state = 2),
           coalesce((select array_agg((f.id, f.channel_id, 0, null, null, 'expired', null)::gapless.death order by f.id)
                     from fit f where f.expired), '{}'),
           (select coalesce(sum(f.size) filter (where f.leased), 0) from fit f),
           -- All that fit, up to the first that does not.
           (select min(x.id) - 1 from judged x where not x.fits)
    into ids, blocked, deaths, bytes, reached;
end $$;
