-- The log: channels, messages in segments, idempotency, and the only ways to write them.
--
-- Locks, in the order every writer takes them, so that no two can wait for one another in a circle:
--   1. the publishing lock (advisory, shared): held from before an id is taken until commit
--   2. channel rows, missing ones created by name, then all locked by id
--   3. idempotency keys, by key
-- The watermark reads who holds lock 1 (gapless.tick); a new segment is opened, and a channel is deleted,
-- under lock 1, exclusive.

create sequence gapless.message_id as bigint minvalue 1 maxvalue 9007199254740991 cache 1;

create table gapless.log (
    singleton boolean primary key default true check (singleton),
    epoch uuid not null default gen_random_uuid(),
    -- Signs the hints that travel through Redis, so that nobody who can write there can invent a message.
    hint_secret bytea not null
        default decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'),
    -- The newest id that retention has removed, of any channel: a reader of everything that is behind it
    -- cannot trust a plain read of the ids.
    trimmed_id bigint not null default 0,
    created_at timestamptz not null default now()
);
insert into gapless.log default values;

create table gapless.namespaces (
    id integer generated always as identity primary key,
    name text not null unique check (name ~ '^[A-Za-z0-9_~:@.-]{1,255}$')
);
insert into gapless.namespaces (name) values ('default');

