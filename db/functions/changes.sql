-- Messages that change others: what is refused, and what becomes of the messages that they change.

-- Judges the changes of a batch whose channels are locked, after gapless_internal.judge. `change` is what readers get;
-- p_versions: the version that its target has to have, or null; p_moderates: whether its sender may change anybody's
-- messages. Status: 5 no message of this channel is its target, 6 the target is a change itself, 7 the target has
-- another version, 8 somebody else sent it.
create or replace function gapless_internal.judge_changes(
    p_statuses smallint[], p_request integer[], p_channel integer[], p_channel_ids bigint[], p_senders text[],
    p_changes json[], p_versions bigint[], p_moderates boolean[]
) returns smallint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    statuses smallint[] := coalesce(p_statuses, array_fill(0::smallint, array[(select max(r) from unnest(p_request) r)]));
    refused record;
begin
    -- What became of a target is read after its channel was locked.
    perform gapless_internal.needs_fresh_snapshots();
    for refused in
        select m.request, x.status
        from unnest(p_request, p_channel, p_senders, p_changes, p_versions, p_moderates) with ordinality
            as m (request, channel, sender, change, version, moderates, ord)
        cross join lateral (select (m.change ->> 'target')::bigint as target, m.change ->> 'action' as action) c
        -- One at a time: so only the segment of each target is read.
        left join lateral (
            select t.id, t.sender, gapless_internal.is_change(t.change) as is_change
            from gapless.messages t join gapless.channels h on h.id = t.channel_id
            where t.id = c.target and t.channel_id = p_channel_ids[m.channel] and t.id > h.trimmed_id
              and (t.expires_at > clock_timestamp()) is not false
            offset 0) t on true
        left join gapless.latest l on l.channel_id = p_channel_ids[m.channel] and l.id = t.id
        cross join lateral (
            select (case when t.id is null then 5
                         when t.is_change then 6
                         when c.action in ('update', 'delete') and m.moderates is not true
                              and (t.sender = m.sender) is not true then 8
                         when m.version <> coalesce(l.version, t.id) then 7
                         else 0 end)::smallint as status) x
        where m.change is not null and x.status > 0
        order by m.ord
    loop
        if statuses[refused.request] = 0 then
            statuses[refused.request] := refused.status;
        end if;
    end loop;
    return statuses;
end $$;

-- Whether a message with this `change` changes another one and is no original: a reply is one.
create or replace function gapless_internal.is_change(p_change json) returns boolean
language sql immutable as $$
    select p_change is not null and p_change ->> 'action' <> 'reply'
$$;

-- Notes what stored changes make of their targets. Ids of messages that were not stored are null.
create or replace function gapless_internal.fold(
    p_channel integer[], p_channel_ids bigint[], p_ids bigint[], p_changes json[]
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with x as materialized (
        select p_channel_ids[m.channel] as channel_id, (m.change ->> 'target')::bigint as target, m.id,
               m.change ->> 'action' as action
        from unnest(p_channel, p_ids, p_changes) as m (channel, id, change)
        where m.change is not null and m.id is not null
    ), noted as (
        insert into gapless.changes (channel_id, target, id, action)
        select x.channel_id, x.target, x.id, x.action from x
    )
    insert into gapless.latest as l (channel_id, id, version, updated_by, deleted, replies)
    select x.channel_id, x.target, max(x.id), max(x.id) filter (where x.action = 'update'),
           bool_or(x.action = 'delete'), count(*) filter (where x.action = 'reply')
    from x group by x.channel_id, x.target
    -- Rows are locked by their channel: the order makes no difference, and no two sessions meet here.
    on conflict (channel_id, id) do update
    set version = excluded.version, updated_by = coalesce(excluded.updated_by, l.updated_by),
        deleted = l.deleted or excluded.deleted, replies = l.replies + excluded.replies
$$;
