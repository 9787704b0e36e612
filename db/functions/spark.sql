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
    p_headers text[], p_ttls double precision[]
) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    n constant integer := coalesce(cardinality(p_channel), 0);
    unfit bigint;
    bytes bigint;
begin
    if n not between 1 and 10000
       or coalesce(cardinality(p_types), n) <> n or coalesce(cardinality(p_keys), n) <> n
       or coalesce(cardinality(p_data), n) <> n or coalesce(cardinality(p_binary), n) <> n
       or coalesce(cardinality(p_headers), n) <> n or coalesce(cardinality(p_ttls), n) <> n
       or (select count(distinct x) from unnest(p_names) x) is distinct from cardinality(p_names)::bigint
       or exists (select from unnest(p_channel) x where coalesce(x, 0) not between 1 and cardinality(p_names))
       -- Otherwise a channel without a message would be created.
       or (select count(distinct x) from unnest(p_channel) x) <> cardinality(p_names)
    then
        raise exception 'the arrays do not belong together' using errcode = '22023';
    end if;
    select min(m.ord) filter (where gapless_internal.flaw(
               p_names[m.channel], case when p_types is null then 'message' else m.type end, m.key, m.data, m.bin,
               m.headers, m.ttl) is not null),
           sum(coalesce(octet_length(m.data), octet_length(m.bin)))
    into unfit, bytes
    from unnest(p_channel, p_types, p_keys, p_data, p_binary, p_headers, p_ttls) with ordinality
        as m (channel, type, key, data, bin, headers, ttl, ord);
    if unfit is not null then
        raise exception 'row % does not fit: %', unfit, gapless_internal.flaw(
            p_names[p_channel[unfit]], case when p_types is null then 'message' else p_types[unfit] end, p_keys[unfit],
            p_data[unfit], p_binary[unfit], p_headers[unfit], p_ttls[unfit]) using errcode = 'GS004';
    end if;
    if bytes > 33554432 then
        raise exception 'the rows take more than 32 MiB' using errcode = '22023';
    end if;
    return bytes;
end $$;

-- Keeps some rows of one attempt at a partition; p_number counts the calls of the attempt, from 0. Repeating
-- a call changes nothing. False: the batch is already bound, to rows that were staged before. With its first
-- call an attempt removes what earlier runs staged for the same batch: so a query that dies again and again
-- does not accumulate rows.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_stage(
    p_namespace text, p_query text, p_batch bigint, p_run text, p_attempt uuid, p_number integer,
    p_names text[], p_channel integer[], p_types text[], p_keys text[], p_data text[], p_binary bytea[],
    p_headers text[], p_ttls double precision[]
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
    bytes := gapless_internal.spark_check(p_names, p_channel, p_types, p_keys, p_data, p_binary, p_headers, p_ttls);
    perform gapless_internal.require_channels(g, p_names);
    perform gapless_internal.may_publish_to(array_fill(owner_id, array[cardinality(p_names)]), p_names);
    insert into gapless.spark_attempts (id, namespace_id, query, batch, run, row_count, byte_count, channel_count)
    values (p_attempt, owner_id, p_query, p_batch, p_run, 0, 0, 0)
    on conflict do nothing;
    insert into gapless.spark_chunks
        (attempt_id, number, names, channel, types, keys, data, "binary", headers, ttls)
    values (p_attempt, p_number, p_names, p_channel, p_types, p_keys, p_data, p_binary, p_headers, p_ttls)
    on conflict do nothing;
    if found then
        update gapless.spark_attempts a
        set row_count = a.row_count + cardinality(p_channel), byte_count = a.byte_count + bytes,
            channel_count = a.channel_count + cardinality(p_names)
        where a.id = p_attempt and not a.bound and a.namespace_id = owner_id and a.query = p_query
          and a.batch = p_batch;
        if not found then
            raise exception 'attempt % is closed or belongs to another batch', p_attempt using errcode = 'GS003';
        end if;
    end if;
    return true;
end $$;

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

-- The rows of these attempts as arguments of gapless.append. One append takes all of them, because it moves
-- every channel's head once. Names are numbered across chunks, and each chunk's own numbers are looked up in
-- `places`: a join by name would be planned without knowing the number of names.
create or replace function gapless_internal.spark_rows(
    p_attempts uuid[], out request integer[], out channel integer[], out types text[], out keys text[], out data text[],
    out bin bytea[], out headers text[], out ttls double precision[], out names text[]
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
        select n.places[m.local] as channel, m.type, m.key, m.data, m.bin, m.headers, m.ttl
        from chunks c
        join numbered n on n.attempt = c.ord and n.number = c.number
        cross join unnest(c.channel, c.types, c.keys, c.data, c."binary", c.headers, c.ttls) with ordinality
            as m (local, type, key, data, bin, headers, ttl, ord)
        order by c.ord, c.number, m.ord
    )
    select array_agg(1) as request, array_agg(m.channel) as channel,
           array_agg(coalesce(m.type, 'message')) as types, array_agg(m.key) as keys, array_agg(m.data) as data,
           array_agg(m.bin) as bin, array_agg(m.headers) as headers, array_agg(m.ttl) as ttls,
           (select array_agg(d.name order by d.place)
            from (select distinct n.name, n.place from named n) d) as names
    into request, channel, types, keys, data, bin, headers, ttls, names
    from messages m;
end $$;

-- Publishes the next partitions of a bound batch in one transaction: as many as stay within p_max_rows,
-- p_max_bytes and p_max_channels together, but at least one. Out: how many are published now, and of how
-- many.
-- Needs: publish on the channels of its rows.
create or replace function gapless.spark_publish(
    p_namespace text, p_query text, p_batch bigint, p_max_rows bigint, p_max_bytes bigint, p_max_channels bigint,
    out published integer, out partitions integer
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    g constant gapless.role_grants := gapless_internal.spark_grant(p_namespace, p_query);
    owner_id constant integer := g.namespace_id;
    batch gapless.spark_batches;
    last integer;
    rows record;
begin
    select b.* into batch from gapless.spark_batches b
    where b.namespace_id = owner_id and b.query = p_query and b.batch = p_batch
    for no key update;
    if not found then
        raise exception 'batch % is not bound', p_batch using errcode = 'GS003';
    end if;
    partitions := cardinality(batch.attempts);
    published := batch.published;
    if published = partitions then
        return;
    end if;
    select greatest(published + 1, max(s.ord) filter (
               where s.row_count <= p_max_rows and s.byte_count <= p_max_bytes and s.channels <= p_max_channels))
    into last
    from (
        select o.ord, sum(a.row_count) over (order by o.ord) as row_count,
               sum(a.byte_count) over (order by o.ord) as byte_count,
               sum(a.channel_count) over (order by o.ord) as channels
        from unnest(batch.attempts) with ordinality as o (id, ord) join gapless.spark_attempts a on a.id = o.id
        where o.ord > published
    ) s;

    select * into rows from gapless_internal.spark_rows(batch.attempts[published + 1 : last]);
    perform gapless_internal.limit_waits();
    perform gapless.append(
        array_fill(owner_id, array[cardinality(rows.names)]), rows.names, true, null, null, null, null, null,
        rows.request, rows.channel, rows.types, rows.keys, rows.data, rows.bin, rows.headers,
        case when g.sender is not null then array_fill(g.sender, array[cardinality(rows.channel)]) end, rows.ttls);
    update gapless.spark_batches b set published = last
    where b.namespace_id = owner_id and b.query = p_query and b.batch = p_batch;
    published := last;
end $$;

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
