-- calls: annotations_of(2), hidden_by(2), is_change(1)

-- name: latest_up
-- Originals of a channel with what became of them: $1 channel id, $2 after, $3 before, $4 since, $5 types, $6 keys,
-- $7 'none', $8 limit, $9 bytes. Each row has the channel's floor and its newest id, in the same snapshot. Without
-- messages there is one row with only these. Null ones: the channel is gone.
select m.*, f.trimmed_id, f.last_id,
       case when m.annotation_bytes > 0 then gapless.annotations_of($1, m.id) end as annotations
from (select c.trimmed_id, c.last_id from (values (1)) one left join gapless.channels c on c.id = $1) f
left join (
    select o.id, o.seq, o.created_at, o.expires_at, o.type, o.key, o.sender, o.headers, o.change,
           greatest(l.version, d.id) as version, coalesce(l.deleted, false) or d.id is not null as deleted, l.replies,
           coalesce(l.annotation_bytes, 0) as annotation_bytes,
           coalesce(n.size, o.size) + coalesce(l.annotation_bytes, 0) as size,
           case when l.deleted or d.id is not null then null when n.id is null then o.data else n.data end as data,
           case when l.deleted or d.id is not null then null when n.id is null then o."binary" else n."binary" end as "binary",
           sum(coalesce(n.size, o.size) + coalesce(l.annotation_bytes, 0)) over (order by o.id)
             - coalesce(n.size, o.size) - coalesce(l.annotation_bytes, 0) as bytes_before
    from (
        select m.* from gapless.messages m
        where (m.channel_id, m.id) > ((select $1::bigint), (select $2::bigint))
          and (m.channel_id, m.id) < ((select $1::bigint), (select $3::bigint)) and m.id >= $2::bigint - $2::bigint % 16777216
          and ($4::timestamptz is null or m.created_at >= $4)
          and gapless.admits($5, $6, $7, m.type, m.key, m.change)
        order by m.channel_id, m.id limit $8) o
    left join gapless.latest l on l.channel_id = o.channel_id and l.id = o.id
    left join lateral gapless.hidden_by($1, o.id) d on true
    left join lateral (select x.* from gapless.messages x where x.id = l.updated_by offset 0) n on true
) m on m.bytes_before < $9
order by m.id

-- name: latest_down
select m.*, f.trimmed_id, f.last_id,
       case when m.annotation_bytes > 0 then gapless.annotations_of($1, m.id) end as annotations
from (select c.trimmed_id, c.last_id from (values (1)) one left join gapless.channels c on c.id = $1) f
left join (
    select o.id, o.seq, o.created_at, o.expires_at, o.type, o.key, o.sender, o.headers, o.change,
           greatest(l.version, d.id) as version, coalesce(l.deleted, false) or d.id is not null as deleted, l.replies,
           coalesce(l.annotation_bytes, 0) as annotation_bytes,
           coalesce(n.size, o.size) + coalesce(l.annotation_bytes, 0) as size,
           case when l.deleted or d.id is not null then null when n.id is null then o.data else n.data end as data,
           case when l.deleted or d.id is not null then null when n.id is null then o."binary" else n."binary" end as "binary",
           sum(coalesce(n.size, o.size) + coalesce(l.annotation_bytes, 0)) over (order by o.id desc)
             - coalesce(n.size, o.size) - coalesce(l.annotation_bytes, 0) as bytes_before
    from (
        select m.* from gapless.messages m
        where (m.channel_id, m.id) > ((select $1::bigint), (select $2::bigint))
          and (m.channel_id, m.id) < ((select $1::bigint), (select $3::bigint)) and m.id < $3::bigint
          and ($4::timestamptz is null or m.created_at >= $4)
          and gapless.admits($5, $6, $7, m.type, m.key, m.change)
        order by m.channel_id desc, m.id desc limit $8) o
    left join gapless.latest l on l.channel_id = o.channel_id and l.id = o.id
    left join lateral gapless.hidden_by($1, o.id) d on true
    left join lateral (select x.* from gapless.messages x where x.id = l.updated_by offset 0) n on true
) m on m.bytes_before < $9
order by m.id desc

