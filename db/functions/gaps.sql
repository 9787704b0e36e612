-- Gaps: messages that retention removed from subscriptions, counted, and told to members.

-- Matching messages between two frontiers that retention removed before they were settled, when it has
-- trimmed these channels up to these ids, and where the rest of each begins. With a filter it is an upper
-- bound. A claim counts by the trims that it read: messages removed after that have been handed out.
create or replace function gapless_internal.losses(
    p_subscription_id integer, p_channels bigint[], p_trims bigint[], p_from bigint, p_to bigint
) returns table (channel_id bigint, first_seq bigint, missed bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select c.id, x.upto + 1, x.upto - gapless_internal.seq_below(c.id, p_from)
           - (select count(*) from gapless.settled_ahead a
              where a.subscription_id = p_subscription_id and a.channel_id = c.id
                and a.message_id > p_from and a.message_id <= least(c.upto, p_to))
    from unnest(p_channels, p_trims) as c (id, upto)
    cross join lateral (select gapless_internal.seq_below(c.id, least(c.upto, p_to)) as upto) x
    where c.upto > p_from
$$;

-- The total number of these messages.
create or replace function gapless_internal.lost(
    p_subscription_id integer, p_channels bigint[], p_trims bigint[], p_from bigint, p_to bigint
) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(l.missed), 0)::bigint
    from gapless_internal.losses(p_subscription_id, p_channels, p_trims, p_from, p_to) l
$$;

-- The same as of now.
create or replace function gapless.removed_between(s gapless.subscriptions, p_from bigint, p_to bigint) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select case when p_from < (select l.trimmed_id from gapless.log l) then (
        select gapless_internal.lost(s.id, array_agg(c.id), array_agg(c.trimmed_id), p_from, p_to)
        from gapless.channels c
        where c.namespace_id = s.namespace_id and c.trimmed_id > p_from
          and (c.name = any(s.names) or c.name ~ s.regex)
    ) else 0 end
$$;

-- Notes losses, to be told to members. The caller holds the subscription's lock.
create or replace function gapless_internal.note_gaps(
    p_subscription_id integer, p_channels bigint[], p_first_seqs bigint[], p_missed bigint[]
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    with numbered as materialized (
        select x.channel_id, x.first_seq, x.missed, nextval('gapless.gap_number') as number
        from (select x.channel_id, max(x.first_seq) as first_seq, sum(x.missed)::bigint as missed
              from unnest(p_channels, p_first_seqs, p_missed) as x (channel_id, first_seq, missed)
              group by x.channel_id) x
        where x.missed > 0
    )
    insert into gapless.gaps as g (subscription_id, channel_id, since, number, first_seq, missed)
    select p_subscription_id, n.channel_id, n.number, n.number, n.first_seq, n.missed from numbered n
    on conflict (subscription_id, channel_id) do update
    set number = excluded.number, first_seq = greatest(g.first_seq, excluded.first_seq),
        missed = g.missed + excluded.missed
$$;

-- As gapless_internal.lost, and also notes the losses. For callers that move the frontier there.
create or replace function gapless_internal.lose(
    p_subscription_id integer, p_channels bigint[], p_trims bigint[], p_from bigint, p_to bigint
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    lost record;
begin
    if p_channels is null then
        return 0;
    end if;
    select array_agg(l.channel_id) as channels, array_agg(l.first_seq) as first_seqs, array_agg(l.missed) as missed,
           coalesce(sum(l.missed), 0)::bigint as total
    into lost
    from gapless_internal.losses(p_subscription_id, p_channels, p_trims, p_from, p_to) l where l.missed <> 0;
    if lost.channels is not null then
        perform gapless_internal.note_gaps(p_subscription_id, lost.channels, lost.first_seqs, lost.missed);
    end if;
    return lost.total;
end $$;

-- The same for all that retention has removed by now.
create or replace function gapless_internal.lose_between(s gapless.subscriptions, p_from bigint, p_to bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    trimmed record;
begin
    if p_from >= (select l.trimmed_id from gapless.log l) then
        return 0;
    end if;
    select array_agg(c.id) as channels, array_agg(c.trimmed_id) as trims into trimmed
    from gapless.channels c
    where c.namespace_id = s.namespace_id and c.trimmed_id > p_from and (c.name = any(s.names) or c.name ~ s.regex);
    return gapless_internal.lose(s.id, trimmed.channels, trimmed.trims, p_from, p_to);
end $$;

-- Losses that no member was told yet, of channels that exist: at most p_limit, the oldest first.
create or replace function gapless_internal.gaps_of(p_subscription_id integer, p_limit integer) returns json
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select json_agg(json_build_object('channel', x.name, 'first_seq', x.first_seq, 'missed', x.missed,
                                      'channel_id', x.channel_id, 'since', x.since, 'number', x.number))
    from (select g.*, c.name from gapless.gaps g join gapless.channels c on c.id = g.channel_id
          where g.subscription_id = p_subscription_id order by g.number limit p_limit) x
$$;

-- Notes that a member was told. Losses since then are kept, whatever it was told: each is one message or more.
create or replace function gapless.told_gaps(
    p_subscription_id integer, p_channels bigint[], p_numbers bigint[], p_missed bigint[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform gapless_internal.lock_subscriptions(array[p_subscription_id]);
    delete from gapless.gaps g using unnest(p_channels, p_numbers) as x (channel_id, number)
    where g.subscription_id = p_subscription_id and g.channel_id = x.channel_id and g.number = x.number;
    update gapless.gaps g set missed = g.missed - least(greatest(x.missed, 0), g.missed - 1), since = x.number + 1
    from unnest(p_channels, p_numbers, p_missed) as x (channel_id, number, missed)
    where g.subscription_id = p_subscription_id and g.channel_id = x.channel_id
      and x.number between g.since and g.number - 1;
end $$;
