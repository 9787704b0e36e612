-- The only way into the log: gapless.append gives a batch its ids and seqs. Locks: see
-- migrations/0001_log.sql.

-- Decides for each request of a batch what happens to it, before ids are taken. Status: 0 to store, 1
-- replayed, 2 other body under this idempotency key, 3 head mismatch, 4 no such channel. A request with an
-- expected seq has to be the first of its batch to touch its channel.
create or replace function gapless_internal.judge(
    p_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[], p_request integer[], p_channel integer[], p_channel_ids bigint[],
    p_last_seqs bigint[], out statuses smallint[], out answers json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if array_remove(p_expected, null) <> '{}' and exists (
        select from unnest(p_expected, p_expected_channel) with ordinality as r (expected, channel, ord)
        join unnest(p_request, p_channel) as m (request, channel) on m.channel = r.channel and m.request < r.ord
        where r.expected is not null)
    then
        -- Otherwise it would be compared with another head than the one that it follows.
        raise exception 'a request expects a seq of a channel that comes before it in its batch'
            using errcode = '22023';
    end if;
    -- A key is remembered for 24 hours; an older one that is not purged yet counts as absent.
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

-- The statuses if some channels do not exist: 4 for each request that publishes to one of them.
create or replace function gapless_internal.refuse_missing(
    p_statuses smallint[], p_request integer[], p_channel integer[], p_channel_ids bigint[]
) returns smallint[]
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select array_agg(case when coalesce(p_statuses[r.ord], 0::smallint) = 0 and exists (
               select from unnest(p_request, p_channel) as m (request, channel)
               where m.request = r.ord and p_channel_ids[m.channel] is null)
           then 4::smallint else coalesce(p_statuses[r.ord], 0::smallint) end order by r.ord)
    from generate_series(1, (select max(m) from unnest(p_request) m)) as r (ord)
$$;

-- Removes channels that this transaction created for requests that are refused: a refused request leaves
-- nothing behind. Only a channel of this transaction can have no settings and be invisible to all other
-- sessions.
create or replace function gapless_internal.unmake_channels(
    p_statuses smallint[], p_request integer[], p_channel integer[], p_channel_ids bigint[]
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from gapless.channels c
    where c.id = any(p_channel_ids) and c.last_seq = 0 and c.xmin = pg_current_xact_id()::xid
      and not exists (
          select from unnest(p_request, p_channel) as m (request, channel)
          where p_channel_ids[m.channel] = c.id and p_statuses[m.request] = 0)
$$;

-- How many messages of a judged batch are stored. Channels that were made for others are removed; p_made: there may be
-- such.
create or replace function gapless_internal.count_accepted(
    p_statuses smallint[], p_request integer[], p_channel integer[], p_channel_ids bigint[], p_made boolean
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    accepted integer;
    judged integer;
begin
    select count(*) filter (where p_statuses[r] = 0), count(p_statuses[r]) into accepted, judged
    from unnest(p_request) as r;
    if judged < cardinality(p_request) then
        raise exception 'a message belongs to no request' using errcode = '22023';
    end if;
    if p_made and accepted < cardinality(p_request) then
        perform gapless_internal.unmake_channels(p_statuses, p_request, p_channel, p_channel_ids);
    end if;
    return accepted;
end $$;

-- Judges a batch: by its keys and expectations, by whether its channels exist, and by what it changes.
create or replace function gapless_internal.judge_all(
    p_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[], p_expected_channel integer[],
    p_request integer[], p_channel integer[], p_channel_ids bigint[], p_last_seqs bigint[], p_senders text[],
    p_message_keys text[], p_changes json[], p_versions bigint[], p_moderates boolean[], p_targets bigint[],
    p_actions text[], out statuses smallint[], out answers json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_namespaces is not null then
        select j.statuses, j.answers into statuses, answers
        from gapless_internal.judge(p_namespaces, p_keys, p_fingerprints, p_expected, p_expected_channel, p_request,
                                    p_channel, p_channel_ids, p_last_seqs) j;
    end if;
    if array_position(p_channel_ids, null) is not null then
        statuses := gapless_internal.refuse_missing(statuses, p_request, p_channel, p_channel_ids);
    end if;
    if p_changes is not null then
        statuses := gapless_internal.judge_changes(
            statuses, p_request, p_channel, p_channel_ids, p_senders, p_message_keys, p_changes, p_versions,
            p_moderates, p_targets, p_actions);
    end if;
end $$;

-- Takes ids for p_live messages, those of requests with status 0 (null statuses: all), stores the messages
-- and moves the heads of their channels, which are locked and stand at p_last_seqs. Returns them in the order
-- in which they were stored.
create or replace function gapless_internal.store_all(
    p_channel_ids bigint[], p_last_seqs bigint[], p_channel_ttls double precision[], p_statuses smallint[],
    p_live integer, p_now timestamptz, p_request integer[], p_channel integer[], p_types text[],
    p_message_keys text[], p_data text[], p_binary bytea[], p_headers text[], p_senders text[],
    p_ttls double precision[], p_changes json[], p_actions text[],
    out ids bigint[], out seqs bigint[], out expires_at timestamptz[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gained bigint;
    unfit bigint;
begin
    with m as materialized (
        select l.*, p_last_seqs[l.channel] + row_number() over (partition by l.channel order by l.ord) as seq,
               least(l.ttl, p_channel_ttls[l.channel]) as life
        from (
            select m.*, nextval('gapless.message_id') as id
            from unnest(p_request, p_channel, p_types, p_message_keys, p_data, p_binary, p_headers,
                        p_senders, p_ttls, p_changes, p_actions) with ordinality
                as m (request, channel, type, key, data, bin, headers, sender, ttl, change, action, ord)
            where p_statuses is null or p_statuses[m.request] = 0
            order by m.ord -- What a query computes for its rows, it computes in their order.
        ) l
    ), stored as (
        insert into gapless.messages
            (id, channel_id, seq, created_at, expires_at, type, key, sender, headers, data, "binary", size,
             change)
        select m.id, p_channel_ids[m.channel], m.seq, p_now, p_now + m.life * interval '1 second',
               m.type, m.key, m.sender, m.headers::json, m.data::json, m.bin,
               gapless_internal.size_of(m.data, m.bin, m.headers), m.change
        from m
        order by m.ord
    ), heads as (
        select p_channel_ids[m.channel] as id, p_last_seqs[m.channel] as before, max(m.seq) as last_seq,
               max(m.id) as last_id, min(m.id) as first_id,
               -- Null: no message of the channel has a target, so what its row says stays as it is.
               sum((m.action <> 'reply')::integer) as changes
        from m
        group by m.channel
    ), moved as (
        update gapless.channels c
        set last_id = h.last_id, last_seq = h.last_seq,
            first_id = case when c.last_seq < c.first_seq then h.first_id else c.first_id end,
            changes = case when h.changes is null then c.changes
                           else coalesce(c.changes, gapless_internal.changes_up_to(c.id, c.last_id)) + h.changes end
        from heads h
        where c.id = h.id and c.last_seq = h.before and c.last_id < h.first_id
        returning h.last_seq - h.before as n
    )
    select array_agg(m.id order by m.ord), array_agg(m.seq order by m.ord),
           case when count(m.life) > 0 then array_agg(p_now + m.life * interval '1 second' order by m.ord) end,
           (select sum(x.n) from moved x),
           min(m.ord) filter (where gapless_internal.is_misshapen(m.type, m.key, m.data, m.headers))
    into ids, seqs, expires_at, gained, unfit
    from m;
    if unfit is not null then
        raise exception 'message % is no line of its own, or its type or key does not fit', unfit
            using errcode = '22023';
    end if;
    if gained is distinct from p_live then
        if exists (select from unnest(p_channel_ids) c group by c having count(*) > 1) then
            raise exception 'a channel is named twice' using errcode = '22023';
        end if;
        -- Each channel's head must have moved from p_last_seqs by the number of messages stored in it;
        -- otherwise a seq would be used twice or never. No other session can move it while its row is locked.
        raise exception 'the heads of channels moved by % for % messages', gained, p_live using errcode = 'XX001';
    end if;
end $$;

-- Puts the positions of stored messages among all messages of the batch; messages not stored get null.
create or replace function gapless_internal.place_stored(
    p_statuses smallint[], p_request integer[], inout ids bigint[], inout seqs bigint[], inout expires_at timestamptz[]
) language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select array_agg(ids[p.nth] order by p.ord), array_agg(seqs[p.nth] order by p.ord),
           case when expires_at is not null then array_agg(expires_at[p.nth] order by p.ord) end
    from (
        select r.ord, case when p_statuses[r.request] = 0
               then count(*) filter (where p_statuses[r.request] = 0) over (order by r.ord) end as nth
        from unnest(p_request) with ordinality as r (request, ord)
    ) p
$$;

-- Keeps the answers of requests that were stored and have a key. Raises 40001 if another transaction has
-- stored one of these keys since gapless_internal.judge ran: the requests have to be judged again.
create or replace function gapless_internal.keep_answers(
    p_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_statuses smallint[], p_names text[],
    p_request integer[], p_channel integer[], p_ids bigint[], p_seqs bigint[], p_now timestamptz
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    kept integer;
begin
    insert into gapless.idempotency
        (namespace_id, key, fingerprint, created_at, stored_at, channels, ids, seqs)
    select r.namespace_id, r.key, r.fingerprint, p_now, p_now, m.channels, m.ids, m.seqs
    from unnest(p_namespaces, p_keys, p_fingerprints) with ordinality as r (namespace_id, key, fingerprint, ord)
    cross join lateral (
        select array_agg(p_names[x.channel] order by x.ord) as channels,
               array_agg(p_ids[x.ord] order by x.ord) as ids, array_agg(p_seqs[x.ord] order by x.ord) as seqs
        from unnest(p_request, p_channel) with ordinality as x (request, channel, ord)
        where x.request = r.ord
    ) m
    where r.key is not null and p_statuses[r.ord] = 0
    order by r.namespace_id, r.key
    on conflict do nothing;
    get diagnostics kept = row_count;
    if kept < (select count(*) from unnest(p_keys) with ordinality as k (key, ord)
               where k.key is not null and p_statuses[k.ord] = 0) then
        raise exception 'an idempotency key was stored meanwhile' using errcode = '40001';
    end if;
end $$;

-- Takes the publishing lock behind a fence of this history, which is put up if it is due. Returns its number.
create or replace function gapless_internal.begin_to_publish() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    fence record;
begin
    begin
        lock table gapless.publishing_lock in row share mode;
        select f.number, f.is_ours into fence from gapless_internal.newest_fence() f;
        if fence.is_ours is not true then
            raise exception 'a fence is due' using errcode = 'GL425';
        end if;
    exception when sqlstate 'GL425' then
        -- The lock is given up here: a fence needs it for itself alone.
        perform gapless.fence();
        lock table gapless.publishing_lock in row share mode;
        return (select max(f.number) from gapless.fences f);
    end;
    return fence.number;
end $$;

-- Appends a batch: many requests, each atomic and judged on its own, in one transaction.
--   channels: p_namespaces, p_names            one entry a distinct channel
--   requests: p_request_namespaces, p_keys, p_fingerprints, p_expected, p_expected_channel
--             (the first null as a whole: no request has a key or an expectation)
--   messages: p_request, p_channel (1-based), p_types, p_message_keys, p_data, p_binary, p_headers,
--             p_senders, p_ttls; in the order in which they get their ids
--   those that change others: p_changes, p_versions, p_moderates (the first null as a whole: none does); see
--             gapless_internal.judge_changes
-- Out: ids and seqs a message (null where its request was not stored), the channels' ids and heads before,
-- statuses and answers as gapless_internal.judge and judge_changes give them (null: all stored), the time of the append,
-- and when each message expires (null as a whole: none does), and how many fences the log had then.
create or replace function gapless.append_messages(
    p_namespaces integer[], p_names text[], p_create boolean, p_request_namespaces integer[], p_keys text[],
    p_fingerprints bytea[], p_expected bigint[], p_expected_channel integer[], p_request integer[], p_channel integer[],
    p_types text[], p_message_keys text[], p_data text[], p_binary bytea[], p_headers text[], p_senders text[],
    p_ttls double precision[], p_changes json[], p_versions bigint[], p_moderates boolean[], out ids bigint[],
    out seqs bigint[], out channel_ids bigint[], out last_ids bigint[], out last_seqs bigint[], out statuses smallint[],
    out answers json, out appended_at timestamptz, out expires_at timestamptz[], out fences integer
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    locked record;
    stored record;
    judgement record;
    live integer := cardinality(p_request);
    -- What changes say that everything below asks for: each message's text is read once.
    targets bigint[];
    actions text[];
begin
    perform gapless_internal.commit_to_disk();
    -- One null stands for a column of them; every other array goes with the messages, or with the requests. A channel's
    -- number that points to nothing is found further on: there is no row without its channel.
    if live is distinct from cardinality(p_channel) or live is distinct from cardinality(p_types) or live = 0
       or live <> cardinality(p_message_keys) or live <> cardinality(p_data) or live <> cardinality(p_binary)
       or live <> cardinality(p_headers) or live <> cardinality(p_senders) or live <> cardinality(p_ttls)
       or live <> cardinality(p_changes) or cardinality(p_names) is distinct from cardinality(p_namespaces) then
        raise exception 'the arrays do not belong together' using errcode = '22023';
    end if;
    if p_changes is not null then
        select array_agg((c ->> 'target')::bigint), array_agg(c ->> 'action') into targets, actions
        from unnest(p_changes) c;
    end if;
    fences := gapless_internal.begin_to_publish();
    -- A function's value is assigned here, where a query would cost as much again.
    locked := gapless_internal.lock_channels(p_namespaces, p_names, p_create);
    channel_ids := locked.ids;
    last_ids := locked.last_ids;
    last_seqs := locked.last_seqs;

    if p_request_namespaces is not null or p_changes is not null or array_position(channel_ids, null) is not null then
        judgement := gapless_internal.judge_all(
            p_request_namespaces, p_keys, p_fingerprints, p_expected, p_expected_channel, p_request, p_channel,
            channel_ids, last_seqs, p_senders, p_message_keys, p_changes, p_versions, p_moderates, targets, actions);
        statuses := judgement.statuses;
        answers := judgement.answers;
    end if;
    if statuses is not null then
        live := gapless_internal.count_accepted(statuses, p_request, p_channel, channel_ids, locked.made);
    end if;

    appended_at := clock_timestamp();
    if live > 0 then
        stored := gapless_internal.store_all(
            channel_ids, last_seqs, locked.ttls, statuses, live, appended_at, p_request, p_channel, p_types, p_message_keys,
            p_data, p_binary, p_headers, p_senders, p_ttls, p_changes, actions);
        ids := stored.ids;
        seqs := stored.seqs;
        expires_at := stored.expires_at;
    end if;
    if live < cardinality(p_request) then
        select x.ids, x.seqs, x.expires_at into ids, seqs, expires_at
        from gapless_internal.place_stored(statuses, p_request, ids, seqs, expires_at) x;
    end if;
    if live > 0 and p_request_namespaces is not null then
        perform gapless_internal.keep_answers(
            p_request_namespaces, p_keys, p_fingerprints, statuses, p_names, p_request, p_channel, ids, seqs, appended_at);
    end if;
    if live > 0 and p_changes is not null then
        perform gapless_internal.fold_changes(
            p_channel, channel_ids, ids, p_message_keys, p_senders, p_changes, targets, actions);
    end if;
end $$;

-- The same without changes, for workers of the version before and for other functions.
create or replace function gapless.append(
    p_namespaces integer[], p_names text[], p_create boolean,
    p_request_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[],
    p_request integer[], p_channel integer[], p_types text[], p_message_keys text[], p_data text[],
    p_binary bytea[], p_headers text[], p_senders text[], p_ttls double precision[],
    out ids bigint[], out seqs bigint[], out channel_ids bigint[], out last_ids bigint[],
    out last_seqs bigint[], out statuses smallint[], out answers json, out appended_at timestamptz,
    out expires_at timestamptz[], out fences integer
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    appended record;
begin
    appended := gapless.append_messages(
        p_namespaces, p_names, p_create, p_request_namespaces, p_keys, p_fingerprints, p_expected, p_expected_channel,
        p_request, p_channel, p_types, p_message_keys, p_data, p_binary, p_headers, p_senders, p_ttls, null, null, null);
    ids := appended.ids;
    seqs := appended.seqs;
    channel_ids := appended.channel_ids;
    last_ids := appended.last_ids;
    last_seqs := appended.last_seqs;
    statuses := appended.statuses;
    answers := appended.answers;
    appended_at := appended.appended_at;
    expires_at := appended.expires_at;
    fences := appended.fences;
end $$;
