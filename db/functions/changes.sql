-- Messages that change others: what is refused, and what becomes of the messages that they change.

-- Judges the changes of a batch whose channels are locked, after gapless_internal.judge. `change` is what readers get;
-- p_versions: the version that its target has to have, or null; p_moderates: whether its sender may change anybody's
-- messages; p_targets, p_actions: as the changes say. Status: 5 no message of this channel is its target, 6 the target is
-- a change itself, 7 the target has another version, 8 somebody else sent it, 9 it has the most annotations that are
-- counted by themselves. Null statuses: all are 0.
-- The settings: without them small batches are planned anew each time, which takes a third of all time. A plan that is
-- kept must not read whole tables because they were small when it was made.
create or replace function gapless_internal.judge_changes(
    p_statuses smallint[], p_request integer[], p_channel integer[], p_channel_ids bigint[], p_senders text[],
    p_message_keys text[], p_changes json[], p_versions bigint[], p_moderates boolean[], p_targets bigint[],
    p_actions text[]
) returns smallint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    statuses smallint[] := p_statuses;
    most constant integer := 1000;
    trimmed bigint[];
    heads bigint[];
    ends bigint[];
    refused record;
begin
    -- What became of a target is read after its channel was locked.
    if current_setting('transaction_isolation') <> 'read committed' then
        perform gapless_internal.needs_fresh_snapshots();
    end if;
    -- Once a channel, where the statement below would look its row up for each message.
    select array_agg(c.trimmed_id order by w.ord), array_agg(c.last_id order by w.ord),
           (select array[min(t), max(t)] from unnest(p_targets) t)
    into trimmed, heads, ends
    from unnest(p_channel_ids) with ordinality as w (id, ord) left join gapless.channels c on c.id = w.id;
    for refused in
        select m.request, x.status
        from unnest(p_request, p_channel, p_senders, p_message_keys, p_changes, p_versions, p_moderates, p_targets,
                    p_actions) with ordinality
            as m (request, channel, sender, key, change, version, moderates, target, action, ord)
        cross join lateral (select (m.change ->> 'through')::bigint as through) c
        -- One at a time: so only the segment of each target is read, and never all that was changed before.
        left join lateral (
            select t.id, t.sender, gapless.is_change(t.change) as is_change, heads[m.channel] as last_id
            from gapless.messages t
            where t.id = m.target and t.channel_id = p_channel_ids[m.channel] and t.id > trimmed[m.channel]
              -- A segment that has none of the targets is not even opened.
              and t.id between ends[1] and ends[2]
            offset 0) t on true
        left join lateral (
            select greatest(t.id, gapless_internal.deleted_by(p_channel_ids[m.channel], t.id),
                            (select l.version from gapless.latest l
                             where l.channel_id = p_channel_ids[m.channel] and l.id = t.id)) as version
            where m.version is not null and t.id is not null
            offset 0) v on true
        cross join lateral (
            select (case when t.id is null then 5
                         when t.is_change then 6
                         when m.action in ('update', 'delete') and m.moderates is not true
                              -- A stretch that goes beyond what is there could hide what others send in this batch.
                              and ((t.sender = m.sender) is not true or c.through > t.last_id or c.through is not null
                                   and not gapless_internal.sent_all(p_channel_ids[m.channel], t.id, c.through, m.sender))
                              then 8
                         when m.version <> v.version then 7
                         when m.action = 'annotate' and (m.change ->> 'remove') is null and exists (
                                  select from gapless.annotation_counts a where a.channel_id = p_channel_ids[m.channel]
                                    and a.target = t.id offset most - 1) and not exists (
                                  select from gapless.annotation_counts a where a.channel_id = p_channel_ids[m.channel]
                                    and a.target = t.id and a.name = m.change ->> 'annotation'
                                    and a.mode = m.change ->> 'mode' and a.key = coalesce(m.key, '')) then 9
                         else 0 end)::smallint as status) x
        where m.change is not null and x.status > 0
        order by m.ord
    loop
        statuses := coalesce(statuses, array_fill(0::smallint, array[(select max(r) from unnest(p_request) r)]));
        if statuses[refused.request] = 0 then
            statuses[refused.request] := refused.status;
        end if;
    end loop;
    return statuses;
end $$;

