-- Looking at messages that a subscription has not settled. A look leases, counts and locks nothing: it is one
-- snapshot.

-- The state of a row, by its stored state and time: a row whose lease has ended counts as ready.
create or replace function gapless_internal.state_of(p_state smallint, p_at timestamptz, p_now timestamptz) returns text
language sql immutable as $$
    select case when p_state = 2 then 'waiting' when p_at <= p_now then 'ready' when p_state = 1 then 'delayed'
                else 'leased' end
$$;

-- Messages above the frontier with ids above p_after in the state p_state, p_limit of them or more, and for
-- which message of its lane each waits (null: it is ready). All there are up to `reached`. `ended`: there are
-- no more, or, with an ordering, the look-ahead ends here: then `complete` is false. Expired messages are
-- left out: the next decision makes dead letters of them.
create or replace function gapless_internal.look_ahead(
    s gapless.subscriptions, p gapless.progress, p_now timestamptz, p_state text, p_after bigint, p_limit integer,
    out ids bigint[], out waits bigint[], out reached bigint, out ended boolean, out complete boolean
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    lookahead constant integer := 10000;
    max_rounds constant integer := 20;
    laned constant boolean := p.ordering <> 'none';
    chunk integer := p_limit;
    rounds integer := 0;
    seen record;
    heads record;
    all_ids bigint[] := '{}';
    channels bigint[] := '{}';
    lanes text[] := '{}';
begin
    ids := '{}';
    complete := true;
    reached := case when laned then p.frontier else greatest(p.frontier, p_after) end;
    select array_agg(x.channel_id) as channels, array_agg(x.lane) as lanes, array_agg(x.message_id) as ids into heads
    from (select distinct on (d.channel_id, d.lane) d.channel_id, d.lane, d.message_id
          from gapless.deliveries d where d.subscription_id = s.id and d.lane is not null
          order by d.channel_id, d.lane, d.state, d.message_id) x;
    loop
        rounds := rounds + 1;
        select * into seen from gapless_internal.scan(s, reached, 9007199254740991, chunk);
        reached := greatest(reached, seen.complete_to);
        select all_ids || coalesce(array_agg(x.id order by x.id), '{}'),
               channels || coalesce(array_agg(x.channel_id order by x.id), '{}'),
               lanes || coalesce(array_agg(gapless_internal.lane_of(p.ordering, x.key) order by x.id), '{}')
        into all_ids, channels, lanes
        from unnest(seen.ids, seen.channel_ids, seen.keys, seen.created, seen.expires)
            as x (id, channel_id, key, created, expires)
        where (x.expires <= p_now or x.created + s.message_ttl * interval '1 second' <= p_now) is not true
          and (p.not_before is null or x.created >= p.not_before)
          and not exists (select from gapless.settled_ahead a where a.subscription_id = s.id and a.message_id = x.id);
        select coalesce(array_agg(l.id order by l.id), '{}'), coalesce(array_agg(l.waits_for order by l.id), '{}')
        into ids, waits
        from (
            select c.id, case when c.lane is not null then coalesce(h.id, nullif(
                       first_value(c.id) over (partition by c.channel_id, c.lane order by c.id), c.id)) end as waits_for
            from unnest(all_ids, channels, lanes) as c (id, channel_id, lane)
            left join unnest(heads.channels, heads.lanes, heads.ids) as h (channel_id, lane, id)
                   on h.channel_id = c.channel_id and h.lane = c.lane
        ) l
        where l.id > p_after and (p_state is null or (p_state = 'ready') = (l.waits_for is null));
        ended := not seen.cut;
        exit when ended or cardinality(ids) >= p_limit;
        if laned and cardinality(all_ids) >= lookahead then
            complete := false;
        end if;
        exit when rounds >= max_rounds or not complete;
        chunk := least(1000, chunk * 4);
    end loop;
    if laned and not ended and cardinality(ids) < p_limit then
        -- The next page would end here too: the message that another waits for is known only from the
        -- frontier on.
        ended := true;
        complete := false;
    end if;
end $$;

-- The page that gapless.look returns, of the rows and of these messages ahead, which are complete up to
-- p_reached (null: there are no more). p_waits: for which message each of those ahead waits. It has no
-- security definer, so that it is planned as a part of the look.
create or replace function gapless_internal.look_page(
    s gapless.subscriptions, p_now timestamptz, p_after bigint, p_limit integer, p_bytes bigint, p_rows bigint[],
    p_ahead bigint[], p_waits bigint[], p_reached bigint, p_complete boolean
) returns table (
    kind integer, id bigint, channel text, seq bigint, created_at timestamptz, expires_at timestamptz,
    type text, key text, sender text, headers json, data json, "binary" bytea, state text, attempt integer,
    at timestamptz, member bigint, waits_for bigint, last_error text, note json
)
language sql stable as $$
    with hits as materialized (
        select x.id, x.waits_for, x.is_row, row_number() over (order by x.id) as n
        from (select r.id, null::bigint as waits_for, true as is_row from unnest(p_rows) as r (id)
              union all
              select a.id, a.waits_for, false from unnest(p_ahead, p_waits) as a (id, waits_for)) x
        where p_reached is null or x.id <= p_reached
        order by x.id limit p_limit + 1
    ), whole as materialized (
        select h.id, h.n, coalesce(k.channel, c.name) as channel, coalesce(k.seq, m.seq) as seq,
               coalesce(k.created_at, m.created_at) as created_at,
               case when k.id is null then m.expires_at else k.expires_at end as expires_at,
               coalesce(k.type, m.type) as type, case when k.id is null then m.key else k.key end as key,
               case when k.id is null then m.sender else k.sender end as sender,
               case when k.id is null then m.headers else k.headers end as headers,
               case when k.id is null then m.data else k.data end as data,
               case when k.id is null then m."binary" else k."binary" end as "binary",
               case when k.id is null then m.change else k.change end as change,
               coalesce(f.state, case when h.waits_for is null then 'ready' else 'waiting' end) as state,
               coalesce(d.attempts, 0) as attempt, case when d.at > p_now then d.at end as at,
               case when f.state = 'leased' then d.member end as member,
               coalesce(f.waits_for, h.waits_for) as waits_for, d.last_error,
               sum(coalesce(k.size, m.size)) over (order by h.id) - coalesce(k.size, m.size) as bytes_before
        from hits h
        left join gapless.deliveries d on h.is_row and d.subscription_id = s.id and d.message_id = h.id
        left join gapless.kept k on k.id = d.kept_id
        left join gapless.messages m on m.id = h.id and d.kept_id is null
        left join gapless.channels c on c.id = m.channel_id
        left join lateral (
            select gapless_internal.state_of(d.state, d.at, p_now) as state, case when d.state = 2 then nullif((
                       select y.message_id from gapless.deliveries y
                       where y.subscription_id = s.id and y.channel_id = d.channel_id and y.lane = d.lane
                       order by y.state, y.message_id limit 1), d.message_id) end as waits_for
        ) f on d.message_id is not null
        -- Rows that were removed or do not match any more are ended by the next decision.
        where k.id is not null or m.id is not null and c.id is not null and (
                  not h.is_row or f.state = 'leased'
                  or gapless.admits(s.types, s.keys, s.changes, m.type, m.key, m.change) is true)
    ), cut as (
        select least((select min(h.id) from hits h where h.n > p_limit),
                     (select min(w.id) from whole w where w.bytes_before >= p_bytes)) as id
    )
    select 0, w.id, w.channel, w.seq, w.created_at, w.expires_at, w.type, w.key, w.sender, w.headers, w.data,
           w."binary", w.state, w.attempt, w.at, w.member, w.waits_for, w.last_error, w.change
    from whole w, cut x where x.id is null or w.id < x.id
    union all
    select 1, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
           json_build_object(
               'has_more', x.id is not null or p_reached is not null,
               'cursor', coalesce(x.id - 1, p_reached, greatest(p_after, (select max(h.id) from hits h))),
               'complete', p_complete)
    from cut x
    order by 1, 2
$$;

-- A page of the messages in one state (null: in any) with ids above p_after, at most p_limit of them and
-- about p_bytes. Rows of kind 0 are the messages; `at` is the deadline, or when the message becomes due; note: their `change`. The
-- last row, of kind 1, has the rest: note = {"has_more", "cursor", "complete"}. Work is bounded, so a page
-- may be short or empty though more follow.
create or replace function gapless.look(
    s gapless.subscriptions, p gapless.progress, p_state text, p_after bigint, p_limit integer, p_bytes bigint
) returns table (
    kind integer, id bigint, channel text, seq bigint, created_at timestamptz, expires_at timestamptz,
    type text, key text, sender text, headers json, data json, "binary" bytea, state text, attempt integer,
    at timestamptz, member bigint, waits_for bigint, last_error text, note json
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    stretch constant integer := 20000;
    t constant timestamptz := clock_timestamp();
    under_way bigint[];
    reached bigint;
    ahead record;
begin
    if p.subscription_id is null then
        perform gapless_internal.no_progress(s.id);
    end if;
    with scanned as materialized (
        select d.* from gapless.deliveries d where d.subscription_id = s.id and d.message_id > p_after
        order by d.message_id limit stretch
    )
    select array(select d.message_id from scanned d
                 where (p_state is null or gapless_internal.state_of(d.state, d.at, t) = p_state)
                   and (d.state = 0 and d.at > t
                        or (d.expires_at <= t or d.entered_at + s.message_ttl * interval '1 second' <= t) is not true)
                 order by d.message_id limit p_limit + 1),
           (select case when count(*) = stretch then max(d.message_id) end from scanned d)
    into under_way, reached;
    if p_state is null or p_state in ('ready', 'waiting') then
        select * into ahead from gapless_internal.look_ahead(s, p, t, p_state, p_after, p_limit + 1);
        if not ahead.ended then
            reached := least(reached, ahead.reached);
        end if;
    else
        select '{}'::bigint[] as ids, '{}'::bigint[] as waits, true as complete into ahead;
    end if;

    return query
        select * from gapless_internal.look_page(s, t, p_after, p_limit, p_bytes, under_way, ahead.ids, ahead.waits,
                                                 reached, ahead.complete);
end $$;
