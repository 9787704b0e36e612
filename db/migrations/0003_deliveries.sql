-- Durable subscriptions at work: claim, lease, settle, expire, bury, replay.
--
-- Progress is one number, the frontier: every matching message at or below it was handed out and settled, or
-- has a row in gapless.deliveries (leased, due, delayed, or waiting behind its key). So rows are there only for
-- what is under way, and what is settled is known by the absence of a row.
--
-- All decisions about one subscription are made one after the other, under its advisory lock (class
-- 1195462741, the subscription's id). Locks, in this order: dead letters being replayed; subscription locks, by
-- id; then as the log has it (publishing lock, lock 4, channel rows, keys). A function that decides takes its
-- lock first and reads afterwards, each statement with a snapshot of its own: it sees all earlier decisions.

create sequence gapless.lease as bigint;

create table gapless.progress (
    subscription_id integer primary key,
    frontier bigint not null,
    -- Messages created before are passed over: a start in time is exact, though ids only roughly follow time.
    not_before timestamptz,
    -- The ordering that the rows' lanes were made for.
    ordering text not null,
    -- Of some lane several are leased, since before there was this order.
    crowded boolean not null default false,
    acked bigint not null default 0,
    redelivered bigint not null default 0,
    dead_lettered bigint not null default 0,
    removed bigint not null default 0,
    -- How many rows are leased, and a time before which none of those leases ends. The rows could tell, but not
    -- without passing by all that were there since vacuum came last.
    leased integer not null default 0 check (leased >= 0),
    next_end timestamptz not null default 'infinity',
    -- Messages that expired up to then were looked at, wherever they are.
    expired_to timestamptz not null default '-infinity',
    -- What matched when that was done; see gapless.matching.
    matching text,
    -- A look at those that expired since, where one is under way: up to when, and how far it has come.
    look_to timestamptz,
    looked_at timestamptz,
    looked_id bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

create table gapless.deliveries (
    subscription_id integer not null,
    message_id bigint not null,
    channel_id bigint not null,
    lease bigint not null,
    at timestamptz not null,
    entered_at timestamptz not null,
    expires_at timestamptz,
    kept_id bigint,
    attempts integer not null,
    state smallint not null check (state between 0 and 2),
    lane text,
    last_error text,
    primary key (subscription_id, message_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000000);
create index deliveries_at on gapless.deliveries (subscription_id, state, at, message_id);
create index deliveries_lane on gapless.deliveries (subscription_id, channel_id, lane, state, message_id)
    where lane is not null;
create index deliveries_expiring on gapless.deliveries (subscription_id, expires_at) where expires_at is not null;
comment on column gapless.deliveries.state is '0: leased, 1: due at `at`, 2: waiting for its lane';
comment on column gapless.deliveries.at is 'leased: the deadline; due or waiting: from when it may be handed out';
comment on column gapless.deliveries.lane is
    'messages of one channel and lane go one at a time; of a lane all rows but one wait. Null: no order';
comment on column gapless.deliveries.entered_at is 'when the subscription got it: created, or replayed';
comment on column gapless.deliveries.kept_id is 'a replayed message travels as its own copy';

-- Messages above the frontier that are settled already. Rows go once the frontier has passed them.
create table gapless.settled_ahead (
    subscription_id integer not null,
    message_id bigint not null,
    channel_id bigint not null,
    primary key (subscription_id, message_id)
) with (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000000);

-- Copies of messages that must outlive retention. Each belongs to one dead letter, or, replayed, to one delivery.
create table gapless.kept (
    id bigint generated always as identity primary key,
    channel_id bigint not null,
    message_id bigint not null,
    channel text not null,
    seq bigint not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    type text not null,
    key text,
    sender text,
    headers json,
    data json,
    "binary" bytea,
    size integer not null,
    -- Of a message that was replayed: all its deaths until then.
    journey json
);

create table gapless.dead_letters (
    id bigint generated always as identity primary key,
    namespace_id integer not null,
    subscription_id integer not null,
    kept_id bigint not null,
    attempts integer not null,
    created_at timestamptz not null,
    subscription text not null,
    channel text not null,
    reason text not null check (reason in ('rejected', 'expired', 'max_deliver', 'max_backlog', 'hops')),
    last_error text,
    journey json not null,
    published json,
    unroutable text
);
create index dead_letters_subscription on gapless.dead_letters (namespace_id, subscription, id);
create index dead_letters_namespace on gapless.dead_letters (namespace_id, id);
create index dead_letters_channel on gapless.dead_letters (namespace_id, channel, id);
create index dead_letters_reason on gapless.dead_letters (namespace_id, reason, id);

create index messages_expiring on gapless.messages (expires_at, id) where expires_at is not null;

-- Ballast: rows of subscriptions that cannot be, with negative ids. These tables are all but empty most of the time,
-- and whoever plans for an empty table takes any index for any purpose, and keeps that plan when a thousand messages
-- are in flight. Statistics are gathered here, of what a busy table looks like, and not again.
insert into gapless.deliveries
    (subscription_id, message_id, channel_id, lease, at, entered_at, attempts, state, lane)
select -1 - n % 250, n, n % 50, n, now() + (n % 60) * interval '1 second', now(), 1, n % 3, n::text
from generate_series(1, 5000) n;
insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
select -1 - n % 250, n, n % 50 from generate_series(1, 5000) n;
analyze gapless.deliveries, gapless.settled_ahead;

-- One channel's messages are read by both columns of its index at once, also where one would do, and bounds are written
-- so that nobody can guess how many rows lie between them. Asked for `channel_id = x order by id limit n`, the planner
-- takes a channel that has many messages to have them everywhere, and walks the whole log by its primary key until it
-- meets the first, or else reads all of the channel and sorts. The plain bound of the id leaves out segments, which are
-- 2^24 ids: it says no more than that, or the planner would again take few rows to be above it where there are many.
create or replace function gapless.seq_at(p_channel_id bigint, p_id bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(
        coalesce((select m.seq from gapless.messages m
                  where (m.channel_id, m.id) >= ((select p_channel_id), 0::bigint)
                    and (m.channel_id, m.id) <= ((select p_channel_id), (select p_id)) and m.id <= p_id
                  order by m.channel_id desc, m.id desc limit 1), 0),
        coalesce((select t.last_seq from gapless.trims t
                  where t.channel_id = p_channel_id and t.last_id <= p_id
                  order by t.last_id desc limit 1), 0))
$$;

create type gapless.death as (
    message_id bigint, channel_id bigint, attempts integer, lane text, kept_id bigint, reason text,
    last_error text
);

create function gapless.lock_subscriptions(p_ids integer[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    x integer;
begin
    for x in select distinct i from unnest(p_ids) i order by i loop
        perform pg_advisory_xact_lock(1195462741, x);
    end loop;
    -- Whoever decides comes to this table first, and to the others after it: see gapless.compact.
    lock table gapless.progress in row exclusive mode;
end $$;

-- What orders a message: its lane, by the ordering in force.
create function gapless.lane_of(p_ordering text, p_key text) returns text
language sql immutable as $$
    select case p_ordering when 'key' then p_key when 'channel' then '' end
$$;

-- Lanes whose row at work has gone: the first that waits becomes due, or, if it was given back with a delay before
-- there was this lane, when that is over. Call it after every removal.
create function gapless.promote(
    p_subscriptions integer[], p_channels bigint[], p_lanes text[], p_now timestamptz
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.deliveries d set state = 1, at = greatest(d.at, p_now)
    from (
        select distinct l.subscription_id, l.channel_id, l.lane
        from unnest(p_subscriptions, p_channels, p_lanes) as l (subscription_id, channel_id, lane)
        where l.lane is not null
    ) l cross join lateral (
        -- By state first: while any row of the lane is leased or due, that one is found, and nothing happens.
        select x.message_id, x.state from gapless.deliveries x
        where x.subscription_id = l.subscription_id and x.channel_id = l.channel_id and x.lane = l.lane
        order by x.state, x.message_id limit 1
    ) h
    where h.state = 2 and d.subscription_id = l.subscription_id and d.message_id = h.message_id
$$;

-- The ordering changed: rows get the lanes of the new one, and of each lane all but one wait. What is leased
-- already stays leased.
create function gapless.relane(p_subscription_id integer, p_ordering text, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update gapless.deliveries d
    set lane = gapless.lane_of(p_ordering, coalesce(k.key, m.key)),
        state = case when d.state = 2 then 1 else d.state end,
        at = case when d.state = 2 then p_now else d.at end
    from gapless.deliveries x
    left join gapless.messages m on m.id = x.message_id
    left join gapless.kept k on k.id = x.kept_id
    where x.subscription_id = p_subscription_id
      and d.subscription_id = x.subscription_id and d.message_id = x.message_id;
    update gapless.progress p set ordering = p_ordering, crowded = true where p.subscription_id = p_subscription_id;
    perform gapless.line_up(p_subscription_id);
end $$;

-- Of each lane all but one wait, and all while one is leased.
create function gapless.line_up(p_subscription_id integer) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update gapless.deliveries d set state = 2
    from (
        select x.message_id, row_number() over (partition by x.channel_id, x.lane
                                                order by x.state, x.message_id) as n
        from gapless.deliveries x
        where x.subscription_id = p_subscription_id and x.lane is not null
    ) x
    where d.subscription_id = p_subscription_id and d.message_id = x.message_id and x.n > 1 and d.state = 1;
    update gapless.progress p set crowded = exists (
        select from gapless.deliveries d
        where d.subscription_id = p_subscription_id and d.lane is not null and d.state = 0
        group by d.channel_id, d.lane having count(*) > 1)
    where p.subscription_id = p_subscription_id
$$;

-- Matching messages above p_after in id order, at most p_limit of them, nothing above p_settled where several
-- channels are read (of one channel its own order is enough). Everything that matches up to complete_to is in
-- the arrays; `cut`: there may be more above it. Work is bounded whatever the filters let through. Channels of which
-- retention has taken something above p_after are in `trimmed`, and up to where in `trims`: see gapless.lost.
create function gapless.scan(
    s gapless.subscriptions, p_after bigint, p_settled bigint, p_limit integer,
    out ids bigint[], out channel_ids bigint[], out keys text[], out created timestamptz[],
    out expires timestamptz[], out sizes integer[], out complete_to bigint, out cut boolean,
    out trimmed bigint[], out trims bigint[]
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    few constant integer := 64;
    near constant integer := 5000;
    known constant integer := 2000;
    stretch integer := case when s.types is null and s.keys is null then p_limit else greatest(p_limit, 2000) end;
    targets bigint[];
    upto bigint := p_settled;
begin
    if p_after < (select l.trimmed_id from gapless.log l) then
        select array_agg(c.id), array_agg(c.trimmed_id) into trimmed, trims
        from gapless.channels c
        where c.namespace_id = s.namespace_id and c.trimmed_id > p_after
          and (c.name = any(s.names) or c.name ~ s.regex);
    end if;
    if s.regex is null then
        select array_agg(c.id), case when cardinality(s.names) = 1 then max(c.last_id) else p_settled end
        into targets, upto
        from gapless.channels c
        where c.namespace_id = s.namespace_id and c.name = any(s.names) and c.last_id > p_after;
        if targets is null then
            complete_to := case when cardinality(s.names) = 1 then p_after else greatest(p_after, p_settled) end;
            cut := false;
            return;
        end if;
    elsif p_settled - p_after > near and (
        select count(*) <= known from (
            select from gapless.channels c where c.namespace_id = s.namespace_id limit known + 1) c
    ) then
        -- Far behind, it pays to look which channels it is about: a few are read by themselves.
        select array_agg(c.id) into targets
        from (select c.id from gapless.channels c
              where c.namespace_id = s.namespace_id and c.last_id > p_after
                and (c.name = any(s.names) or c.name ~ s.regex)
              limit few + 1) c;
        if targets is null then
            complete_to := p_settled;
            cut := false;
            return;
        end if;
        if cardinality(targets) > few then
            targets := null;
        end if;
    end if;
    if upto <= p_after then
        complete_to := p_after;
        cut := false;
        return;
    end if;

    if cardinality(targets) = 1 and s.types is null and s.keys is null then
        -- The common case in the plainest statement: it takes a tenth of the time of the one below.
        select array_agg(h.id), array_agg(h.channel_id), array_agg(h.key), array_agg(h.created_at),
               array_agg(h.expires_at), array_agg(h.size), count(*) = p_limit,
               case when count(*) = p_limit then max(h.id) else upto end
        into ids, channel_ids, keys, created, expires, sizes, cut, complete_to
        from (select m.id, m.channel_id, m.key, m.created_at, m.expires_at, m.size
              from gapless.channels c cross join lateral (
                  select x.* from gapless.messages x
                  where (x.channel_id, x.id) > (c.id, greatest(p_after, c.trimmed_id))
                    and (x.channel_id, x.id) <= (c.id, upto) and x.id >= p_after - p_after % 16777216
                  order by x.channel_id, x.id limit p_limit) m
              where c.id = targets[1]) h;
        return;
    end if;
    if targets is not null then
        with rows as materialized (
            select m.*, c.id as of_channel, count(*) over (partition by c.id) as n
            from unnest(targets) t join gapless.channels c on c.id = t
            cross join lateral (
                select m.id, m.channel_id, m.key, m.type, m.created_at, m.expires_at, m.size
                from gapless.messages m
                where (m.channel_id, m.id) > (c.id, greatest(p_after, c.trimmed_id))
                  and (m.channel_id, m.id) <= (c.id, upto) and m.id >= p_after - p_after % 16777216
                order by m.channel_id, m.id limit stretch
            ) m
        ), bound as (
            -- Each channel is known as far as its rows reach, or whole.
            select least(upto, min(x.last_id)) as id, count(*) > 0 as cut
            from (select max(r.id) as last_id from rows r group by r.of_channel having count(*) = stretch) x
        ), hits as (
            select r.* from rows r, bound b
            where r.id <= b.id and (s.types is null or r.type = any(s.types))
              and (s.keys is null or r.key = any(s.keys))
            order by r.id limit p_limit
        )
        select array_agg(h.id order by h.id), array_agg(h.channel_id order by h.id),
               array_agg(h.key order by h.id), array_agg(h.created_at order by h.id),
               array_agg(h.expires_at order by h.id), array_agg(h.size order by h.id),
               case when count(*) = p_limit then max(h.id) else (select b.id from bound b) end,
               count(*) = p_limit or (select b.cut from bound b)
        into ids, channel_ids, keys, created, expires, sizes, complete_to, cut
        from hits h;
    else
        stretch := greatest(stretch, least(4 * p_limit, 4000), 500);
        with rows as materialized (
            select m.id, m.channel_id, m.key, m.type, m.created_at, m.expires_at, m.size
            from gapless.messages m
            where m.id > p_after and m.id <= upto
            order by m.id limit stretch
        ), hits as (
            select r.* from rows r join gapless.channels c on c.id = r.channel_id
            where c.namespace_id = s.namespace_id and r.id > c.trimmed_id
              and (c.name = any(s.names) or c.name ~ s.regex)
              and (s.types is null or r.type = any(s.types)) and (s.keys is null or r.key = any(s.keys))
            order by r.id limit p_limit
        )
        select array_agg(h.id order by h.id), array_agg(h.channel_id order by h.id),
               array_agg(h.key order by h.id), array_agg(h.created_at order by h.id),
               array_agg(h.expires_at order by h.id), array_agg(h.size order by h.id),
               case when count(*) = p_limit then max(h.id)
                    when (select count(*) from rows) = stretch then (select max(r.id) from rows r)
                    else upto end,
               count(*) = p_limit or (select count(*) from rows) = stretch
        into ids, channel_ids, keys, created, expires, sizes, complete_to, cut
        from hits h;
    end if;
end $$;

-- How far a decision may read. Whoever knows a subscription to read one channel, in that channel's own order, asks
-- for all; where it has come to read several since, what lies above the last id taken is no watermark.
create function gapless.readable(s gapless.subscriptions, p_settled bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when p_settled <= x.last_value or s.regex is null and cardinality(s.names) = 1 then p_settled
                else 0 end
    from gapless.message_id x
$$;

-- What a subscription reads, in short: it changes when that does.
create function gapless.matching(s gapless.subscriptions) returns text
language sql immutable as $$
    select md5(row(s.names, s.regex, s.types, s.keys)::text)
$$;

-- Matching messages between two frontiers that retention took before they were settled, where it has taken these
-- channels up to these ids; an upper bound where there is a filter. A claim counts by what it saw as it read: what
-- is taken after that has been handed out.
create function gapless.lost(
    p_subscription_id integer, p_channels bigint[], p_trims bigint[], p_from bigint, p_to bigint
) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(
        gapless.seq_at(c.id, least(c.upto, p_to)) - gapless.seq_at(c.id, p_from)
        - (select count(*) from gapless.settled_ahead a
           where a.subscription_id = p_subscription_id and a.channel_id = c.id
             and a.message_id > p_from and a.message_id <= least(c.upto, p_to))), 0)::bigint
    from unnest(p_channels, p_trims) as c (id, upto)
    where c.upto > p_from
$$;

-- The same as it stands now.
create function gapless.removed_between(s gapless.subscriptions, p_from bigint, p_to bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when p_from < (select l.trimmed_id from gapless.log l) then (
        select gapless.lost(s.id, array_agg(c.id), array_agg(c.trimmed_id), p_from, p_to)
        from gapless.channels c
        where c.namespace_id = s.namespace_id and c.trimmed_id > p_from
          and (c.name = any(s.names) or c.name ~ s.regex)
    ) else 0 end
$$;

-- Whether somebody made this step as it is made below. A journey that arrives in a header may be anything.
create function gapless.is_step(p_step jsonb) returns boolean
language sql immutable as $$
    select jsonb_typeof(p_step) = 'object' and jsonb_typeof(p_step -> 'count') = 'number'
           and p_step ->> 'count' ~ '^[1-9][0-9]{0,5}$'
           and not exists (
               select from unnest('{subscription,channel,reason,first_at,last_at}'::text[]) name
               where jsonb_typeof(p_step -> name) is distinct from 'string')
$$;

-- One death more, after those known here or else those in the headers: whatever a publisher sent, what is no step
-- of a journey counts as none.
create function gapless.journey_after(
    p_known json, p_headers json, p_subscription text, p_channel text, p_reason text, p_now timestamptz,
    out journey jsonb, out hops bigint
) language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
declare
    stamp text := to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    most constant integer := 999999;
    before jsonb;
    step jsonb;
    place integer := -1;
    n integer := 0;
begin
    hops := 0;
    journey := '[]';
    begin
        before := coalesce(p_known, (p_headers ->> 'gapless-journey')::json)::jsonb;
    exception when data_exception or program_limit_exceeded then
        before := '[]';
    end;
    if jsonb_typeof(before) = 'array' and jsonb_array_length(before) <= 1000 then
        for step in select x from jsonb_array_elements(before) x loop
            continue when gapless.is_step(step) is not true;
            hops := hops + (step ->> 'count')::integer;
            if step ->> 'subscription' = p_subscription and step ->> 'channel' = p_channel
               and step ->> 'reason' = p_reason then
                place := n;
            end if;
            journey := journey || jsonb_build_array(step);
            n := n + 1;
        end loop;
    end if;
    if place >= 0 then
        journey := jsonb_set(jsonb_set(journey, array[place::text, 'count'],
                                       to_jsonb(least((journey -> place ->> 'count')::integer + 1, most))),
                             array[place::text, 'last_at'], to_jsonb(stamp));
    else
        journey := journey || jsonb_build_array(jsonb_build_object(
            'subscription', p_subscription, 'channel', p_channel, 'reason', p_reason, 'count', 1,
            'first_at', stamp, 'last_at', stamp));
    end if;
    hops := hops + 1;
end $$;

-- The headers of a copy. What jsonb cannot hold, which no face lets in, is left out.
create function gapless.with_journey(p_headers json, p_journey json) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return (coalesce(p_headers, '{}')::jsonb || jsonb_build_object('gapless-journey', p_journey::text))::text;
exception when data_exception or program_limit_exceeded then
    return json_build_object('gapless-journey', p_journey::text)::text;
end $$;

-- Makes dead letters, and publishes copies where a dead-letter channel is set, all in the caller's transaction.
-- The caller has removed the rows. At most once a transaction: it may take the log's locks. More bytes at once than
-- a transaction should hold raise GL413: the caller is to decide about fewer.
-- Out: the entries' ids in the order of the deaths (null: retention has taken that message), and which channels
-- were published to.
create function gapless.bury(
    s gapless.subscriptions, p_deaths gapless.death[], p_now timestamptz, out ids bigint[], out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    hop_limit constant integer := 1000;
    most_bytes constant bigint := 33554432;
    total constant integer := coalesce(cardinality(p_deaths), 0);
    copies bigint[];
    journeys json[];
    reasons text[];
    targets text[];
    obstacles text[];
    routed integer;
    published json[];
begin
    if total = 0 then
        return;
    end if;
    if total > 1 and most_bytes < (
        select sum(coalesce(k.size, m.size)) from unnest(p_deaths) d
        left join gapless.kept k on k.id = d.kept_id left join gapless.messages m on m.id = d.message_id
    ) then
        raise exception 'too much to bury at once' using errcode = 'GL413';
    end if;
    copies := array(select coalesce(d.kept_id, nextval('gapless.kept_id_seq'))
                    from unnest(p_deaths) with ordinality as d order by d.ordinality);
    insert into gapless.kept (id, channel_id, message_id, channel, seq, created_at, expires_at, type, key, sender,
                              headers, data, "binary", size)
    overriding system value
    select copies[d.ordinality], m.channel_id, m.id, c.name, m.seq, m.created_at, m.expires_at, m.type, m.key,
           m.sender, m.headers, m.data, m."binary", m.size
    from unnest(p_deaths) with ordinality as d
    join gapless.messages m on m.id = d.message_id
    join gapless.channels c on c.id = m.channel_id
    where d.kept_id is null;

    -- The route is read here, in the transaction that settles the message: as it stands at this moment.
    select array_agg(x.journey order by x.ord), array_agg(x.reason order by x.ord),
           array_agg(case when x.obstacle is null then x.target end order by x.ord),
           array_agg(x.obstacle order by x.ord),
           count(*) filter (where x.target is not null and x.obstacle is null)
    into journeys, reasons, targets, obstacles, routed
    from (
        select d.ordinality as ord, j.journey::json as journey, r.target,
               case when r.hopped then 'hops' else d.reason end as reason,
               case when r.target is null then null
                    when r.hopped then 'the journey has counted ' || hop_limit || ' hops'
                    when length(r.target) > 255 or r.target !~ '^[A-Za-z0-9_~:@-]+(\.[A-Za-z0-9_~:@-]+)*$'
                    then 'no channel can be named ' || left(r.target, 300) end as obstacle
        from unnest(p_deaths) with ordinality as d
        left join gapless.kept k on k.id = copies[d.ordinality]
        left join lateral gapless.journey_after(
            k.journey, k.headers, s.name, k.channel, d.reason, p_now) j on k.id is not null
        cross join lateral (
            select case when k.id is not null
                   then replace(replace(s.dead_letter, '{channel}', k.channel), '{subscription}', s.name) end as target,
                   s.dead_letter is not null and j.hops > hop_limit as hopped
        ) r
    ) x;

    if routed > 0 then
        select array_agg(case when x.id is not null then json_build_object(
                   'channel', targets[x.ord], 'id', x.id, 'seq', x.seq) end order by x.ord),
               json_agg(distinct jsonb_build_object('namespace_id', s.namespace_id, 'channel', targets[x.ord],
                   'channel_id', x.channel_id, 'last_id', x.last_id, 'last_seq', x.last_seq))
                   filter (where x.id = x.last_id)
        into published, touched
        from (
            select t.ord, a.id, a.seq, a.channel_id, max(a.id) over (partition by a.channel_id) as last_id,
                   max(a.seq) over (partition by a.channel_id) as last_seq
            from generate_subscripts(targets, 1) as t (ord)
            left join gapless.publish_kept(s.namespace_id, copies, targets, journeys) a on a.ord = t.ord
        ) x;
    end if;

    with entries as (
        insert into gapless.dead_letters
            (namespace_id, subscription_id, subscription, channel, kept_id, reason, attempts, last_error,
             created_at, journey, published, unroutable)
        select s.namespace_id, s.id, s.name, k.channel, k.id, reasons[d.ordinality], d.attempts, d.last_error,
               p_now, journeys[d.ordinality], published[d.ordinality], obstacles[d.ordinality]
        from unnest(p_deaths) with ordinality as d join gapless.kept k on k.id = copies[d.ordinality]
        order by d.ordinality
        returning id, kept_id
    )
    select array_agg(e.id order by c.ord) into ids
    from unnest(copies) with ordinality as c (kept_id, ord) left join entries e on e.kept_id = c.kept_id;

    update gapless.progress p
    set dead_lettered = p.dead_lettered + (select count(i) from unnest(ids) i),
        removed = p.removed + total - (select count(i) from unnest(ids) i)
    where p.subscription_id = s.id;
end $$;

-- Publishes copies to the channels given (null: not), with their journeys; where each came to lie.
create function gapless.publish_kept(
    p_namespace_id integer, p_copies bigint[], p_targets text[], p_journeys json[]
) returns table (ord integer, channel_id bigint, id bigint, seq bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    names text[] := array(select distinct t from unnest(p_targets) t where t is not null order by t);
    ords integer[];
    a record;
begin
    select array_agg(t.ord::integer order by t.ord) into ords
    from unnest(p_targets) with ordinality as t (target, ord) where t.target is not null;

    select x.* into a from (
        select array_agg(1 order by o.ord) as request, array_agg(array_position(names, p_targets[o.ord]) order by o.ord) as channel,
               array_agg(k.type order by o.ord) as types, array_agg(k.key order by o.ord) as keys,
               array_agg(k.data::text order by o.ord) as data, array_agg(k."binary" order by o.ord) as bin,
               array_agg(gapless.with_journey(k.headers, p_journeys[o.ord]) order by o.ord) as headers,
               array_agg(k.sender order by o.ord) as senders,
               array_agg(null::double precision order by o.ord) as ttls
        from unnest(ords) as o (ord) join gapless.kept k on k.id = p_copies[o.ord]
    ) m cross join lateral gapless.append(
        array_fill(p_namespace_id, array[cardinality(names)]), names, true, null, null, null, null, null,
        m.request, m.channel, m.types, m.keys, m.data, m.bin, m.headers, m.senders, m.ttls) x;

    return query
        select o.ord, a.channel_ids[array_position(names, p_targets[o.ord])], a.ids[o.n], a.seqs[o.n]
        from unnest(ords) with ordinality as o (ord, n);
end $$;

-- Leases whose deadline has passed, at most p_limit: due again at once, or, after the last attempt, dead.
create function gapless.end_leases(s gapless.subscriptions, p_now timestamptz, p_limit integer)
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
        select d.message_id, d.attempts >= s.max_deliver and s.max_deliver > 0 as last
        from gapless.deliveries d
        where d.subscription_id = s.id and d.state = 0 and d.at <= p_now
        order by d.at, d.message_id limit p_limit
    ), back as (
        update gapless.deliveries d
        set state = 1, at = p_now, last_error = 'the lease ended without an ack'
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
    set leased = p.leased - n, next_end = coalesce((
        select min(d.at) from gapless.deliveries d where d.subscription_id = s.id and d.state = 0), 'infinity')
    where p.subscription_id = s.id;
    perform gapless.promote_after(s.id, deaths, p_now);
    return deaths;
end $$;

create function gapless.promote_after(p_subscription_id integer, p_deaths gapless.death[], p_now timestamptz)
returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.promote(array_agg(p_subscription_id), array_agg(d.channel_id), array_agg(d.lane), p_now)
    from unnest(p_deaths) d where d.lane is not null having count(*) > 0
$$;

-- Leases up to p_limit messages, and about 8 MiB: first what is due again, then new ones above the frontier.
-- Rows of kind 0 are the messages; the last row, of kind 1, tells the rest: note = {"status": "ok" | "gone" |
-- "paused", "more", "touched"}, deadline = when something further becomes due by time alone.
create function gapless.claim(p_subscription_id integer, p_settled bigint, p_limit integer)
returns table (
    kind integer, id bigint, channel text, seq bigint, created_at timestamptz, expires_at timestamptz,
    type text, key text, sender text, headers json, data json, "binary" bytea, attempts integer, lease bigint,
    deadline timestamptz, note json
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
    taken bigint[] := '{}';
    part bigint[];
    deaths gapless.death[];
    more_deaths gapless.death[];
    fence bigint;
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
    perform pg_advisory_xact_lock(1195462741, p_subscription_id);
    select * into s from gapless.subscriptions where id = p_subscription_id;
    if not found then
        return query select 1, null::bigint, null::text, null::bigint, null::timestamptz, null::timestamptz,
            null::text, null::text, null::text, null::json, null::json, null::bytea, null::integer, null::bigint,
            null::timestamptz, '{"status": "gone"}'::json;
        return;
    end if;
    select * into p from gapless.progress where subscription_id = s.id;
    was := p.frontier;
    t := clock_timestamp();
    p_settled := gapless.readable(s, p_settled);
    if p.ordering <> s.ordering then
        perform gapless.relane(s.id, s.ordering, t);
    end if;
    deaths := gapless.end_leases(s, t, 1000);
    if p.ordering <> s.ordering or p.crowded then
        perform gapless.line_up(s.id);
    end if;

    select least(p_limit, s.max_in_flight - leased) into room from gapless.progress where subscription_id = s.id;
    if s.paused then
        room := 0;
    end if;
    fence := nextval('gapless.lease');

    -- What is due again. A death makes room for the next of its lane, so it may take a few rounds.
    while room > 0 and exists (select from gapless.deliveries d
                               where d.subscription_id = s.id and d.state = 1 and d.at <= t) loop
        again := again + 1;
        with due as materialized (
            select d.message_id, d.size, case
                       when d.kept_id is null and (d.stored_id is null or c.id is null) then 'removed'
                       when d.expires_at <= t or d.entered_at + s.message_ttl * interval '1 second' <= t then 'expired'
                       when s.max_deliver > 0 and d.attempts >= s.max_deliver then 'max_deliver' end as verdict
            from (
                select d.*, m.id as stored_id, x.size,
                       sum(x.size) over (order by d.at, d.message_id) - x.size as bytes_before
                from (select * from gapless.deliveries d
                      where d.subscription_id = s.id and d.state = 1 and d.at <= t
                      order by d.at, d.message_id limit room) d
                left join gapless.messages m on m.id = d.message_id
                left join gapless.kept k on k.id = d.kept_id
                cross join lateral (select coalesce(k.size, m.size, 0) as size) x
            ) d
            left join gapless.channels c on c.id = d.channel_id
            where d.bytes_before < bytes_left
        ), given as (
            update gapless.deliveries d
            set state = 0, at = t + s.ack_wait * interval '1 second', attempts = d.attempts + 1, lease = fence
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
        room := room - coalesce(cardinality(part), 0);
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
                                            expires_at, attempts, state, lane)
            select s.id, f.id, f.channel_id, fence,
                   case when f.waits then 'epoch' else t + s.ack_wait * interval '1 second' end,
                   f.created, f.expires, (not f.waits)::integer, case when f.waits then 2 else 0 end, f.lane
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
            lost := lost + gapless.lost(s.id, seen.trimmed, seen.trims, p.frontier, reached_to);
        end if;
        p.frontier := reached_to;
        taken := taken || coalesce(part, '{}');
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

    if p.frontier > was or taken <> '{}' then
        update gapless.progress
        set frontier = p.frontier, redelivered = redelivered + repeated, leased = leased + cardinality(taken),
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
    end if;

    return query
        select 0, d.message_id, coalesce(k.channel, c.name), coalesce(k.seq, m.seq),
               coalesce(k.created_at, m.created_at), case when k.id is null then m.expires_at else k.expires_at end,
               coalesce(k.type, m.type), case when k.id is null then m.key else k.key end,
               case when k.id is null then m.sender else k.sender end,
               case when k.id is null then m.headers else k.headers end,
               case when k.id is null then m.data else k.data end,
               case when k.id is null then m."binary" else k."binary" end,
               d.attempts, d.lease, d.at, null::json
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
               json_build_object('status', case when s.paused then 'paused' else 'ok' end, 'more', more,
                                 'touched', touched);
end $$;