-- Why such a change is refused wherever it is published; null: it is not. app/message/changes.py says the same by HTTP.
create or replace function gapless_internal.flaw_of_change(
    p_target bigint, p_action text, p_through bigint, p_annotation text, p_mode text, p_remove boolean
) returns text
language sql immutable as $$
    select case
        when p_target is null then 'target: is required with action'
        when p_action is null then 'action: is required with target'
        when p_action not in ('update', 'delete', 'reply', 'annotate')
            then 'action: must be update, delete, reply or annotate'
        when p_through is not null and p_action <> 'delete' then 'through: is for delete'
        when p_through < p_target then 'through: must not be before the target'
        when p_action <> 'annotate' and num_nonnulls(p_annotation, p_mode, p_remove) > 0
            then 'annotation, mode and remove: are for annotate'
        when p_action = 'annotate' and (length(p_annotation) between 1 and 64) is not true
            then 'annotation: must have 1 to 64 characters'
        when gapless_internal.has_control(p_annotation) then 'annotation: has characters that cannot be shown'
        when p_action = 'annotate' and (p_mode in ('total', 'distinct', 'unique', 'flag')) is not true
            then 'mode: must be total, distinct, unique or flag'
        end
$$;

-- Such a change as messages.change has it.
create or replace function gapless_internal.change_of(
    p_target bigint, p_action text, p_through bigint, p_annotation text, p_mode text, p_remove boolean
) returns json
language sql stable as $$
    select concat('{"target":', p_target, ',"action":"', p_action, '"', ',"through":' || p_through,
                  ',"annotation":' || to_json(p_annotation)::text, ',"mode":"' || p_mode || '"',
                  case when p_remove then ',"remove":true' end, '}')::json
$$;

-- Whether who publishes by SQL under this grant changes anybody's messages: the owner, and everybody as long as no
-- credential is required.
create or replace function gapless_internal.changes_all(g gapless.role_grants) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select g.role is null or not (select l.credentials_required from gapless.log l)
$$;

-- What a status of gapless_internal.judge_changes means.
create or replace function gapless_internal.why_refused(p_status smallint) returns text
language sql immutable as $$
    select case p_status
        when 5 then 'no message of this channel is the target'
        when 6 then 'the target changes another message itself'
        when 7 then 'the target has another version by now'
        when 8 then 'somebody else sent the target'
        when 9 then 'the target has the most annotations' end
$$;

-- Raises it.
create or replace function gapless_internal.refuse_change(p_status smallint) returns void
language plpgsql immutable as $$
begin
    raise exception '%', gapless_internal.why_refused(p_status) using errcode = case p_status
        when 5 then 'GL404' when 6 then '22023' when 7 then 'GL409' when 8 then '42501' when 9 then '54000' end;
end $$;

