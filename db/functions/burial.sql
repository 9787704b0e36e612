-- Making dead letters.

-- Whether this step was made as below. A journey that arrives in a header may hold any JSON.
create or replace function gapless_internal.is_step(p_step jsonb) returns boolean
language sql immutable as $$
    select jsonb_typeof(p_step) = 'object' and jsonb_typeof(p_step -> 'count') = 'number'
           and p_step ->> 'count' ~ '^[1-9][0-9]{0,5}$'
           and not exists (
               select from unnest('{subscription,channel,reason,first_at,last_at}'::text[]) name
               where jsonb_typeof(p_step -> name) is distinct from 'string')
$$;

-- Adds one death to the journey: to the deaths known here, or else to those in the headers. Entries in the
-- headers that are not steps of a journey are ignored.
create or replace function gapless_internal.journey_after(
    p_known json, p_headers json, p_subscription text, p_channel text, p_reason text, p_now timestamptz,
    out journey jsonb, out hops bigint
) language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
declare
    stamp text := to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    most constant integer := 999999;
    before jsonb;
    place integer;
begin
    hops := 0;
    journey := '[]';
    begin
        before := coalesce(p_known, (p_headers ->> 'gapless-journey')::json)::jsonb;
    exception when data_exception or program_limit_exceeded then
        before := '[]';
    end;
    if jsonb_typeof(before) = 'array' and jsonb_array_length(before) <= 1000 then
        select coalesce(jsonb_agg(x.step order by x.n), '[]'), coalesce(sum((x.step ->> 'count')::integer), 0),
               max(x.n) filter (where x.step ->> 'subscription' = p_subscription and x.step ->> 'channel' = p_channel
                                      and x.step ->> 'reason' = p_reason)
        into journey, hops, place
        from (select e.step, row_number() over (order by e.ord) - 1 as n
              from jsonb_array_elements(before) with ordinality as e (step, ord)
              where gapless_internal.is_step(e.step)) x;
    end if;
    if place is not null then
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

-- The headers of a copy. Headers that jsonb cannot hold, which no face accepts, are left out.
create or replace function gapless_internal.with_journey(p_headers json, p_journey json) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return (coalesce(p_headers, '{}')::jsonb || jsonb_build_object('gapless-journey', p_journey::text))::text;
exception when data_exception or program_limit_exceeded then
    return json_build_object('gapless-journey', p_journey::text)::text;
end $$;

