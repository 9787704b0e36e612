-- Publishing from Spark: staging, binding, publishing. See migrations/0005_spark.sql.

-- The grant under which the session writes a query of the sink. With its first call a role makes the query its own: then
-- no other role may write it, until the owner revokes what that role was granted.
create or replace function gapless_internal.spark_grant(p_namespace text, p_query text) returns gapless.role_grants
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    g constant gapless.role_grants := gapless_internal.granted_to_publish(p_namespace);
    writer name;
begin
    if g.role is null then
        return g;
    end if;
    select q.role into writer from gapless.spark_queries q where q.namespace_id = g.namespace_id and q.query = p_query;
    if not found then
        insert into gapless.spark_queries (namespace_id, query, role) values (g.namespace_id, p_query, g.role)
        on conflict do nothing;
        select q.role into writer from gapless.spark_queries q
        where q.namespace_id = g.namespace_id and q.query = p_query;
    end if;
    if writer is distinct from g.role then
        raise exception 'another role than % writes this query', g.role
            using errcode = '42501', hint = 'The owner of the schema ends that: select gapless.revoke(role).';
    end if;
    return g;
end $$;

-- Refuses rows that gapless.publish would refuse, and returns the bytes of the payloads of all rows. The sink
-- relies on it: GS004 names the first bad row, counted from 1, and what is wrong with it.
create or replace function gapless_internal.spark_check(
    p_names text[], p_channel integer[], p_types text[], p_keys text[], p_data text[], p_binary bytea[],
    p_headers text[], p_ttls double precision[], p_targets bigint[], p_actions text[], p_throughs bigint[],
    p_annotations text[], p_modes text[], p_removes boolean[]
) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    n constant integer := coalesce(cardinality(p_channel), 0);
    unfit bigint;
    why text;
    bytes bigint;
begin
    if n not between 1 and 10000
       or coalesce(cardinality(p_types), n) <> n or coalesce(cardinality(p_keys), n) <> n
       or coalesce(cardinality(p_data), n) <> n or coalesce(cardinality(p_binary), n) <> n
       or coalesce(cardinality(p_headers), n) <> n or coalesce(cardinality(p_ttls), n) <> n
       or coalesce(cardinality(p_targets), n) <> n or coalesce(cardinality(p_actions), n) <> n
       or coalesce(cardinality(p_throughs), n) <> n or coalesce(cardinality(p_annotations), n) <> n
       or coalesce(cardinality(p_modes), n) <> n or coalesce(cardinality(p_removes), n) <> n
       or (select count(distinct x) from unnest(p_names) x) is distinct from cardinality(p_names)::bigint
       or exists (select from unnest(p_channel) x where coalesce(x, 0) not between 1 and cardinality(p_names))
       -- Otherwise a channel without a message would be created.
       or (select count(distinct x) from unnest(p_channel) x) <> cardinality(p_names)
    then
        raise exception 'the arrays do not belong together' using errcode = '22023';
    end if;
    select min(m.ord) filter (where w.why is not null),
           (array_agg(w.why order by m.ord) filter (where w.why is not null))[1],
           sum(coalesce(octet_length(m.data), octet_length(m.bin)))
    into unfit, why, bytes
    from unnest(p_channel, p_types, p_keys, p_data, p_binary, p_headers, p_ttls, p_targets, p_actions, p_throughs,
                p_annotations, p_modes, p_removes) with ordinality
        as m (channel, type, key, data, bin, headers, ttl, target, action, through, annotation, mode, remove, ord)
    cross join lateral (select coalesce(
        gapless_internal.flaw(p_names[m.channel], case when p_types is null then 'message' else m.type end, m.key,
                              m.data, m.bin, m.headers, m.ttl),
        case when num_nonnulls(m.target, m.action, m.through, m.annotation, m.mode, m.remove) > 0 then
            gapless_internal.flaw_of_change(m.target, m.action, m.through, m.annotation, m.mode, m.remove) end) as why
        offset 0) w;
    if unfit is not null then
        raise exception 'row % does not fit: %', unfit, why using errcode = 'GS004';
    end if;
    if bytes > 33554432 then
        raise exception 'the rows take more than 32 MiB' using errcode = '22023';
    end if;
    return bytes;
