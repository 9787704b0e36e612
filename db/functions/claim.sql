-- Handing messages out.

-- Leases whose deadline has passed, at most p_limit: due again at once, in the company that company.sql tells of, or
-- dead.
create or replace function gapless.end_leases(s gapless.subscriptions, p_now timestamptz, p_limit integer)
returns gapless.death[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deaths gapless.death[];
    n integer;
begin
    if p_now < (select p.next_end from gapless.progress p where p.subscription_id = s.id) then
        return null;
    end if;
    with ended as materialized (
        select x.message_id, x.alone, x.alone and s.max_deliver > 0 and x.strikes + 1 >= s.max_deliver as last,
               x.company
        from gapless.judge_silence(s, p_limit, p_now) x
    ), back as (
        update gapless.deliveries d
        set state = 1, at = p_now, last_error = 'the lease ended without an ack',
            strikes = d.strikes + e.alone::integer, company = e.company
        from ended e where d.subscription_id = s.id and d.message_id = e.message_id and not e.last
    ), dead as (
        delete from gapless.deliveries d using ended e
        where d.subscription_id = s.id and d.message_id = e.message_id and e.last
        returning d.*
    )
    select array_agg((d.message_id, d.channel_id, d.attempts, d.lane, d.kept_id, 'max_deliver',
                      coalesce(d.last_error, 'the lease ended without an ack'))::gapless.death order by d.message_id),
           (select count(*) from ended)
    into deaths, n from dead d;
    update gapless.progress p
    set leased = p.leased - n, doubt = p.doubt or n > 0, silent = case when n > 0 then p.fence else p.silent end,
        next_end = coalesce((
            select min(d.at) from gapless.deliveries d where d.subscription_id = s.id and d.state = 0), 'infinity')
    where p.subscription_id = s.id;
    perform gapless.promote_after(s.id, deaths, p_now);
    return deaths;
end $$;

drop function if exists gapless.claim(integer, bigint, integer);

-- Leases up to p_limit messages, and about 8 MiB: first what is due again, then new ones above the frontier. p_hands
-- says to whom, one member for each (0: a pull), and p_places how many that member holds with it; without them all
-- are for one pull. Rows of kind 0 are the messages; the last row, of kind 1, tells the rest: note = {"status": "ok" | "gone" |
-- "paused", "more", "doubt", "touched", "gaps"}, deadline = when something further becomes due by time alone.
create or replace function gapless.claim(
    p_subscription_id integer, p_settled bigint, p_limit integer, p_hands bigint[] default null,
    p_places integer[] default null
) returns table (
    kind integer, id bigint, channel text, seq bigint, created_at timestamptz, expires_at timestamptz,
    type text, key text, sender text, headers json, data json, "binary" bytea, attempts integer, lease bigint,
    deadline timestamptz, member bigint, company integer, note json
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    lookahead constant integer := 10000;
    max_rounds constant integer := 20;
    max_waiting_a_claim constant integer := 2000;
    bytes_left bigint := 8388608;
    bytes bigint;
    s gapless.subscriptions;
    p gapless.progress;
    t timestamptz;
    room integer;
    hands bigint[] := coalesce(p_hands, array_fill(0::bigint, array[p_limit]));
    places integer[] := coalesce(p_places, array_fill(0, array[p_limit]));
    seated record;
    left_over integer[];
    taken bigint[] := '{}';
    part bigint[];
    deaths gapless.death[];
    more_deaths gapless.death[];
    streamed_by constant bigint := gapless.streaming_process();
    chunk integer;
    waiting_room integer;
    blocked integer;
    reached bigint;
    was bigint;
    seen record;
    more boolean := false;
    again integer := 0;
    repeated bigint := 0;
    reached_to bigint;
    lost bigint := 0;
    lookahead_ends boolean := false;
    touched json;
begin
    perform gapless.lock_subscriptions(array[p_subscription_id]);
    select * into s from gapless.subscriptions where id = p_subscription_id;
    if not found then
        return query select 1, null::bigint, null::text, null::bigint, null::timestamptz, null::timestamptz,
            null::text, null::text, null::text, null::json, null::json, null::bytea, null::integer, null::bigint,
            null::timestamptz, null::bigint, null::integer, '{"status": "gone"}'::json;
        return;
    end if;
    select * into p from gapless.progress where subscription_id = s.id;
    if not found then
        perform gapless.no_progress(s.id);
    end if;
    was := p.frontier;
    t := clock_timestamp();
    p_settled := gapless.readable(s, p_settled);
    deaths := gapless.end_leases(s, t, 1000);
    if p.mixed or p.filter is distinct from gapless.filter_of(s) then
        perform gapless.refilter(s, p, t);
    end if;
    if p.ordering <> s.ordering then
        perform gapless.relane(s.id, s.ordering, t);
    elsif p.crowded then
        perform gapless.line_up(s.id);
    end if;

    select least(cardinality(hands), s.max_in_flight - leased), gapless.doubts(s.id, doubt) into room, p.doubt
    from gapless.progress where subscription_id = s.id;
    if s.paused then
        room := 0;
    end if;
    -- Never one that was given before, whatever state the database was restored to since: the clock goes on.
    p.fence := greatest(p.fence + 1, (extract(epoch from t) * 1000000)::bigint);

    -- What is due again. A death makes room for the next of its lane, so it may take a few rounds.
    while room > 0 and exists (select from gapless.deliveries d
                               where d.subscription_id = s.id and d.state = 1 and d.at <= t) loop
        again := again + 1;
        select * into seated from gapless.seat(s.id, p.doubt, t, hands, places, room);
        with due as materialized (
            select d.message_id, d.seat, d.size, case
                       when d.kept_id is null and (d.stored_id is null or c.id is null) then 'removed'
                       when d.expires_at <= t or d.entered_at + s.message_ttl * interval '1 second' <= t then 'expired'
                       when s.max_deliver > 0 and d.strikes >= s.max_deliver then 'max_deliver' end as verdict
            from (
                select d.*, m.id as stored_id, x.size,
                       sum(x.size) over (order by d.ord) - x.size as bytes_before
                from (select d.*, x.seat, x.ord
                      from unnest(seated.ids, seated.seats) with ordinality as x (id, seat, ord)
                      join gapless.deliveries d on d.subscription_id = s.id and d.message_id = x.id) d
                left join gapless.messages m on m.id = d.message_id
                left join gapless.kept k on k.id = d.kept_id
                cross join lateral (select coalesce(k.size, m.size, 0) as size) x
            ) d
            left join gapless.channels c on c.id = d.channel_id
            where d.bytes_before < bytes_left
        ), given as (
            update gapless.deliveries d
            set state = 0, at = t + s.ack_wait * interval '1 second', attempts = d.attempts + 1, lease = p.fence,
                holder = streamed_by, member = hands[due.seat]
            from due where d.subscription_id = s.id and d.message_id = due.message_id and due.verdict is null
            returning d.message_id, d.attempts
        ), ended as (
            delete from gapless.deliveries d using due
            where d.subscription_id = s.id and d.message_id = due.message_id and due.verdict is not null
            returning d.*, due.verdict
        )
        select (select array_agg(g.message_id order by g.message_id) from given g),
               repeated + (select count(*) from given g where g.attempts > 1),
               array_agg((e.message_id, e.channel_id, e.attempts, e.lane, e.kept_id, e.verdict, e.last_error)::gapless.death
                         order by e.message_id),
               (select coalesce(sum(due.size), 0) from due where due.verdict is null)
        into part, repeated, more_deaths, bytes from ended e;
        bytes_left := bytes_left - bytes;
        taken := taken || coalesce(part, '{}');
        left_over := array(
            select o from unnest(seated.open) o
            union all
            select x.seat from unnest(seated.ids, seated.seats) as x (id, seat)
            where part is null or not x.id = any(part) order by 1);
        hands := array(select hands[o] from unnest(left_over) with ordinality as l (o, ord) order by ord);
        places := array(select places[o] from unnest(left_over) with ordinality as l (o, ord) order by ord);
        room := least(room - coalesce(cardinality(part), 0), cardinality(hands));
        if more_deaths is not null then
            deaths := coalesce(deaths, '{}') || more_deaths;
            perform gapless.promote_after(s.id, more_deaths, t);
        end if;
        more := room = 0 or bytes_left <= 0
                or more_deaths is not null and (again >= max_rounds or cardinality(deaths) >= 1000);
        exit when more or more_deaths is null;
    end loop;
    -- New ones. Whose lane is taken waits as a row, so that others of the same batch can pass it.
    waiting_room := max_waiting_a_claim;
    if room > 0 and s.ordering <> 'none' then
        select lookahead - count(*) into waiting_room
        from (select from gapless.deliveries d where d.subscription_id = s.id and d.state = 2
              limit lookahead) d;
        lookahead_ends := waiting_room <= max_waiting_a_claim;
        waiting_room := least(waiting_room, max_waiting_a_claim);
    end if;
    chunk := room;
    again := 0;
    while room > 0 and not more loop
        again := again + 1;
        select * into seen from gapless.scan(s, p.frontier, p_settled, chunk);
        exit when seen.ids is null and not seen.cut and seen.complete_to <= p.frontier;
        with c as (
            select x.*, gapless.lane_of(s.ordering, x.key) as lane,
                   x.expires <= t or x.created + s.message_ttl * interval '1 second' <= t as expired
            from unnest(seen.ids, seen.channel_ids, seen.keys, seen.created, seen.expires, seen.sizes)
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
            select x.*, x.leases <= room and x.waiting <= waiting_room and x.bytes < bytes_left as fits from counted x
        ), fit as (
            select * from judged x where x.fits
        ), stored as (
            insert into gapless.deliveries (subscription_id, message_id, channel_id, lease, at, entered_at,
                                            expires_at, attempts, state, lane, holder, member)
            select s.id, f.id, f.channel_id, p.fence,
                   case when f.waits then 'epoch' else t + s.ack_wait * interval '1 second' end,
                   f.created, f.expires, (not f.waits)::integer, case when f.waits then 2 else 0 end, f.lane, streamed_by,
                   case when f.waits then 0 else hands[f.leases] end
            from fit f where f.expired is not true
            on conflict do nothing
            returning message_id, state
        )
        select (select array_agg(x.message_id order by x.message_id) from stored x where x.state = 0),
               (select count(*) from stored x where x.state = 2),
               (select array_agg((f.id, f.channel_id, 0, null, null, 'expired', null)::gapless.death order by f.id)
                from fit f where f.expired),
               -- All that fits up to the first that does not.
               (select min(x.id) - 1 from judged x where not x.fits),
               (select coalesce(sum(f.size) filter (where f.leased), 0) from fit f)
        into part, blocked, more_deaths, reached, bytes;
        bytes_left := bytes_left - bytes;
        reached_to := greatest(p.frontier, coalesce(reached, seen.complete_to));
        if seen.trimmed is not null then
            lost := lost + gapless.lose(s.id, seen.trimmed, seen.trims, p.frontier, reached_to);
        end if;
        p.frontier := reached_to;
        taken := taken || coalesce(part, '{}');
        hands := hands[coalesce(cardinality(part), 0) + 1:];
        room := room - coalesce(cardinality(part), 0);
        waiting_room := waiting_room - blocked;
        deaths := coalesce(deaths, '{}') || coalesce(more_deaths, '{}');
        -- At the end of the look-ahead there is nothing to be had before something of it is settled.
        more := case when reached is null then seen.cut
                     else room = 0 or bytes_left <= 0 or not lookahead_ends end;
        exit when reached is not null or not seen.cut or room = 0;
        exit when again >= max_rounds or cardinality(deaths) >= 1000;
        more := false;
        chunk := least(1000, greatest(room, chunk * 4));
    end loop;

    if p.frontier = was and taken = '{}' then
        perform gapless.note_use(s.id, t);
    else
        update gapless.progress
        set frontier = p.frontier, used_at = t, fence = p.fence,
            redelivered = redelivered + repeated, leased = leased + cardinality(taken),
            next_end = case when taken = '{}' then next_end
                            else least(next_end, t + s.ack_wait * interval '1 second') end,
            removed = removed + lost
        where subscription_id = s.id;
    end if;
    if p.frontier > was then
        delete from gapless.settled_ahead where subscription_id = s.id and message_id <= p.frontier;
    end if;
    if cardinality(deaths) > 0 then
        select b.touched into touched from gapless.bury(s, deaths, t) b;
    elsif p.frontier = was and taken = '{}' then
        -- Nothing was decided that the next claim would not find again: the lock alone need not be on disk.
        perform set_config('synchronous_commit', 'off', true);
    end if;

    return query
        select 0, d.message_id, coalesce(k.channel, c.name), coalesce(k.seq, m.seq),
               coalesce(k.created_at, m.created_at), case when k.id is null then m.expires_at else k.expires_at end,
               coalesce(k.type, m.type), case when k.id is null then m.key else k.key end,
               case when k.id is null then m.sender else k.sender end,
               case when k.id is null then m.headers else k.headers end,
               case when k.id is null then m.data else k.data end,
               case when k.id is null then m."binary" else k."binary" end,
               d.attempts, d.lease, d.at, d.member, d.company, null::json
        from unnest(taken) with ordinality as x (id, ord)
        join gapless.deliveries d on d.subscription_id = s.id and d.message_id = x.id
        left join gapless.kept k on k.id = d.kept_id
        left join gapless.messages m on m.id = d.message_id and d.kept_id is null
        left join gapless.channels c on c.id = d.channel_id
        -- What was removed in this very moment is found to be so when its lease ends.
        where k.id is not null or m.id is not null and c.id is not null
        order by x.ord;
    return query
        select 1, null::bigint, null::text, null::bigint, null::timestamptz, null::timestamptz, null::text,
               null::text, null::text, null::json, null::json, null::bytea, null::integer, null::bigint,
               least((select nullif(next_end, 'infinity') from gapless.progress where subscription_id = s.id),
                     (select min(d.at) from gapless.deliveries d
                      where d.subscription_id = s.id and d.state = 1 and d.at > t)),
               null::bigint, null::integer, json_build_object('status', case when s.paused then 'paused' else 'ok' end, 'more', more,
                                 'doubt', p.doubt, 'touched', touched,
                                 'gaps', case when streamed_by > 0 then gapless.gaps_of(s.id, 100) end);
end $$;
