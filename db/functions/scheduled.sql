-- Scheduled messages, which are published later.

-- Stores messages for one channel, all or none, each with its moment or its delay. Status: 0 stored, 1 an
-- earlier request with this key stored them (they may have been published or cancelled since), 2 the key was
-- used for another request. Null ids: the channel does not exist, and none is to be created. They are published
-- while the credential is good that asked for it: the API key, or until then. Null: it needed none. Those that change
-- others: as in gapless.append_messages; they are judged when they are due.
create or replace function gapless.schedule_messages(
    p_key_id text, p_until timestamptz, p_namespace_id integer, p_channel text, p_create boolean, p_key text, p_fingerprint bytea,
    p_deliver_at timestamptz[], p_delays double precision[], p_types text[], p_message_keys text[], p_senders text[],
    p_headers text[], p_data text[], p_binary bytea[], p_ttls double precision[], p_changes json[],
    p_versions bigint[], p_moderates boolean[],
    out status integer, out scheduled_ids bigint[], out deliver_at timestamptz[], out created_at timestamptz
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    known gapless.idempotency;
begin
    -- Check now: a message that cannot be stored when it is due would block all that are due after it.
    perform m.data::json, m.headers::json from unnest(p_data, p_headers) as m (data, headers);
    if not gapless_internal.is_channel_name(p_channel) or exists (
        select from unnest(p_types, p_message_keys, p_data, p_headers) as m (type, key, data, headers)
        where gapless_internal.is_misshapen(m.type, m.key, m.data, m.headers))
    then
        raise exception 'a message does not fit' using errcode = '22023';
    end if;
    status := 0;
    created_at := clock_timestamp();
    if not p_create and not exists (select from gapless.channels c
                                    where c.namespace_id = p_namespace_id and c.name = p_channel) then
        return;
    end if;
    scheduled_ids := array(select nextval('gapless.scheduled_id_seq') from generate_subscripts(p_types, 1));
    if p_key is not null then
        delete from gapless.idempotency i
        where i.namespace_id = p_namespace_id and i.key = p_key and i.stored_at <= now() - interval '24 hours';
        insert into gapless.idempotency
            (namespace_id, key, fingerprint, created_at, stored_at, channels, ids, seqs)
        values (p_namespace_id, p_key, p_fingerprint, schedule_messages.created_at, schedule_messages.created_at, array[p_channel],
                scheduled_ids, '{}')
        on conflict do nothing returning * into known;
        if known.key is null then
            select * into known from gapless.idempotency i where i.namespace_id = p_namespace_id and i.key = p_key;
            status := case when known.fingerprint = p_fingerprint and known.seqs = '{}' then 1 else 2 end;
            scheduled_ids := known.ids;
            created_at := known.stored_at;
        end if;
    end if;
    -- A repeated request gets the same answer: delays count from when it was stored first.
    deliver_at := array(
        select coalesce(w.at, schedule_messages.created_at + w.delay * interval '1 second')
        from unnest(p_deliver_at, p_delays) with ordinality as w (at, delay, ord) order by w.ord);
    if status > 0 then
        return;
    end if;
    insert into gapless.scheduled (id, namespace_id, deliver_at, created_at, channel, type, key, sender, headers,
                                   data, "binary", ttl, key_id, until, change, version, moderates)
    overriding system value
    select m.id, p_namespace_id, m.at, schedule_messages.created_at, p_channel, m.type, m.key, m.sender, m.headers, m.data,
           m.bin, m.ttl, p_key_id, p_until, m.change, m.version, m.moderates
    from unnest(scheduled_ids, schedule_messages.deliver_at, p_types, p_message_keys, p_senders, p_headers, p_data,
                p_binary, p_ttls, p_changes, p_versions, p_moderates)
        as m (id, at, type, key, sender, headers, data, bin, ttl, change, version, moderates);
end $$;

-- The same, for workers of the version before.
create or replace function gapless.schedule_for(
    p_key_id text, p_until timestamptz, p_namespace_id integer, p_channel text, p_create boolean, p_key text, p_fingerprint bytea,
    p_deliver_at timestamptz[], p_delays double precision[], p_types text[], p_message_keys text[], p_senders text[],
    p_headers text[], p_data text[], p_binary bytea[], p_ttls double precision[],
    out status integer, out scheduled_ids bigint[], out deliver_at timestamptz[], out created_at timestamptz
) language sql security definer set search_path = pg_catalog, pg_temp as $$
    select * from gapless.schedule_messages(
        p_key_id, p_until, p_namespace_id, p_channel, p_create, p_key, p_fingerprint, p_deliver_at, p_delays, p_types,
        p_message_keys, p_senders, p_headers, p_data, p_binary, p_ttls, null, null, null)
$$;

-- The same, for workers of the version before that one.
create or replace function gapless.schedule(
    p_namespace_id integer, p_channel text, p_create boolean, p_key text, p_fingerprint bytea,
    p_deliver_at timestamptz[], p_delays double precision[], p_types text[], p_message_keys text[], p_senders text[],
    p_headers text[], p_data text[], p_binary bytea[], p_ttls double precision[],
    out status integer, out scheduled_ids bigint[], out deliver_at timestamptz[], out created_at timestamptz
) language sql security definer set search_path = pg_catalog, pg_temp as $$
    select * from gapless.schedule_for(
        null, null, p_namespace_id, p_channel, p_create, p_key, p_fingerprint, p_deliver_at, p_delays, p_types,
        p_message_keys, p_senders, p_headers, p_data, p_binary, p_ttls)
$$;

-- Publishes rows that the caller has removed, in their order; one that changes another message is judged by itself.
-- Out as gapless.append_messages, and the channels touched. Without statuses all are stored.
create or replace function gapless_internal.publish_rows(
    p_rows gapless.scheduled[], p_create boolean,
    out ids bigint[], out seqs bigint[], out statuses smallint[], out appended_at timestamptz, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    changing constant boolean := exists (select from unnest(p_rows) r where r.change is not null);
    a record;
begin
    select x.*, m.namespaces, m.names, m.channel into a from (
        with r as (
            select r.*, dense_rank() over (order by r.namespace_id, r.channel)::integer as n
            from unnest(p_rows) with ordinality as r
        ), named as (
            select distinct r.n, r.namespace_id, r.channel from r
        )
        select (select array_agg(named.namespace_id order by named.n) from named) as namespaces,
               (select array_agg(named.channel order by named.n) from named) as names,
               array_agg(case when changing then r.ordinality::integer else 1 end order by r.ordinality) as request,
               array_agg(r.n order by r.ordinality) as channel,
               array_agg(r.type order by r.ordinality) as types, array_agg(r.key order by r.ordinality) as keys,
               array_agg(r.data order by r.ordinality) as data, array_agg(r."binary" order by r.ordinality) as bin,
               array_agg(r.headers order by r.ordinality) as headers,
               array_agg(r.sender order by r.ordinality) as senders, array_agg(r.ttl order by r.ordinality) as ttls,
               case when changing then array_agg(r.change order by r.ordinality) end as changes,
               array_agg(r.version order by r.ordinality) as versions,
               array_agg(r.moderates order by r.ordinality) as moderates
        from r
    ) m cross join lateral gapless.append_messages(
        m.namespaces, m.names, p_create, null, null, null, null, null, m.request, m.channel, m.types, m.keys, m.data,
        m.bin, m.headers, m.senders, m.ttls, m.changes, m.versions, m.moderates) x;
    ids := a.ids;
    seqs := a.seqs;
    statuses := a.statuses;
    appended_at := a.appended_at;
    select json_agg(json_build_object('namespace_id', a.namespaces[x.n], 'channel', a.names[x.n],
                                      'channel_id', a.channel_ids[x.n], 'last_id', x.last_id, 'last_seq', x.last_seq))
    into touched
    from (select c.n, max(a.ids[c.ord]) as last_id, max(a.seqs[c.ord]) as last_seq
          from unnest(a.channel) with ordinality as c (n, ord) where a.ids[c.ord] is not null group by c.n) x;
    -- What was refused stays, for somebody to see it and to decide.
    insert into gapless.scheduled overriding system value
    select r.id, r.namespace_id, r.deliver_at, r.created_at, r.channel, r.type, r.key, r.sender, r.headers, r.data,
           r."binary", r.ttl, r.key_id, r.until, true, r.change, r.version, r.moderates, a.statuses[r.ordinality]
    from unnest(p_rows) with ordinality as r where a.statuses[r.ordinality] > 0;
end $$;

-- Publishes scheduled messages that are due, at most p_limit and about p_max_bytes, oldest first. Those that
-- other sessions are publishing or cancelling at the moment are skipped. Those whose credential has ended are
-- withheld, as are changes that are refused, and count as done.
create or replace function gapless.publish_due(
    p_namespaces integer[], p_limit integer, p_max_bytes bigint, out done integer, out touched json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    due gapless.scheduled[];
    needed boolean;
    withheld bigint;
begin
    -- One process at a time, locked before reading the clock: later messages of another must not overtake.
    perform gapless_internal.needs_fresh_snapshots();
    lock table gapless.due_lock in exclusive mode;
    -- An installation that was opened has no keys any more, and everybody may do everything.
    select l.credentials_required into needed from gapless.log l;
    with locked as materialized (
        select s.* from gapless.scheduled s
        where s.namespace_id = any(p_namespaces) and s.deliver_at <= clock_timestamp()
          and not s.withheld
        order by s.deliver_at, s.id limit p_limit for update skip locked
    ), few as (
        select l.id, needed and (l.until < l.deliver_at or (l.key_id is not null and not exists (
                   select from gapless.keys k where k.id = l.key_id))) as ended
        from (
            select l.*, sum(coalesce(octet_length(l.data), octet_length(l."binary"))) over w
                         - coalesce(octet_length(l.data), octet_length(l."binary")) as before,
                   -- A version is compared with the state before the batch, so it is the first of its batch.
                   count(l.version) over w - (first_value(l.version) over w is not null)::integer as later_versions
            from locked l window w as (order by l.deliver_at, l.id)) l
        where l.before < p_max_bytes and l.later_versions = 0
    ), kept as (
        update gapless.scheduled s set withheld = true from few where s.id = few.id and few.ended returning s.id
    ), gone as (
        delete from gapless.scheduled s using few where s.id = few.id and few.ended is not true returning s.*
    )
    select (select array_agg(g::gapless.scheduled order by g.deliver_at, g.id) from gone g),
           (select count(*) from kept)
    into due, withheld;
    done := coalesce(cardinality(due), 0) + withheld;
    if due is not null then
        select p.touched into touched from gapless_internal.publish_rows(due, true) p;
    end if;
end $$;

-- Publishes one now. A null id: it does not exist (any more), or it was refused with this status, and stays.
create or replace function gapless.publish_now(
    p_namespace_id integer, p_id bigint,
    out id bigint, out channel text, out seq bigint, out created_at timestamptz, out touched json, out status smallint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    taken gapless.scheduled;
begin
    delete from gapless.scheduled s where s.namespace_id = p_namespace_id and s.id = p_id returning s.* into taken;
    if taken.id is null then
        return;
    end if;
    channel := taken.channel;
    select p.ids[1], p.seqs[1], p.appended_at, p.touched, coalesce(p.statuses[1], 0::smallint)
    into id, seq, created_at, touched, status
    from gapless_internal.publish_rows(array[taken], true) p;
end $$;

-- The same, for workers of the version before.
create or replace function gapless.promote_scheduled(
    p_namespace_id integer, p_id bigint,
    out id bigint, out channel text, out seq bigint, out created_at timestamptz, out touched json
) language sql security definer set search_path = pg_catalog, pg_temp as $$
    select p.id, p.channel, p.seq, p.created_at, p.touched from gapless.publish_now(p_namespace_id, p_id) p
$$;

-- Removes one before it is published. Returns whether it existed.
create or replace function gapless.cancel_scheduled(p_namespace_id integer, p_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from gapless.scheduled s where s.namespace_id = p_namespace_id and s.id = p_id;
    return found;
end $$;