create table gapless.channels (
    id bigint generated always as identity primary key,
    namespace_id integer not null references gapless.namespaces,
    last_id bigint not null default 0,
    last_seq bigint not null default 0,
    first_id bigint not null default 0,
    first_seq bigint not null default 1,
    trimmed_id bigint not null default 0,
    created_at timestamptz not null default now(),
    max_age integer check (max_age > 0),
    max_messages bigint check (max_messages > 0),
    message_ttl double precision check (message_ttl > 0),
    name text collate "C" not null
        check (length(name) <= 255 and name ~ '^[A-Za-z0-9_~:@-]+(\.[A-Za-z0-9_~:@-]+)*$'),
    unique (namespace_id, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

comment on column gapless.channels.first_id is 'id of the oldest message kept; meaningless while none is';
comment on column gapless.channels.trimmed_id is 'id of the newest message that retention removed; 0: none';

create table gapless.messages (
    id bigint not null,
    channel_id bigint not null,
    seq bigint not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    type text not null,
    key text,
    sender text,
    headers json,
    data json,
    "binary" bytea,
    -- Bytes of the payload as it was sent: what a page of history adds up, without unpacking anything.
    size integer not null,
    primary key (id),
    check ((data is null) <> ("binary" is null))
) partition by range (id);
create index messages_channel on gapless.messages (channel_id, id);

-- A segment is one partition of messages: ids lower <= id < upper.
create table gapless.segments (
    lower bigint primary key,
    upper bigint not null,
    opened_at timestamptz,
    check (lower < upper)
);

-- What was in a dropped segment, one row a channel: enough to say how much a late reader missed.
create table gapless.trims (
    channel_id bigint not null,
    last_id bigint not null,
    last_seq bigint not null,
    last_created_at timestamptz not null,
    primary key (channel_id, last_id)
);

create table gapless.deleted_channels (
    channel_id bigint primary key,
    last_id bigint not null
);

create table gapless.idempotency (
    namespace_id integer not null,
    key text collate "C" not null,
    fingerprint bytea not null,
    created_at timestamptz not null,
    stored_at timestamptz not null,
    channels text[] not null,
    ids bigint[] not null,
    seqs bigint[] not null,
    primary key (namespace_id, key)
) with (autovacuum_vacuum_scale_factor = 0.05);
create index idempotency_age on gapless.idempotency (stored_at);

-- Rows live here only inside the transaction that publishes them, so nothing is lost when a crash empties it.
create unlogged table gapless.outbox (
    transaction_id xid8 not null default pg_current_xact_id(),
    ord bigint generated always as identity,
    namespace_id integer not null,
    channel text not null,
    type text not null,
    key text,
    headers json,
    data json not null,
    ttl double precision,
    primary key (transaction_id, ord)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- One row, made anew whenever the server lost what it had not flushed: a crash empties an unlogged table.
create unlogged table gapless.lives (
    singleton boolean primary key default true check (singleton),
    id uuid not null default gen_random_uuid()
);

-- Makes the next empty segment after the last one: 2^24 ids.
create function gapless.add_segment() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    span constant bigint := 16777216;
    next_lower bigint;
begin
    lock table gapless.segments in exclusive mode;
    select coalesce(max(upper), 1) into next_lower from gapless.segments;
    execute format('create table gapless.messages_%s (like gapless.messages including all)', next_lower);
    execute format('alter table gapless.messages attach partition gapless.messages_%s '
        'for values from (%s) to (%s)', next_lower, next_lower, next_lower / span * span + span);
    insert into gapless.segments (lower, upper) values (next_lower, next_lower / span * span + span);
    return next_lower;
end $$;

select gapless.add_segment();
select gapless.add_segment();
select gapless.add_segment();
update gapless.segments set opened_at = now() where lower = 1;

-- Locks the named channels in one order, making those that are missing; arrays come back in the order asked.
create function gapless.lock_channels(
    p_namespaces integer[], p_names text[], p_create boolean,
    out ids bigint[], out last_ids bigint[], out last_seqs bigint[], out ttls double precision[],
    out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    -- Making comes before locking: a writer that waits for another's new row holds no other row yet. Nobody
    -- deletes a channel between the two, for that takes the publishing lock alone.
    if p_create then
        insert into gapless.channels (namespace_id, name)
        select w.namespace_id, w.name
        from unnest(p_namespaces, p_names) as w (namespace_id, name)
        where not exists (
            select from gapless.channels c
            where c.namespace_id = w.namespace_id and c.name = w.name)
        order by w.namespace_id, w.name
        on conflict do nothing;
        made := found;
    end if;

    with wanted as (
        select * from unnest(p_namespaces, p_names) with ordinality as w (namespace_id, name, ord)
    ), locked as materialized (
        select c.id, c.namespace_id, c.name, c.last_id, c.last_seq, c.message_ttl
        from gapless.channels c
        where (c.namespace_id, c.name) in (select w.namespace_id, w.name from wanted w)
        order by c.id
        for no key update
    )
    select array_agg(l.id order by w.ord), array_agg(l.last_id order by w.ord),
           array_agg(l.last_seq order by w.ord), array_agg(l.message_ttl order by w.ord)
    into ids, last_ids, last_seqs, ttls
    from wanted w left join locked l on l.namespace_id = w.namespace_id and l.name = w.name;

    if p_create and array_position(ids, null) is not null then
        raise exception 'a channel disappeared while it was published to' using errcode = '40001';
    end if;
end $$;

-- Settles what each request of a batch is, before ids are taken. Status: 0 to store, 1 replayed,
-- 2 other body under this idempotency key, 3 head mismatch, 4 no such channel.
-- A request with an expected seq is the first of its batch to touch its channel (the caller sees to it).
create function gapless.judge(
    p_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[], p_channel_ids bigint[], p_last_seqs bigint[],
    out statuses smallint[], out answers json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- A key is remembered for 24 hours; a stale one that nobody has purged yet counts as absent.
    delete from gapless.idempotency i
    using unnest(p_namespaces, p_keys) as r (namespace_id, key)
    where i.namespace_id = r.namespace_id and i.key = r.key and i.stored_at <= now() - interval '24 hours';

    with r as (
        select * from unnest(p_namespaces, p_keys, p_fingerprints, p_expected, p_expected_channel)
            with ordinality as r (namespace_id, key, fingerprint, expected, channel, ord)
    )
    select array_agg((case
               when i.key is not null and i.fingerprint = r.fingerprint then 1
               when i.key is not null then 2
               when r.expected is not null
                   and r.expected <> coalesce(p_last_seqs[r.channel], 0) then 3
               else 0 end)::smallint order by r.ord),
           json_agg(case when i.key is not null and i.fingerprint = r.fingerprint then json_build_object(
               'channels', i.channels, 'ids', i.ids, 'seqs', i.seqs,
               'created_at_us', (extract(epoch from i.created_at) * 1000000)::bigint) end order by r.ord)
    into statuses, answers
    from r left join gapless.idempotency i on i.namespace_id = r.namespace_id and i.key = r.key;
end $$;

-- Appends a batch: many requests, each atomic and judged on its own, in one transaction.
--   channels: p_namespaces, p_names            one entry a distinct channel
--   requests: p_request_namespaces, p_keys, p_fingerprints, p_expected, p_expected_channel
--             (the first null as a whole: no request has a key or an expectation)
--   messages: p_request, p_channel (1-based), p_types, p_message_keys, p_data, p_binary, p_headers,
--             p_senders, p_ttls; in the order in which they get their ids
-- Out: ids and seqs a message (null where its request was not stored), the channels' ids and heads before,
-- statuses and answers as gapless.judge gives them (null: all stored), the time of the append, and when each
-- message expires (null as a whole: none does).
create function gapless.append(
    p_namespaces integer[], p_names text[], p_create boolean,
    p_request_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[],
    p_request integer[], p_channel integer[], p_types text[], p_message_keys text[], p_data text[],
    p_binary bytea[], p_headers text[], p_senders text[], p_ttls double precision[],
    out ids bigint[], out seqs bigint[], out channel_ids bigint[], out last_ids bigint[],
    out last_seqs bigint[], out statuses smallint[], out answers json, out appended_at timestamptz,
    out expires_at timestamptz[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    ttls double precision[];
    taken bigint[];
    live integer := cardinality(p_request);
    kept integer;
    made boolean;
begin
    -- Nobody may read what a crash could take back, so a commit is on disk before it is seen.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    perform pg_advisory_xact_lock_shared(1195462739, 1);

    select l.ids, l.last_ids, l.last_seqs, l.ttls, l.made into channel_ids, last_ids, last_seqs, ttls, made
    from gapless.lock_channels(p_namespaces, p_names, p_create) l;

    if p_request_namespaces is not null then
        select j.statuses, j.answers into statuses, answers
        from gapless.judge(p_request_namespaces, p_keys, p_fingerprints, p_expected,
                           p_expected_channel, channel_ids, last_seqs) j;
    end if;
    if array_position(channel_ids, null) is not null then
        select array_agg(case when coalesce(statuses[r.ord], 0::smallint) = 0 and exists (
                   select from unnest(p_request, p_channel) as m (request, channel)
                   where m.request = r.ord and channel_ids[m.channel] is null)
               then 4::smallint else coalesce(statuses[r.ord], 0::smallint) end order by r.ord)
        into statuses
        from generate_series(1, (select max(m) from unnest(p_request) m)) as r (ord);
    end if;
    if statuses is not null then
        select count(*) into live from unnest(p_request) as r where statuses[r] = 0;
        if made and live < cardinality(p_request) then
            -- A refused request leaves nothing behind, the channel it would have made least of all. Only a
            -- channel made by this very transaction can be without settings and unseen by everybody else.
            delete from gapless.channels c
            where c.id = any(channel_ids) and c.last_seq = 0 and c.xmin = pg_current_xact_id()::xid
              and not exists (
                  select from unnest(p_request, p_channel) as m (request, channel)
                  where channel_ids[m.channel] = c.id and statuses[m.request] = 0);
        end if;
    end if;

    appended_at := clock_timestamp();
    if live = 0 then
        ids := array_fill(null::bigint, array[cardinality(p_request)]);
        seqs := ids;
        return;
    end if;

    taken := array(select nextval('gapless.message_id') from generate_series(1, live));

    with m as materialized (
        select m.*, row_number() over (order by m.ord) as nth,
               last_seqs[m.channel] + row_number() over (partition by m.channel order by m.ord) as seq,
               least(m.ttl, ttls[m.channel]) as life
        from unnest(p_request, p_channel, p_types, p_message_keys, p_data, p_binary, p_headers,
                    p_senders, p_ttls) with ordinality
            as m (request, channel, type, key, data, bin, headers, sender, ttl, ord)
        where statuses is null or statuses[m.request] = 0
    ), stored as (
        insert into gapless.messages
            (id, channel_id, seq, created_at, expires_at, type, key, sender, headers, data, "binary", size)
        select taken[m.nth], channel_ids[m.channel], m.seq, appended_at,
               appended_at + m.life * interval '1 second',
               m.type, m.key, m.sender, m.headers::json, m.data::json, m.bin,
               coalesce(octet_length(m.data), octet_length(m.bin))
        from m
        order by m.nth
    ), heads as (
        select channel_ids[m.channel] as id, max(m.seq) as last_seq, max(taken[m.nth]) as last_id,
               min(taken[m.nth]) as first_id
        from m
        group by m.channel
    ), moved as (
        update gapless.channels c
        set last_id = h.last_id, last_seq = h.last_seq,
            first_id = case when c.last_seq < c.first_seq then h.first_id else c.first_id end
        from heads h
        where c.id = h.id
    )
    select array_agg(taken[m.nth] order by m.ord), array_agg(m.seq order by m.ord),
           case when count(m.life) > 0
                then array_agg(appended_at + m.life * interval '1 second' order by m.ord) end
    into ids, seqs, expires_at
    from m;

    if statuses is not null and live < cardinality(p_request) then
        -- Give the stored messages their places among those that were not.
        with placed as (
            select p.ord, case when statuses[p.request] = 0
                   then count(*) filter (where statuses[p.request] = 0) over (order by p.ord) end as nth
            from unnest(p_request) with ordinality as p (request, ord)
        )
        select array_agg(ids[p.nth] order by p.ord), array_agg(seqs[p.nth] order by p.ord),
               case when expires_at is not null then array_agg(expires_at[p.nth] order by p.ord) end
        into ids, seqs, expires_at
        from placed p;
    end if;

    if p_request_namespaces is not null then
        insert into gapless.idempotency
            (namespace_id, key, fingerprint, created_at, stored_at, channels, ids, seqs)
        select r.namespace_id, r.key, r.fingerprint, appended_at, appended_at, m.channels, m.ids, m.seqs
        from unnest(p_request_namespaces, p_keys, p_fingerprints) with ordinality
                as r (namespace_id, key, fingerprint, ord)
        cross join lateral (
            select array_agg(p_names[x.channel] order by x.ord) as channels,
                   array_agg(ids[x.ord] order by x.ord) as ids, array_agg(seqs[x.ord] order by x.ord) as seqs
            from unnest(p_request, p_channel) with ordinality as x (request, channel, ord)
            where x.request = r.ord
        ) m
        where r.key is not null and statuses[r.ord] = 0
        order by r.namespace_id, r.key
        on conflict do nothing;
        get diagnostics kept = row_count;
        if kept < (select count(*) from unnest(p_keys) with ordinality as k (key, ord)
                   where k.key is not null and statuses[k.ord] = 0) then
            -- Another transaction stored this key between the judgement and here: judge again.
            raise exception 'an idempotency key was stored meanwhile' using errcode = '40001';
        end if;
    end if;
end $$;

-- Publishes inside the caller's own transaction: visible if and when it commits, in channel order.
-- The channel is locked only while the transaction commits, so a long one blocks nobody.
create function gapless.publish(
    channel text, data jsonb, key text default null, type text default 'message',
    headers jsonb default null, ttl double precision default null, namespace text default 'default'
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    owner_id integer;
    control constant text := '[\x01-\x1f\x7f-\x9f]';
begin
    select n.id into owner_id from gapless.namespaces n where n.name = publish.namespace;
    if owner_id is null then
        raise exception 'namespace % does not exist', publish.namespace using errcode = '22023';
    end if;
    if length(channel) > 255 or channel !~ '^[A-Za-z0-9_~:@-]+(\.[A-Za-z0-9_~:@-]+)*$' then
        raise exception 'channel name % does not fit', quote_literal(left(channel, 300))
            using errcode = '22023', hint = 'tokens of [A-Za-z0-9_~:@-] joined by dots, 1 to 255 characters';
    end if;
    if data is null or octet_length(data::text) > 1048576 then
        raise exception 'data must be JSON of at most 1 MiB' using errcode = '22023';
    end if;
    if length(key) > 255 or key ~ control or length(type) not between 1 and 128 or type ~ control then
        raise exception 'key (255) or type (1 to 128 characters) does not fit' using errcode = '22023';
    end if;
    if ttl is not null and not (ttl > 0 and ttl <= 315360000) then
        raise exception 'ttl must be above 0 and at most ten years, in seconds' using errcode = '22023';
    end if;
    if headers is not null then
        if jsonb_typeof(headers) <> 'object' or octet_length(headers::text) > 8192 then
            raise exception 'headers must be an object of strings, at most 8 KiB' using errcode = '22023';
        end if;
        if exists (select from jsonb_each(headers) e where jsonb_typeof(e.value) <> 'string')
           or (select count(*) from jsonb_object_keys(headers)) > 64 then
            raise exception 'headers must be at most 64 strings' using errcode = '22023';
        end if;
    end if;
    insert into gapless.outbox (namespace_id, channel, type, key, headers, data, ttl)
    values (owner_id, publish.channel, publish.type, publish.key,
            nullif(publish.headers, '{}'::jsonb)::json, publish.data::json, publish.ttl);
end $$;

-- Runs once a row just before commit; the first run of a transaction moves all its rows, the rest find none.
create function gapless.flush_outbox() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    limits constant text[] := array['lock_timeout', 'idle_in_transaction_session_timeout',
                                    'transaction_timeout'];
    setting text;
begin
    if not exists (select from gapless.outbox o
                   where o.transaction_id = new.transaction_id and o.ord = new.ord) then
        return null;
    end if;
    -- From here on ids and channel locks are held: whoever stays longer than 5 s is ended by the database.
    foreach setting in array limits loop
        if current_setting(setting, true) is not null then
            perform set_config(setting, '5s', true);
        end if;
    end loop;

    perform gapless.append(x.namespaces, x.names, true, null, null, null, null, null, x.request, x.channel,
                           x.types, x.keys, x.data, x.bin, x.headers, x.senders, x.ttls)
    from (
        with mine as materialized (
            select * from gapless.outbox o where o.transaction_id = pg_current_xact_id()
        ), named as (
            select m.namespace_id, m.channel,
                   row_number() over (order by m.namespace_id, m.channel)::integer as n
            from mine m
            group by m.namespace_id, m.channel
        ), messages as (
            select m.*, n.n from mine m join named n using (namespace_id, channel)
        )
        select c.namespaces, c.names, a.*
        from (
            select array_agg(n.namespace_id order by n.n) as namespaces,
                   array_agg(n.channel order by n.n) as names
            from named n
        ) c, (
            select array_agg(1 order by m.ord) as request, array_agg(m.n order by m.ord) as channel,
                   array_agg(m.type order by m.ord) as types, array_agg(m.key order by m.ord) as keys,
                   array_agg(m.data::text order by m.ord) as data,
                   array_agg(null::bytea order by m.ord) as bin,
                   array_agg(m.headers::text order by m.ord) as headers,
                   array_agg(null::text order by m.ord) as senders,
                   array_agg(m.ttl order by m.ord) as ttls
            from messages m
        ) a
    ) x;
    delete from gapless.outbox o where o.transaction_id = pg_current_xact_id();
    return null;
end $$;

create constraint trigger publish_at_commit after insert on gapless.outbox
    deferrable initially deferred for each row execute function gapless.flush_outbox();

-- The watermark's raw reading, in this order: the last id taken, how far the journal had come then, and who
-- may still hold an id without having committed. Once those holders are gone and the journal is on disk up
-- to `lsn`, nothing can appear at or below `last_id` any more, not even after a crash (a sequence value
-- taken by a transaction that rolled back is not on disk yet: a crash may hand it out again). All of that
-- holds within one `life` of the server.
create function gapless.tick(
    out last_id bigint, out lsn bigint, out flushed bigint, out holders text[], out life uuid
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    select l.id into life from gapless.lives l;
    if not found then
        insert into gapless.lives default values on conflict do nothing;
        select l.id into life from gapless.lives l;
    end if;
    select case when s.is_called then s.last_value else 0 end into last_id from gapless.message_id s;
    lsn := pg_current_wal_insert_lsn() - '0/0'::pg_lsn;
    -- At the end of a page the journal's position counts the header of the next, which is written with the
    -- next record only: without this an idle database would stay unsettled there.
    lsn := lsn - case
        when lsn % pg_size_bytes(current_setting('wal_segment_size')) = 40 then 40
        when lsn % current_setting('wal_block_size')::integer = 24 then 24
        else 0 end;
    flushed := pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
    select coalesce(array_agg(distinct l.virtualtransaction), '{}') into holders
    from pg_locks l
    where l.locktype = 'advisory' and l.classid = 1195462739 and l.objid = 1 and l.objsubid = 2
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.mode = 'ShareLock' and l.granted;
end $$;

-- The seq of the newest message of a channel at or below an id, whether retention kept it or not.
-- Exact while the rows are there; for a dropped segment, the nearest mark below (then a lower bound).
create function gapless.seq_at(p_channel_id bigint, p_id bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(
        coalesce((select m.seq from gapless.messages m
                  where m.channel_id = p_channel_id and m.id <= p_id order by m.id desc limit 1), 0),
        coalesce((select t.last_seq from gapless.trims t
                  where t.channel_id = p_channel_id and t.last_id <= p_id
                  order by t.last_id desc limit 1), 0))
$$;

-- An id such that everything at or below it was created before p_time; the nearest such id up to the few
-- seconds by which the clocks of concurrent writers may cross. Binary search over the primary key.
create function gapless.id_before(p_time timestamptz) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    lo bigint := 0;
    hi bigint;
    mid bigint;
    probe record;
begin
    select case when s.is_called then s.last_value else 0 end + 1 into hi from gapless.message_id s;
    while hi - lo > 1 loop
        mid := lo + (hi - lo) / 2;
        select m.id, m.created_at into probe from gapless.messages m where m.id >= mid order by m.id limit 1;
        if not found or probe.created_at >= p_time - interval '10 seconds' then
            hi := mid;
        else
            lo := probe.id;
        end if;
    end loop;
    return lo;
end $$;

-- Starts a new segment when the newest one in use is older than p_age seconds or nearly full, by moving the
-- sequence to the next lower bound. Nobody publishes meanwhile: it holds the publishing lock alone.
create function gapless.roll_segment(p_age double precision) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    current_id bigint;
    active gapless.segments;
    spare bigint;
begin
    loop
        select count(*) into spare from gapless.segments g
        where g.lower > (select s.last_value from gapless.message_id s);
        exit when spare >= 2;
        perform gapless.add_segment();
    end loop;
    select s.last_value into current_id from gapless.message_id s;
    select g.* into active from gapless.segments g where g.lower <= current_id and g.upper > current_id;
    update gapless.segments g set opened_at = now() where g.lower = active.lower and g.opened_at is null;
    if found or active.opened_at > now() - p_age * interval '1 second'
       or not exists (select from gapless.messages m where m.id >= active.lower and m.id < active.upper) then
        return false;
    end if;
    perform pg_advisory_xact_lock(1195462739, 1);
    select s.last_value into current_id from gapless.message_id s;
    if current_id >= active.upper then
        return false;
    end if;
    perform setval('gapless.message_id', active.upper - 1, true);
    update gapless.segments g set opened_at = now() where g.lower = active.upper;
    return true;
end $$;

-- Moves the floors of channels with a retention rule; p_limit channels a call. Returns how many moved.
create function gapless.trim_channels(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c record;
    cut_id bigint;
    cut_seq bigint;
    kept_id bigint;
    moved integer := 0;
begin
    -- One at a time: two that lock the same channels would only wait for one another.
    if not pg_try_advisory_xact_lock(1195462739, 2) then
        return 0;
    end if;
    for c in
        select * from gapless.channels
        where last_seq >= first_seq and (max_age is not null
              or (max_messages is not null and last_seq - first_seq + 1 > max_messages))
        order by id
    loop
        exit when moved >= p_limit;
        cut_id := null;
        cut_seq := null;
        if c.max_age is not null then
            -- Walks forward over what goes: work in proportion to what is removed, not to what is kept.
            select m.id, m.seq into cut_id, cut_seq from gapless.messages m
            where m.channel_id = c.id and m.id > c.trimmed_id
              and m.id < coalesce((
                  select k.id from gapless.messages k
                  where k.channel_id = c.id and k.id > c.trimmed_id
                    and k.created_at >= clock_timestamp() - c.max_age * interval '1 second'
                  order by k.id limit 1), 9223372036854775807)
            order by m.id desc limit 1;
        end if;
        if c.max_messages is not null and c.last_seq - c.max_messages > coalesce(cut_seq, c.first_seq - 1) then
            select m.id, m.seq into cut_id, cut_seq from gapless.messages m
            where m.channel_id = c.id and m.id > c.trimmed_id
            order by m.id offset c.last_seq - c.max_messages - c.first_seq limit 1;
        end if;
        continue when cut_id is null;
        select m.id into kept_id from gapless.messages m
        where m.channel_id = c.id and m.id > cut_id order by m.id limit 1;
        update gapless.channels u
        set first_seq = cut_seq + 1, trimmed_id = cut_id, first_id = coalesce(kept_id, u.last_id + 1)
        where u.id = c.id and u.first_seq <= cut_seq
          -- A message that arrived since changes which one is the first kept: leave that to the next run.
          and (kept_id is not null or u.last_seq = cut_seq);
        if found then
            moved := moved + 1;
            update gapless.log l set trimmed_id = greatest(l.trimmed_id, cut_id) where l.trimmed_id < cut_id;
        end if;
    end loop;
    return moved;
end $$;

-- Drops the oldest segment if it is closed and nothing in it is kept. Returns its lower bound, or null.
create function gapless.drop_segment(p_settled bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    oldest gapless.segments;
begin
    select * into oldest from gapless.segments order by lower limit 1 for update skip locked;
    if oldest.lower is null or oldest.upper - 1 > p_settled
       or oldest.lower <> (select min(lower) from gapless.segments) then
        return null;
    end if;
    if exists (select from gapless.channels c
               where c.last_seq >= c.first_seq and c.first_id < oldest.upper) then
        return null;
    end if;
    insert into gapless.trims (channel_id, last_id, last_seq, last_created_at)
    select c.id, m.id, m.seq, m.created_at
    from gapless.channels c cross join lateral (
        select m.id, m.seq, m.created_at from gapless.messages m
        where m.channel_id = c.id and m.id < oldest.upper order by m.id desc limit 1) m
    on conflict do nothing;
    execute format('drop table gapless.messages_%s', oldest.lower);
    delete from gapless.segments where lower = oldest.lower;
    return oldest.lower;
end $$;

-- Removes rows that are gone for their channel while others keep the segment they lie in: those of deleted
-- channels, and of trimmed channels where the whole segment lies below their floor. At most p_limit rows.
create function gapless.purge_rows(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone integer := 0;
    n integer;
    d record;
    g record;
begin
    for d in select * from gapless.deleted_channels order by channel_id for update skip locked loop
        delete from gapless.messages m where m.id in (
            select x.id from gapless.messages x where x.channel_id = d.channel_id
            order by x.id limit p_limit - gone);
        get diagnostics n = row_count;
        gone := gone + n;
        if gone >= p_limit then return gone; end if;
        delete from gapless.trims t where t.channel_id = d.channel_id;
        delete from gapless.deleted_channels x where x.channel_id = d.channel_id;
    end loop;
    select * into g from gapless.segments order by lower limit 1;
    for d in
        select c.id, c.trimmed_id from gapless.channels c where c.trimmed_id >= g.upper - 1
    loop
        insert into gapless.trims (channel_id, last_id, last_seq, last_created_at)
        select m.channel_id, m.id, m.seq, m.created_at from gapless.messages m
        where m.channel_id = d.id and m.id < g.upper order by m.id desc limit 1
        on conflict do nothing;
        delete from gapless.messages m where m.id in (
            select x.id from gapless.messages x where x.channel_id = d.id and x.id < g.upper
            order by x.id limit p_limit - gone);
        get diagnostics n = row_count;
        gone := gone + n;
        if gone >= p_limit then return gone; end if;
    end loop;
    return gone;
end $$;

create function gapless.purge_idempotency(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    n integer;
begin
    delete from gapless.idempotency i where (i.namespace_id, i.key) in (
        select x.namespace_id, x.key from gapless.idempotency x
        where x.stored_at <= now() - interval '24 hours'
        order by x.stored_at limit p_limit for update skip locked);
    get diagnostics n = row_count;
    return n;
end $$;

-- Makes or changes a channel's settings. p_patch: only the given members change ('max_age', 'max_messages',
-- 'message_ttl'; a JSON null clears one); otherwise the settings become exactly p_settings. Null when p_patch
-- is asked of a channel that is not there. `made` says that this call created it.
create function gapless.set_channel(
    p_namespace_id integer, p_name text, p_settings jsonb, p_patch boolean, out channel_id bigint, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    if not p_patch then
        insert into gapless.channels (namespace_id, name) values (p_namespace_id, p_name)
        on conflict do nothing returning id into channel_id;
        made := channel_id is not null;
    end if;
    update gapless.channels c
    set max_age = case when not p_patch or p_settings ? 'max_age'
                  then (p_settings ->> 'max_age')::integer else c.max_age end,
        max_messages = case when not p_patch or p_settings ? 'max_messages'
                  then (p_settings ->> 'max_messages')::bigint else c.max_messages end,
        message_ttl = case when not p_patch or p_settings ? 'message_ttl'
                  then (p_settings ->> 'message_ttl')::double precision else c.message_ttl end
    where c.namespace_id = p_namespace_id and c.name = p_name
    returning c.id into channel_id;
end $$;

-- Holds the publishing lock alone: a publisher that found its channel gone half way would have to make it anew
-- while it holds others, and two such publishers could wait for one another in a circle.
create function gapless.delete_channel(p_namespace_id integer, p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
declare
    gone record;
begin
    perform pg_advisory_xact_lock(1195462739, 1);
    delete from gapless.channels c where c.namespace_id = p_namespace_id and c.name = p_name
    returning c.id, c.last_id into gone;
    if gone.id is null then
        return false;
    end if;
    insert into gapless.deleted_channels (channel_id, last_id) values (gone.id, gone.last_id);
    return true;
end $$;

-- Who may do what: nobody writes a table directly, whatever the role; the functions above are the only way.
revoke all on all tables in schema gapless from public;
revoke all on all functions in schema gapless from public;
