-- Reading the log for a subscription.

-- Channels of a pattern that have messages above p_after, if they are few and found by looking at few; null:
-- there are many.
create or replace function gapless_internal.few_channels(s gapless.subscriptions, p_after bigint) returns bigint[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    few constant integer := 64;
    known constant integer := 2000;
    found_ids bigint[];
begin
    if known < (select count(*) from (
                    select from gapless.channels c where c.namespace_id = s.namespace_id limit known + 1) c) then
        return null;
    end if;
    found_ids := array(
        select c.id from gapless.channels c
        where c.namespace_id = s.namespace_id and c.last_id > p_after and (c.name = any(s.names) or c.name ~ s.regex)
        limit few + 1);
    return case when cardinality(found_ids) <= few then found_ids end;
end $$;

-- Reads each of these channels by itself; returns as gapless_internal.scan.
create or replace function gapless_internal.scan_channels(
    s gapless.subscriptions, p_channels bigint[], p_after bigint, p_upto bigint, p_limit integer,
    out ids bigint[], out channel_ids bigint[], out keys text[], out created timestamptz[],
    out expires timestamptz[], out sizes integer[], out complete_to bigint, out cut boolean
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    stretch constant integer := case when gapless_internal.takes_all(s) then p_limit
                                     else greatest(p_limit, 2000) end;
begin
    with rows as materialized (
        select m.*, c.id as of_channel, count(*) over (partition by c.id) as n
        from unnest(p_channels) t join gapless.channels c on c.id = t
        cross join lateral (
            select m.id, m.channel_id, m.key, m.type, m.change, m.created_at, m.expires_at, m.size
            from gapless.messages m
            where (m.channel_id, m.id) > (c.id, greatest(p_after, c.trimmed_id))
              and (m.channel_id, m.id) <= (c.id, p_upto) and m.id >= p_after - p_after % 16777216
            order by m.channel_id, m.id limit stretch
        ) m
    ), bound as (
        -- Each channel is known up to its last row read, or whole.
        select least(p_upto, min(x.last_id)) as id, count(*) > 0 as cut
        from (select max(r.id) as last_id from rows r group by r.of_channel having count(*) = stretch) x
    ), hits as (
        select r.* from rows r, bound b
        where r.id <= b.id and gapless.admits(s.types, s.keys, s.changes, r.type, r.key, r.change)
        order by r.id limit p_limit
    )
    select array_agg(h.id order by h.id), array_agg(h.channel_id order by h.id),
           array_agg(h.key order by h.id), array_agg(h.created_at order by h.id),
           array_agg(h.expires_at order by h.id), array_agg(h.size order by h.id),
           case when count(*) = p_limit then max(h.id) else (select b.id from bound b) end,
           count(*) = p_limit or (select b.cut from bound b)
    into ids, channel_ids, keys, created, expires, sizes, complete_to, cut
    from hits h;
end $$;

-- Reads a stretch of the whole log; returns as gapless_internal.scan.
create or replace function gapless_internal.scan_log(
    s gapless.subscriptions, p_after bigint, p_upto bigint, p_limit integer,
    out ids bigint[], out channel_ids bigint[], out keys text[], out created timestamptz[],
    out expires timestamptz[], out sizes integer[], out complete_to bigint, out cut boolean
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    stretch constant integer := greatest(least(4 * p_limit, 4000), 500, case
        when gapless_internal.takes_all(s) then p_limit else 2000 end);
begin
    with rows as materialized (
        select m.id, m.channel_id, m.key, m.type, m.change, m.created_at, m.expires_at, m.size
        from gapless.messages m
        where m.id > p_after and m.id <= p_upto
        order by m.id limit stretch
    ), hits as (
        select r.* from rows r join gapless.channels c on c.id = r.channel_id
        where c.namespace_id = s.namespace_id and r.id > c.trimmed_id
          and (c.name = any(s.names) or c.name ~ s.regex)
          and gapless.admits(s.types, s.keys, s.changes, r.type, r.key, r.change)
        order by r.id limit p_limit
    )
    select array_agg(h.id order by h.id), array_agg(h.channel_id order by h.id),
           array_agg(h.key order by h.id), array_agg(h.created_at order by h.id),
           array_agg(h.expires_at order by h.id), array_agg(h.size order by h.id),
           case when count(*) = p_limit then max(h.id)
                when (select count(*) from rows) = stretch then (select max(r.id) from rows r)
                else p_upto end,
           count(*) = p_limit or (select count(*) from rows) = stretch
    into ids, channel_ids, keys, created, expires, sizes, complete_to, cut
    from hits h;
end $$;

-- Matching messages above p_after in id order, at most p_limit of them; if several channels are read, none
-- above p_settled (one channel needs no settled id: its own order is enough). The arrays hold all that
-- matches up to complete_to; `cut`: there may be more above it. Work is bounded for any filter. `trimmed`
-- names the channels from which retention removed messages above p_after, and `trims` up to which id: see
-- gapless_internal.lost.
create or replace function gapless_internal.scan(
    s gapless.subscriptions, p_after bigint, p_settled bigint, p_limit integer,
    out ids bigint[], out channel_ids bigint[], out keys text[], out created timestamptz[],
    out expires timestamptz[], out sizes integer[], out complete_to bigint, out cut boolean,
    out trimmed bigint[], out trims bigint[]
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    near constant integer := 5000;
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
    elsif p_settled - p_after > near then
        -- If it is far behind, first look which channels match: a few are read by themselves.
        targets := gapless_internal.few_channels(s, p_after);
        if targets = '{}' then
            complete_to := p_settled;
            cut := false;
            return;
        end if;
    end if;
    if upto <= p_after then
        complete_to := p_after;
        cut := false;
        return;
    end if;

    if cardinality(targets) = 1 and gapless_internal.takes_all(s) then
        -- The common case as a simple statement: it takes a tenth of the time of the one below.
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
    elsif targets is not null then
        select x.* into ids, channel_ids, keys, created, expires, sizes, complete_to, cut
        from gapless_internal.scan_channels(s, targets, p_after, upto, p_limit) x;
    else
        select x.* into ids, channel_ids, keys, created, expires, sizes, complete_to, cut
        from gapless_internal.scan_log(s, p_after, upto, p_limit) x;
    end if;
end $$;

-- The id up to which a decision may read. A caller that knows that the subscription reads one channel, in
-- that channel's own order, asks for all. If the subscription has since come to read several, that is not a
-- valid watermark.
create or replace function gapless_internal.readable(s gapless.subscriptions, p_settled bigint) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when s.regex is null and cardinality(s.names) = 1 or gapless_internal.may_be_settled(p_settled)
                then p_settled else 0 end
$$;

-- A short text for what a subscription reads: it changes when that does.
create or replace function gapless_internal.matching(s gapless.subscriptions) returns text
language sql immutable as $$
    select md5(concat(row(s.names, s.regex, s.types, s.keys)::text, s.changes))
$$;