-- Whether this sender sent all originals from p_first to p_last, which are few. Others need to be moderators.
create or replace function gapless_internal.sent_all(
    p_channel_id bigint, p_first bigint, p_last bigint, p_sender text
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    most constant integer := 10000;
begin
    return (select count(*) <= most and coalesce(bool_and((x.sender = p_sender) is true or gapless.is_change(x.change)), true)
            from (select m.sender, m.change from gapless.messages m
                  where (m.channel_id, m.id) >= (p_channel_id, p_first) and (m.channel_id, m.id) <= (p_channel_id, p_last)
                    and m.id >= p_first - p_first % 16777216
                  order by m.channel_id, m.id limit most + 1) x);
end $$;

-- The newest deletion of a stretch that hides the message, if one does. It is inlined where it is called. The planner uses
-- the index for these rows of two even when the table is small, and the lower one keeps the scan to the channel.
create or replace function gapless.hidden_by(p_channel_id bigint, p_id bigint) returns table (id bigint)
language sql stable as $$
    select d.id
    from (select r.last_id, r.id from gapless.deleted_ranges r
          where (r.channel_id, r.first_id) between (p_channel_id, 0) and (p_channel_id, p_id)
          order by r.channel_id desc, r.first_id desc limit 1) d
    where d.last_id >= p_id
$$;

-- The same for one message; null: none does.
create or replace function gapless_internal.deleted_by(p_channel_id bigint, p_id bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return (select h.id from gapless.hidden_by(p_channel_id, p_id) h);
end $$;

-- Hides a stretch, in place of what hid parts of it before.
create or replace function gapless_internal.hide(p_channel_id bigint, p_first bigint, p_last bigint, p_id bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    begins constant bigint := coalesce((select max(d.first_id) from gapless.deleted_ranges d
                                        where d.channel_id = p_channel_id and d.first_id < p_first), p_first);
    gone gapless.deleted_ranges[];
    x gapless.deleted_ranges;
begin
    perform gapless_internal.reach_deleted(p_channel_id, gapless_internal.seq_below(p_channel_id, p_last));
    with taken as (
        delete from gapless.deleted_ranges d
        where d.channel_id = p_channel_id and d.first_id between begins and p_last and d.last_id >= p_first
        returning d.*
    )
    select array_agg(t::gapless.deleted_ranges) into gone from taken t;
    foreach x in array coalesce(gone, '{}') loop
        perform gapless_internal.count_deleted(p_channel_id, x.first_seq, -x.total);
    end loop;
    for x in
        select p_channel_id, r.*, s.* from (
            select p_first as first_id, p_last as last_id, p_id as id
            union all
            select g.first_id, p_first - 1, g.id from unnest(gone) g where g.first_id < p_first
            union all
            select p_last + 1, g.last_id, g.id from unnest(gone) g where g.last_id > p_last
        ) r cross join lateral gapless_internal.stretch(p_channel_id, r.first_id, r.last_id) s
    loop
        insert into gapless.deleted_ranges values (x.*);
        perform gapless_internal.count_deleted(p_channel_id, x.first_seq, x.total);
    end loop;
end $$;

-- Whether a message with this `change` changes another one and is no original: a reply is one.
create or replace function gapless.is_change(p_change json) returns boolean
language sql immutable as $$
    select p_change is not null and p_change ->> 'action' <> 'reply'
$$;

-- Notes what stored changes make of their targets. gapless_internal.store_all has counted them in their channels. Ids of
-- messages that were not stored are null.
create or replace function gapless_internal.fold_changes(
    p_channel integer[], p_channel_ids bigint[], p_ids bigint[], p_message_keys text[], p_senders text[],
    p_changes json[], p_targets bigint[], p_actions text[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    made record;
begin
    if 'delete' = any(p_actions) then
        perform gapless_internal.count_deletions(p_channel, p_channel_ids, p_ids, p_changes, p_targets, p_actions);
    end if;
    with x as materialized (
        select p_channel_ids[m.channel] as channel_id, m.target, m.id, m.action,
               -- How many of its channel come after it in this batch.
               count(*) filter (where m.action <> 'reply') over (
                   partition by m.channel order by m.id desc rows unbounded preceding exclude current row) as after
        from unnest(p_channel, p_ids, p_targets, p_actions) as m (channel, id, target, action)
        where m.action is not null and m.id is not null
    ), noted as (
        insert into gapless.changes (channel_id, target, id, action, number)
        select x.channel_id, x.target, x.id, x.action, c.changes - x.after
        from x join gapless.channels c on c.id = x.channel_id
    )
    insert into gapless.latest as l (channel_id, id, version, updated_by, deleted, replies)
    select x.channel_id, x.target, max(x.id), max(x.id) filter (where x.action = 'update'),
           bool_or(x.action = 'delete'), count(*) filter (where x.action = 'reply')
    from x group by x.channel_id, x.target
    -- Rows are locked by their channel: the order makes no difference, and no two sessions meet here.
    on conflict (channel_id, id) do update
    set version = excluded.version, updated_by = coalesce(excluded.updated_by, l.updated_by),
        deleted = l.deleted or excluded.deleted, replies = l.replies + excluded.replies;
    if not p_actions && array['delete', 'annotate'] then
        return;
    end if;
    for made in
        select p_channel_ids[m.channel] as channel_id, m.id, m.target, m.action, m.change, coalesce(m.key, '') as key,
               coalesce(m.sender, '') as annotator, (m.change ->> 'through')::bigint as through
        from unnest(p_channel, p_ids, p_message_keys, p_senders, p_changes, p_targets, p_actions) with ordinality
            as m (channel, id, key, sender, change, target, action, ord)
        where m.id is not null and (m.action = 'annotate' or m.action = 'delete' and m.change ->> 'through' is not null)
        order by m.ord
    loop
        if made.action = 'delete' then
            -- What comes later is not hidden, whatever the deletion says.
            perform gapless_internal.hide(made.channel_id, made.target, least(made.through, made.id - 1), made.id);
            continue;
        end if;
        perform gapless_internal.annotate(
            made.channel_id, made.target, made.change ->> 'mode', made.annotator,
            made.change ->> 'annotation', made.key, coalesce((made.change ->> 'remove')::boolean, false));
    end loop;
end $$;

-- Adds one annotation, or takes it back. In mode `total` each counts; in `distinct` one an annotator, name and key; in
-- `unique` the last one of an annotator, whatever its name; in `flag` it counts whether there is any.
create or replace function gapless_internal.annotate(
    p_channel_id bigint, p_target bigint, p_mode text, p_annotator text, p_name text, p_key text, p_remove boolean
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    gone record;
    is_new boolean;
begin
    for gone in
        delete from gapless.annotations a
        where a.channel_id = p_channel_id and a.target = p_target and a.mode = p_mode and a.annotator = p_annotator
          and case when p_remove or p_mode <> 'unique' then p_remove and (a.name, a.key) = (p_name, p_key) and a.times = 1
                   else (a.name, a.key) <> (p_name, p_key) end
        returning a.name, a.key
    loop
        perform gapless_internal.count_annotation(p_channel_id, p_target, gone.name, p_mode, gone.key, -1);
        if p_remove then
            return;
        end if;
    end loop;
    if p_remove then
        update gapless.annotations a set times = a.times - 1
        where a.channel_id = p_channel_id and a.target = p_target and a.mode = p_mode and a.annotator = p_annotator
          and a.name = p_name and a.key = p_key;
        if found then
            perform gapless_internal.count_annotation(p_channel_id, p_target, p_name, p_mode, p_key, -1);
        end if;
        return;
    end if;
    insert into gapless.annotations as a (channel_id, target, mode, annotator, name, key, times)
    values (p_channel_id, p_target, p_mode, p_annotator, p_name, p_key, 1)
    on conflict (channel_id, target, mode, annotator, name, key) do update
    set times = a.times + 1 where a.mode = 'total'
    returning true into is_new;
    if is_new then
        perform gapless_internal.count_annotation(p_channel_id, p_target, p_name, p_mode, p_key, 1);
    end if;
end $$;

-- Counts one more or one less.
create or replace function gapless_internal.count_annotation(
    p_channel_id bigint, p_target bigint, p_name text, p_mode text, p_key text, p_by integer
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    bytes constant integer := 40 + octet_length(p_name) + 2 * octet_length(p_key);
    grows integer := 0;
    now_there bigint;
begin
    insert into gapless.annotation_counts as c (channel_id, target, name, mode, key, total)
    values (p_channel_id, p_target, p_name, p_mode, p_key, p_by)
    on conflict (channel_id, target, name, mode, key) do update set total = c.total + excluded.total
    returning c.total into now_there;
    if now_there = 0 then
        delete from gapless.annotation_counts c
        where c.channel_id = p_channel_id and c.target = p_target and c.name = p_name and c.mode = p_mode
          and c.key = p_key;
        grows := -bytes;
    elsif p_by = 1 and now_there = 1 then
        grows := bytes;
    end if;
    if grows <> 0 then
        update gapless.latest l set annotation_bytes = l.annotation_bytes + grows
        where l.channel_id = p_channel_id and l.id = p_target;
    end if;
end $$;

-- The summary of a message's annotations: {name: {mode: how many}}, and by key where there are keys: {"keys": {key: how
-- many}}. A flag is true.
create or replace function gapless.annotations_of(p_channel_id bigint, p_target bigint) returns json
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with c as (
        select * from gapless.annotation_counts c where c.channel_id = p_channel_id and c.target = p_target
    ), modes as (
        select c.name, c.mode, sum(c.total) as total from c group by c.name, c.mode
    ), keys as (
        select c.name, c.key, sum(c.total) as total from c where c.key <> '' group by c.name, c.key
    )
    select coalesce(json_object_agg(n.name, n.said order by n.name), '{}')
    from (
        select m.name, (jsonb_object_agg(m.mode, case when m.mode = 'flag' then 'true'::jsonb else to_jsonb(m.total) end)
                        || coalesce((select jsonb_build_object('keys', jsonb_object_agg(k.key, k.total))
                                     from keys k where k.name = m.name having count(*) > 0), '{}'))::json as said
        from modes m group by m.name
    ) n
$$;