end $$;

-- Keeps some rows of one attempt at a partition; p_number counts the calls of the attempt, from 0. Repeating
-- a call changes nothing. False: the batch is already bound, to rows that were staged before. With its first
-- call an attempt removes what earlier runs staged for the same batch: so a query that dies again and again
-- does not accumulate rows. A row that changes another message has a target, and what gapless.publish takes with it.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_stage_changes(
    p_namespace text, p_query text, p_batch bigint, p_run text, p_attempt uuid, p_number integer,
    p_names text[], p_channel integer[], p_types text[], p_keys text[], p_data text[], p_binary bytea[],
    p_headers text[], p_ttls double precision[], p_targets bigint[], p_actions text[], p_throughs bigint[],
    p_annotations text[], p_modes text[], p_removes boolean[]
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    g gapless.role_grants;
    owner_id integer;
    bytes bigint;
begin
    if p_query is null or length(p_query) not between 1 and 255 or p_batch is null or p_batch < -1
       or p_run is null or length(p_run) > 255 then
        raise exception 'query, run (1 to 255 characters) or batch does not fit' using errcode = '22023';
    end if;
    g := gapless_internal.spark_grant(p_namespace, p_query);
    owner_id := g.namespace_id;
    if exists (select from gapless.spark_batches b
               where b.namespace_id = owner_id and b.query = p_query and b.batch = p_batch) then
        return false;
    end if;
    if p_number = 0 then
        delete from gapless.spark_attempts a where a.id in (
            select x.id from gapless.spark_attempts x
            where x.namespace_id = owner_id and x.query = p_query and x.batch = p_batch and x.run <> p_run
              and not x.bound and x.started_at < now() - interval '10 minutes'
            limit 1000 for update skip locked);
    end if;
    bytes := gapless_internal.spark_check(
        p_names, p_channel, p_types, p_keys, p_data, p_binary, p_headers, p_ttls, p_targets, p_actions, p_throughs,
        p_annotations, p_modes, p_removes);
    perform gapless_internal.require_channels(g, p_names);
    perform gapless_internal.may_publish_to(array_fill(owner_id, array[cardinality(p_names)]), p_names);
    insert into gapless.spark_attempts (id, namespace_id, query, batch, run, row_count, byte_count, channel_count)
    values (p_attempt, owner_id, p_query, p_batch, p_run, 0, 0, 0)
    on conflict do nothing;
    insert into gapless.spark_chunks
        (attempt_id, number, names, channel, types, keys, data, "binary", headers, ttls, changes)
    values (p_attempt, p_number, p_names, p_channel, p_types, p_keys, p_data, p_binary, p_headers, p_ttls,
            case when p_targets is not null then array(
                select case when m.target is not null then gapless_internal.change_of(
                           m.target, m.action, m.through, m.annotation, m.mode, m.remove) end
                from unnest(p_targets, p_actions, p_throughs, p_annotations, p_modes, p_removes) with ordinality
                    as m (target, action, through, annotation, mode, remove, ord) order by m.ord) end)
    on conflict do nothing;
    if found then
        update gapless.spark_attempts a
        set row_count = a.row_count + cardinality(p_channel), byte_count = a.byte_count + bytes,
            channel_count = a.channel_count + cardinality(p_names),
            change_count = a.change_count + coalesce(cardinality(array_remove(p_targets, null)), 0)
        where a.id = p_attempt and not a.bound and a.namespace_id = owner_id and a.query = p_query
          and a.batch = p_batch;
        if not found then
            raise exception 'attempt % is closed or belongs to another batch', p_attempt using errcode = 'GS003';
        end if;
    end if;
    return true;
end $$;

-- The same for rows that change nothing, and for the package of the version before.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_stage(
    p_namespace text, p_query text, p_batch bigint, p_run text, p_attempt uuid, p_number integer,
    p_names text[], p_channel integer[], p_types text[], p_keys text[], p_data text[], p_binary bytea[],
    p_headers text[], p_ttls double precision[]
) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.spark_stage_changes(
        p_namespace, p_query, p_batch, p_run, p_attempt, p_number, p_names, p_channel, p_types, p_keys, p_data, p_binary,
        p_headers, p_ttls, null, null, null, null, null, null)
$$;

-- Decides which rows a batch consists of: those of p_attempts, unless that was decided before. p_rows: the
-- number of rows of each attempt; p_total: the number that Spark counts in the whole batch now. p_verify
-- refuses a batch that was bound before with another number of rows: then it is not the same batch.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_bind(
    p_namespace text, p_query text, p_batch bigint, p_attempts uuid[], p_rows bigint[], p_total bigint,
    p_verify boolean
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    owner_id constant integer := (gapless_internal.spark_grant(p_namespace, p_query)).namespace_id;
    bound_rows bigint;
    newest bigint;
    staged bigint;
begin
    insert into gapless.spark_batches (namespace_id, query, batch, attempts, row_count)
    values (owner_id, p_query, p_batch, p_attempts, p_total)
    on conflict do nothing;
    if not found then
        select b.row_count into bound_rows from gapless.spark_batches b
        where b.namespace_id = owner_id and b.query = p_query and b.batch = p_batch;
        if p_verify and bound_rows is distinct from p_total then
            raise exception 'this batch had % rows when it was first written, and has % now', bound_rows, p_total
                using errcode = 'GS001';
        end if;
        return;
    end if;
    -- Batches of a query are written in order, so one that comes after a later one is not a new batch.
    select max(b.batch) into newest from gapless.spark_batches b
    where b.namespace_id = owner_id and b.query = p_query;
    if p_batch >= 0 and newest > p_batch then
        raise exception 'batch % of this query was written before', newest
            using errcode = 'GS002';
    end if;
    update gapless.spark_attempts a set bound = true
    from unnest(p_attempts, p_rows) as p (id, row_count)
    where a.id = p.id and a.row_count = p.row_count and not a.bound
      and a.namespace_id = owner_id and a.query = p_query and a.batch = p_batch;
    get diagnostics staged = row_count;
    if staged <> cardinality(p_attempts)
       or p_total is distinct from (select coalesce(sum(x), 0) from unnest(p_rows) x) then
        raise exception 'rows that were staged for this batch are gone'
            using errcode = 'GS003';
    end if;
end $$;

-- The rows of these attempts as arguments of gapless.append_messages. One append takes all of them, because it moves
-- every channel's head once. If some change others, each is a request of its own, to be judged by itself. Names are
-- numbered across chunks, and each chunk's own numbers are looked up in `places`: a join by name would be planned
-- without knowing the number of names.
create or replace function gapless_internal.spark_rows(
    p_attempts uuid[], out request integer[], out channel integer[], out types text[], out keys text[], out data text[],
    out bin bytea[], out headers text[], out ttls double precision[], out changes json[], out names text[]
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    with chunks as materialized (
        select k.*, o.ord
        from unnest(p_attempts) with ordinality as o (id, ord)
        join gapless.spark_chunks k on k.attempt_id = o.id
    ), named as materialized (
        select c.ord as attempt, c.number, n.ord, n.name, dense_rank() over (order by n.name collate "C") as place
        from chunks c cross join unnest(c.names) with ordinality as n (name, ord)
    ), numbered as materialized (
        select n.attempt, n.number, array_agg(n.place::integer order by n.ord) as places
        from named n
        group by n.attempt, n.number
    ), messages as (
        select n.places[m.local] as channel, m.type, m.key, m.data, m.bin, m.headers, m.ttl, m.change
        from chunks c
        join numbered n on n.attempt = c.ord and n.number = c.number
        cross join unnest(c.channel, c.types, c.keys, c.data, c."binary", c.headers, c.ttls, c.changes)
            with ordinality as m (local, type, key, data, bin, headers, ttl, change, ord)
        order by c.ord, c.number, m.ord
    )
    select array_agg(1) as request, array_agg(m.channel) as channel,
           array_agg(coalesce(m.type, 'message')) as types, array_agg(m.key) as keys, array_agg(m.data) as data,
           array_agg(m.bin) as bin, array_agg(m.headers) as headers, array_agg(m.ttl) as ttls,
           case when count(m.change) > 0 then array_agg(m.change) end as changes,
           (select array_agg(d.name order by d.place)
            from (select distinct n.name, n.place from named n) d) as names
    into request, channel, types, keys, data, bin, headers, ttls, changes, names
    from messages m;
    if changes is not null then
        request := array(select generate_series(1, cardinality(channel)));
    end if;
end $$;

-- Those of these messages that were refused: how many, and of the first ten which and why.
create or replace function gapless_internal.refused_changes(
    p_names text[], p_channel integer[], p_changes json[], p_statuses smallint[], out total bigint, out said text[]
) language sql stable as $$
    select count(*), (array_agg(format('%s of message %s in channel %s: %s', m.change ->> 'action', m.change ->> 'target',
                                       p_names[m.channel], gapless_internal.why_refused(m.status)) order by m.ord))[:10]
    from unnest(p_channel, p_changes, p_statuses) with ordinality as m (channel, change, status, ord)
    where m.status > 0
$$;

-- Publishes the next partitions of a bound batch in one transaction: as many as stay within p_max_rows,
-- p_max_bytes and p_max_channels together, but at least one; a change counts as 25 rows (CHANGE_ROWS of the sink). A
-- change that is refused raises GS005; with p_skip it is left out. Out: how many partitions are published now, and of how
-- many; how many changes of the batch were left out so far; and which now, as gapless_internal.refused_changes says.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_publish_batch(
    p_namespace text, p_query text, p_batch bigint, p_max_rows bigint, p_max_bytes bigint, p_max_channels bigint,
    p_skip boolean, out published integer, out partitions integer, out refused bigint, out said text[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    g constant gapless.role_grants := gapless_internal.spark_grant(p_namespace, p_query);
    owner_id constant integer := g.namespace_id;
    batch gapless.spark_batches;
    last integer;
    rows record;
    appended record;
    wrong record;
begin
    select b.* into batch from gapless.spark_batches b
    where b.namespace_id = owner_id and b.query = p_query and b.batch = p_batch
    for no key update;
    if not found then
        raise exception 'batch % is not bound', p_batch using errcode = 'GS003';
    end if;
    partitions := cardinality(batch.attempts);
    published := batch.published;
    refused := batch.refused;
    if published = partitions then
        return;
    end if;
    select greatest(published + 1, max(s.ord) filter (
               where s.row_count <= p_max_rows and s.byte_count <= p_max_bytes and s.channels <= p_max_channels))
    into last
    from (
        select o.ord, sum(a.row_count + 24 * a.change_count) over (order by o.ord) as row_count,
               sum(a.byte_count) over (order by o.ord) as byte_count,
               sum(a.channel_count) over (order by o.ord) as channels
        from unnest(batch.attempts) with ordinality as o (id, ord) join gapless.spark_attempts a on a.id = o.id
        where o.ord > published
    ) s;

    select * into rows from gapless_internal.spark_rows(batch.attempts[published + 1 : last]);
    perform gapless_internal.limit_waits();
    appended := gapless.append_messages(
        array_fill(owner_id, array[cardinality(rows.names)]), rows.names, true, null, null, null, null, null,
        rows.request, rows.channel, rows.types, rows.keys, rows.data, rows.bin, rows.headers,
        case when g.sender is not null then array_fill(g.sender, array[cardinality(rows.channel)]) end, rows.ttls,
        rows.changes, null, case when rows.changes is not null then
            array_fill(gapless_internal.changes_all(g), array[cardinality(rows.channel)]) end);
    if rows.changes is not null then
        wrong := gapless_internal.refused_changes(rows.names, rows.channel, rows.changes, appended.statuses);
        if wrong.total > 0 and not p_skip then
            raise exception '% (refused changes: %; partitions published before: % of %)', wrong.said[1], wrong.total,
                published, partitions using errcode = 'GS005';
        end if;
        refused := refused + wrong.total;
        said := wrong.said;
    end if;
    update gapless.spark_batches b set published = last, refused = spark_publish_batch.refused
    where b.namespace_id = owner_id and b.query = p_query and b.batch = p_batch;
    published := last;
end $$;

-- The same, for batches without changes that may be refused, and for the package of the version before.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_publish(
    p_namespace text, p_query text, p_batch bigint, p_max_rows bigint, p_max_bytes bigint, p_max_channels bigint,
    out published integer, out partitions integer
) language sql security definer set search_path = pg_catalog, pg_temp as $$
    select p.published, p.partitions
    from gapless.spark_publish_batch(p_namespace, p_query, p_batch, p_max_rows, p_max_bytes, p_max_channels, false) p
$$;

-- Removes attempts of a batch that failed, unless it is bound to them, or another role writes their query.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_discard(p_attempts uuid[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with g as materialized (select (gapless_internal.granted('publisher')).role)
    delete from gapless.spark_attempts a using g
    where a.id = any(p_attempts) and not a.bound and (g.role is null or exists (
        select from gapless.spark_queries q
        where q.namespace_id = a.namespace_id and q.query = a.query and q.role = g.role))
$$;

-- After a batch is published: removes what was staged for it and before it, and what is no longer needed. A
-- query keeps its newest 100 batches; a single write keeps its note for 30 days; an attempt that was never
-- bound keeps its rows for 7 days. Removes at most p_limit of each, in the namespace of the query.
-- Needs: publish on some channel.
create or replace function gapless.spark_tidy(p_namespace text, p_query text, p_batch bigint, p_limit integer)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    owner_id constant integer := (gapless_internal.spark_grant(p_namespace, p_query)).namespace_id;
begin
    delete from gapless.spark_attempts a where a.id in (
        select x.id from gapless.spark_attempts x
        where x.namespace_id = owner_id and x.query = p_query and x.batch <= p_batch
          and not exists (select from gapless.spark_batches b
                          where b.namespace_id = owner_id and b.query = p_query and b.batch = x.batch
                            and b.published < cardinality(b.attempts))
        limit p_limit for update skip locked);
    delete from gapless.spark_attempts a where a.id in (
        select x.id from gapless.spark_attempts x
        where x.started_at < now() - case when x.bound then interval '30 days' else interval '7 days' end
          and (not x.bound or x.batch = -1) and x.namespace_id = owner_id
        order by x.started_at limit p_limit for update skip locked);
    delete from gapless.spark_batches b where (b.namespace_id, b.query, b.batch) in (
        select x.namespace_id, x.query, x.batch from gapless.spark_batches x
        where x.namespace_id = owner_id and x.query = p_query and x.batch between 0 and p_batch - 100
        order by x.batch limit p_limit for update skip locked);
    delete from gapless.spark_batches b where (b.namespace_id, b.query, b.batch) in (
        select x.namespace_id, x.query, x.batch from gapless.spark_batches x
        where x.batch = -1 and x.bound_at < now() - interval '30 days' and x.namespace_id = owner_id
        order by x.bound_at limit p_limit for update skip locked);
    delete from gapless.spark_queries q where (q.namespace_id, q.query) in (
        select x.namespace_id, x.query from gapless.spark_queries x
        where x.namespace_id = owner_id and x.claimed_at < now() - interval '30 days'
          and not exists (select from gapless.spark_batches b where b.namespace_id = owner_id and b.query = x.query)
          and not exists (select from gapless.spark_attempts a where a.namespace_id = owner_id and a.query = x.query)
        order by x.claimed_at limit p_limit for update skip locked);
end $$;