-- Publishes copies to the channels given (null: none), with their journeys; returns where each copy was
-- stored.
create or replace function gapless_internal.publish_kept(
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
        select array_agg(1 order by o.ord) as request,
               array_agg(array_position(names, p_targets[o.ord]) order by o.ord) as channel,
               array_agg(k.type order by o.ord) as types, array_agg(k.key order by o.ord) as keys,
               array_agg(k.data::text order by o.ord) as data, array_agg(k."binary" order by o.ord) as bin,
               array_agg(gapless_internal.with_journey(k.headers, p_journeys[o.ord]) order by o.ord) as headers,
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

-- Makes copies of the messages that died, in the order of the deaths. A replayed message is its own copy. For
-- a message that retention removed, the number is returned without a copy.
create or replace function gapless_internal.keep_copies(p_deaths gapless.death[]) returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    copies constant bigint[] := array(select coalesce(d.kept_id, nextval('gapless.kept_id_seq'))
                                      from unnest(p_deaths) with ordinality as d order by d.ordinality);
    lowest constant bigint := (select min(d.message_id) from unnest(p_deaths) d);
    highest constant bigint := (select max(d.message_id) from unnest(p_deaths) d);
begin
    insert into gapless.kept (id, channel_id, message_id, channel, seq, created_at, expires_at, type, key, sender,
                              headers, data, "binary", size, change)
    overriding system value
    select copies[d.ordinality], m.channel_id, m.id, c.name, m.seq, m.created_at, m.expires_at, m.type, m.key,
           m.sender, m.headers, m.data, m."binary", m.size, m.change
    from unnest(p_deaths) with ordinality as d
    join gapless.messages m on m.id = d.message_id and m.id between lowest and highest
    join gapless.channels c on c.id = m.channel_id
    where d.kept_id is null;
    return copies;
end $$;

-- Where each copy goes by the subscription's dead_letter: targets (null: nowhere), how many copies have a
-- target, why the others have none, and each one's journey and reason. It is read in the transaction that
-- settles the message, so the setting of that moment counts.
create or replace function gapless_internal.route(
    s gapless.subscriptions, p_deaths gapless.death[], p_copies bigint[], p_now timestamptz, out journeys json[],
    out reasons text[], out targets text[], out obstacles text[], out routed bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    hop_limit constant integer := 1000;
begin
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
                    when not gapless_internal.is_channel_name(r.target)
                    then 'no channel can be named ' || left(r.target, 300) end as obstacle
        from unnest(p_deaths) with ordinality as d
        left join gapless.kept k on k.id = p_copies[d.ordinality]
        left join lateral gapless_internal.journey_after(
            k.letter -> 'journey', k.headers, s.name, k.channel, d.reason, p_now) j on k.id is not null
        cross join lateral (
            select case when k.id is not null
                   then replace(replace(s.dead_letter, '{channel}', k.channel), '{subscription}', s.name) end as target,
                   s.dead_letter is not null and j.hops > hop_limit as hopped
        ) r
    ) x;
end $$;

-- Makes dead letters, and publishes copies if a dead-letter channel is set, all in the caller's transaction. With
-- `keep` 0, what was published makes no dead letter; what could not be published stays whatever `keep` says.
-- The caller has removed the rows. Call it at most once in a transaction: it may take the log's locks. Raises
-- GL413 for more bytes than one transaction should hold: the caller has to decide about fewer messages. Out:
-- the entries' ids in the order of the deaths (null: none was made, or retention has removed that message), and
-- which channels were published to.
create or replace function gapless_internal.bury(
    s gapless.subscriptions, p_deaths gapless.death[], p_now timestamptz, out ids bigint[], out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most_bytes constant bigint := 33554432;
    total constant integer := coalesce(cardinality(p_deaths), 0);
    copies bigint[];
    r record;
    published json[];
    moved bigint[] := '{}';
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
    copies := gapless_internal.keep_copies(p_deaths);
    select * into r from gapless_internal.route(s, p_deaths, copies, p_now);
    if r.routed > 0 then
        select array_agg(case when x.id is not null then json_build_object(
                   'channel', r.targets[x.ord], 'id', x.id, 'seq', x.seq) end order by x.ord),
               json_agg(distinct jsonb_build_object('namespace_id', s.namespace_id, 'channel', r.targets[x.ord],
                   'channel_id', x.channel_id, 'last_id', x.last_id, 'last_seq', x.last_seq))
                   filter (where x.id = x.last_id)
        into published, touched
        from (
            select t.ord, a.id, a.seq, a.channel_id, max(a.id) over (partition by a.channel_id) as last_id,
                   max(a.seq) over (partition by a.channel_id) as last_seq
            from generate_subscripts(r.targets, 1) as t (ord)
            left join gapless_internal.publish_kept(s.namespace_id, copies, r.targets, r.journeys) a on a.ord = t.ord
        ) x;
        if s.keep = 0 then
            moved := array(select copies[p.ord] from unnest(published) with ordinality as p (place, ord)
                           where p.place is not null);
            delete from gapless.kept k where k.id = any(moved);
        end if;
    end if;
    with entries as (
        insert into gapless.dead_letters
            (namespace_id, subscription_id, subscription, channel, kept_id, reason, attempts, last_error,
             created_at, journey, published, unroutable, remove_at)
        select s.namespace_id, s.id, s.name, k.channel, k.id, r.reasons[d.ordinality], d.attempts, d.last_error,
               p_now, r.journeys[d.ordinality], published[d.ordinality], r.obstacles[d.ordinality],
               case when r.obstacles[d.ordinality] is null then p_now + nullif(s.keep, 0) * interval '1 second' end
        from unnest(p_deaths) with ordinality as d join gapless.kept k on k.id = copies[d.ordinality]
        order by d.ordinality
        returning id, kept_id
    )
    select array_agg(e.id order by c.ord) into ids
    from unnest(copies) with ordinality as c (kept_id, ord) left join entries e on e.kept_id = c.kept_id;
    if array_length(array_positions(ids, null), 1) > cardinality(moved) then
        -- A channel that was deleted leaves no gap.
        perform gapless_internal.note_gaps(s.id, array_agg(c.id), array_agg(c.first_seq), array_agg(1::bigint))
        from unnest(p_deaths) with ordinality as d join gapless.channels c on c.id = d.channel_id
        where ids[d.ordinality] is null and not copies[d.ordinality] = any(moved) having count(*) > 0;
    end if;
    update gapless.progress p
    set dead_lettered = p.dead_lettered + (select count(i) from unnest(ids) i) + cardinality(moved),
        removed = p.removed + total - (select count(i) from unnest(ids) i) - cardinality(moved)
    where p.subscription_id = s.id;
end $$;