-- name: changed
-- As latest_up, but only originals that a message after $10 changed: the work depends on how many these are.
select m.*, f.trimmed_id, f.last_id,
       case when m.annotation_bytes > 0 then gapless.annotations_of($1, m.id) end as annotations
from (select c.trimmed_id, c.last_id from (values (1)) one left join gapless.channels c on c.id = $1) f
left join (
    select o.id, o.seq, o.created_at, o.expires_at, o.type, o.key, o.sender, o.headers, o.change,
           greatest(o.version, d.id) as version, coalesce(o.deleted, false) or d.id is not null as deleted, o.replies,
           coalesce(o.annotation_bytes, 0) as annotation_bytes,
           coalesce(n.size, o.size) + coalesce(o.annotation_bytes, 0) as size,
           case when o.deleted or d.id is not null then null when n.id is null then o.data else n.data end as data,
           case when o.deleted or d.id is not null then null when n.id is null then o."binary" else n."binary" end as "binary",
           sum(coalesce(n.size, o.size) + coalesce(o.annotation_bytes, 0)) over (order by o.id)
             - coalesce(n.size, o.size) - coalesce(o.annotation_bytes, 0) as bytes_before
    from (
        select m.*, l.version, l.deleted, l.replies, l.annotation_bytes, l.updated_by
        from (
            select x.target as id from gapless.changes x where x.channel_id = $1 and x.id > $10
            union
            select h.id
            from (select r.* from gapless.deleted_ranges r where r.channel_id = $1 and r.id > $10 offset 0) r
            cross join lateral (
                select m.id from gapless.messages m
                where (m.channel_id, m.id) >= ($1, greatest(r.first_id, $2::bigint)) and (m.channel_id, m.id) <= ($1, r.last_id)
                  and m.id >= $2::bigint - $2::bigint % 16777216 and m.id > $2 and m.id < $3
                  and ($4::timestamptz is null or m.created_at >= $4)
                  and gapless.admits($5, $6, $7, m.type, m.key, m.change)
                order by m.channel_id, m.id limit $8) h
        ) c
        cross join lateral (select x.* from gapless.messages x where x.id = c.id and x.channel_id = $1 offset 0) m
        left join gapless.latest l on l.channel_id = $1 and l.id = c.id
        where c.id > $2 and c.id < $3
          and ($4::timestamptz is null or m.created_at >= $4)
          and gapless.admits($5, $6, $7, m.type, m.key, m.change)
        order by c.id limit $8) o
    left join lateral gapless.hidden_by($1, o.id) d on true
    left join lateral (select x.* from gapless.messages x where x.id = o.updated_by offset 0) n on true
) m on m.bytes_before < $9
order by m.id

-- name: latest_message
-- An original with what became of it: $1 channel id, $2 id, $3 floor.
select o.id, o.seq, o.created_at, o.expires_at, o.type, o.key, o.sender, o.headers, o.change,
       greatest(l.version, d.id) as version, coalesce(l.deleted, false) or d.id is not null as deleted, l.replies,
       case when l.annotation_bytes > 0 then gapless.annotations_of($1, o.id) end as annotations,
       case when l.deleted or d.id is not null then null when n.id is null then o.data else n.data end as data,
       case when l.deleted or d.id is not null then null when n.id is null then o."binary" else n."binary" end as "binary"
from gapless.messages o
left join gapless.latest l on l.channel_id = o.channel_id and l.id = o.id
left join lateral gapless.hidden_by($1, o.id) d on true
left join lateral (select x.* from gapless.messages x where x.id = l.updated_by offset 0) n on true
where o.channel_id = $1 and o.id = $2 and o.id > $3 and not gapless.is_change(o.change)

-- name: changes
-- The messages with these actions ($5) on one target, in order: $1 channel id, $2 target, $3 after, $4 limit, $6 bytes.
select m.* from (
    select m.*, sum(m.size) over (order by m.id) - m.size as bytes_before
    from (select c.id from gapless.changes c
          where c.channel_id = $1 and c.target = $2 and c.id > $3 and c.action = any($5::text[])
          union
          select d.id from gapless.hidden_by($1, $2) d where d.id > $3 and 'delete' = any($5::text[])
          order by id limit $4) c
    cross join lateral (select x.* from gapless.messages x where x.id = c.id and x.channel_id = $1 offset 0) m
) m
where m.bytes_before < $6
order by m.id
