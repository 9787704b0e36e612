-- calls: seq_at(2), rotate_secret(2), admits(6)

-- name: tick
select last_id, lsn, flushed, holders, life::text as life, fences, epoch::text as epoch, newest
from gapless.tick($1)

-- name: fence
-- The newest fence.
select number, epoch::text as epoch, base from gapless.fences order by number desc limit 1

-- name: lineage
-- The newest fences up to the number $1, $2 of them: the history that led here.
select number, epoch::text as epoch, base, lost_from from gapless.fences where number <= $1 order by number desc limit $2

-- name: disown
select gapless.fence($1::uuid, $2)

-- name: signing_secrets
-- Those that are accepted now. Of each purpose, the one that signs is first.
select s.purpose, s.secret from gapless.signing_secrets s where coalesce(s.ends_at, 'infinity') > clock_timestamp()
order by s.purpose, s.signs_at > clock_timestamp(), s.signs_at desc

-- name: secret_times
select s.purpose, s.signs_at, s.ends_at from gapless.signing_secrets s
where coalesce(s.ends_at, 'infinity') > clock_timestamp() order by s.purpose, s.signs_at desc

-- name: lost
-- The lost ids that a reader with the cursor $3 may have seen, and where it goes on. For one channel ($1
-- namespace, $2 name) the lost ids lie above the messages that are left. $4: the first id that the cursor's history
-- may lack of this one, or null.
select greatest(l.first_id, (
           select m.id + 1 from gapless.messages m
           join gapless.channels c on c.id = m.channel_id join gapless.namespaces n on n.id = c.namespace_id
           where n.name = $1 and c.name = $2 and (m.channel_id, m.id) <= (c.id, l.stands) and m.id <= l.stands
           order by m.channel_id desc, m.id desc limit 1)) as first_id, l.stands
from gapless.lost_at($3, $4) l
where l.first_id is not null

-- name: heads
select w.namespace, w.name, coalesce(c.id, 0) as id, coalesce(c.last_id, 0) as last_id,
       coalesce(c.last_seq, 0) as last_seq, n.deletion_id as unborn_at
from unnest($1::text[], $2::text[]) as w (namespace, name)
join gapless.namespaces n on n.name = w.namespace
left join gapless.channels c on c.namespace_id = n.id and c.name = w.name

-- name: heads_above
-- $1 namespace, $2 names, $3 patterns as one expression: those of these channels whose newest id is above $4.
select c.name, c.last_id
from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
where n.name = $1 and (c.name = any($2::text[]) or c.name ~ $3::text) and c.last_id > $4

-- name: page_channel
-- One channel: $1 namespace, $2 name, $3 after, $4 limit, $5 types, $6 keys, $7 changes, $8 bytes. The row of kind 1 is
-- the head that goes with these rows: same statement, same snapshot.
with c as materialized (
    select c.id, c.name, c.last_id, c.last_seq, c.first_seq, c.trimmed_id
    from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
    where n.name = $1 and c.name = $2
)
select 0 as kind, c.name as channel, m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key,
       m.sender, m.headers, m.data, m."binary", m.size, m.change
from c cross join lateral (
    select m.*, sum(m.size) over (order by m.id) - m.size as bytes_before from (
        select m.* from gapless.messages m
        where (m.channel_id, m.id) > (c.id, greatest($3::bigint, c.trimmed_id))
          and (m.channel_id, m.id) <= (c.id, c.last_id) and m.id >= $3::bigint - $3::bigint % 16777216
          and gapless.admits($5, $6, $7, m.type, m.key, m.change)
        order by m.channel_id, m.id limit $4) m
) m
where m.bytes_before < $8
union all
select 1, c.name, c.id, c.last_id, c.last_seq, null, null, null, null, null, null, null, null, 0, null from c
union all
select 2, c.name, c.id, c.trimmed_id, c.first_seq, null, null, null, null, null, null, null, null, 0, null
from c where c.trimmed_id > $3
order by kind, id

-- name: page_channels
-- Several channels: $1 namespace, $2 names, $3 regex of the patterns or null, $4 after, $5 up to, $6 limit,
-- $7 types, $8 keys, $9 changes, $10 bytes, $11 stretch. Only channels with new messages after $4 are read. If they are
-- few, each is read by itself; messages that a channel's own bound cuts off lie beyond the bound of the page.
-- If they are many, a stretch of the log is read by id: the work depends on the stretch, not on the number of
-- channels. The row of kind 1 says how far these rows are complete if no bound cut them.
with c as materialized (
    select c.id, c.name, c.first_seq, c.trimmed_id
    from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
    where n.name = $1 and c.last_id > $4 and (c.name = any($2::text[]) or c.name ~ $3::text)
), few as materialized (
    select count(*) <= 16 as yes from c
), stretch as materialized (
    select m.* from gapless.messages m
    where m.id > $4 and m.id <= $5 and not (select f.yes from few f)
    order by m.id limit $11
)
select 0 as kind, m.channel, m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key,
       m.sender, m.headers, m.data, m."binary", m.size, m.change
from (
    select m.*, sum(m.size) over (order by m.id) - m.size as bytes_before from (
        (select c.name as channel, m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key,
                m.sender, m.headers, m.data, m."binary", m.size, m.change
         from c cross join lateral (
             select m.*, sum(m.size) over (order by m.id) - m.size as channel_bytes_before from (
                 select m.* from gapless.messages m
                 where (m.channel_id, m.id) > (c.id, greatest($4::bigint, c.trimmed_id))
                   and (m.channel_id, m.id) <= (c.id, $5::bigint) and m.id >= $4::bigint - $4::bigint % 16777216
                   and gapless.admits($7, $8, $9, m.type, m.key, m.change)
                 order by m.channel_id, m.id limit $6) m
         ) m
         where m.channel_bytes_before < $10 and (select f.yes from few f)
         order by m.id limit $6)
        union all
        (select c.name, m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key,
                m.sender, m.headers, m.data, m."binary", m.size, m.change
         from stretch m join c on c.id = m.channel_id
         where m.id > c.trimmed_id
           and gapless.admits($7, $8, $9, m.type, m.key, m.change)
         order by m.id limit $6)
    ) m
) m
where m.bytes_before < $10
union all
select 1, null, null, case when (select count(*) from stretch) = $11 then (select max(m.id) from stretch m)
       else $5 end, null, null, null, null, null, null, null, null, null, 0, null
union all
select 2, c.name, c.id, c.trimmed_id, c.first_seq, null, null, null, null, null, null, null, null, 0, null
from c where c.trimmed_id > $4
order by kind, id

-- name: page_from
-- As page_channels, each channel from its own start: $1 channel ids, $2 starts, $3 after, $4 up to, $5 limit,
-- $6 types, $7 keys, $8 changes, $9 bytes. Channels without further messages are not read.
select 0 as kind, m.channel, m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key,
       m.sender, m.headers, m.data, m."binary", m.size, m.change
from (
    select m.*, sum(m.size) over (order by m.id) - m.size as bytes_before from (
        select c.name as channel, m.*
        from unnest($1::bigint[], $2::bigint[]) as s (channel_id, start)
        join gapless.channels c on c.id = s.channel_id
        cross join lateral (
            select m.*, sum(m.size) over (order by m.id) - m.size as channel_bytes_before from (
                select m.* from gapless.messages m
                where (m.channel_id, m.id) > (c.id, greatest($3::bigint, s.start, c.trimmed_id))
                  and (m.channel_id, m.id) <= (c.id, $4::bigint) and m.id >= $3::bigint - $3::bigint % 16777216
                  and gapless.admits($6, $7, $8, m.type, m.key, m.change)
                order by m.channel_id, m.id limit $5) m
        ) m
        where m.channel_bytes_before < $9 and c.last_id > greatest($3::bigint, s.start)
        order by m.id limit $5) m
) m
where m.bytes_before < $9
union all
select 2, c.name, c.id, c.trimmed_id, c.first_seq, null, null, null, null, null, null, null, null, 0, null
from unnest($1::bigint[], $2::bigint[]) as s (channel_id, start)
join gapless.channels c on c.id = s.channel_id
where c.trimmed_id > greatest($3, s.start)
order by kind, id

-- name: last_starts
-- For each channel, the id right before its newest $4 messages up to $5; $6 types, $7 keys, $8 changes. If the channel
-- holds fewer, its floor.
select c.id as channel_id, coalesce((
    select m.id - 1 from gapless.messages m
    where (m.channel_id, m.id) > (c.id, c.trimmed_id) and (m.channel_id, m.id) <= (c.id, $5::bigint)
      and m.id <= $5
      and gapless.admits($6, $7, $8, m.type, m.key, m.change)
    order by m.channel_id desc, m.id desc offset $4::bigint - 1 limit 1), c.trimmed_id) as start
from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
where n.name = $1 and (c.name = any($2::text[]) or c.name ~ $3::text)

-- name: span
-- The whole log: $1 after, $2 up to, $3 limit, $4 bytes. The last row says where these rows end, even if
-- their channels do not exist any more; its seq is the newest id that retention removed anywhere: same
-- snapshot.
with m as materialized (
    select * from (
        select x.*, sum(x.size) over (order by x.id) - x.size as bytes_before from (
            select * from gapless.messages x where x.id > $1 and x.id <= $2 order by x.id limit $3) x
    ) x where x.bytes_before < $4
)
select 0 as kind, n.name as namespace, c.name as channel, m.channel_id, m.id, m.seq, m.created_at, m.expires_at,
       m.type, m.key, m.sender, m.headers, m.data, m."binary", m.size, m.change
from m
join gapless.channels c on c.id = m.channel_id
join gapless.namespaces n on n.id = c.namespace_id
union all
select 1, null, null, null, case when (select count(*) = $3 or sum(m.size) >= $4 from m)
       then (select max(m.id) from m) else $2 end, l.trimmed_id, null, null, null, null, null, null, null, null, 0, null
from gapless.log l
order by kind, id

-- name: first_since
-- The id of the first message not older than $4, even if retention removed it: the reader is told of the gap.
-- Of a dropped segment only the last message of each channel is known.
select min(least(m.id, (
    select min(t.last_id) from gapless.trims t where t.channel_id = c.id and t.last_created_at >= $4))) as id
from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
left join lateral (
    select m.id from gapless.messages m
    where (m.channel_id, m.id) > (c.id, (select gapless.id_before($4))) and (m.channel_id, m.id) <= (c.id, c.last_id)
      and m.id > (select gapless.id_before($4)) and m.created_at >= $4
    order by m.channel_id, m.id limit 1) m on true
where n.name = $1 and (c.name = any($2::text[]) or c.name ~ $3::text)

-- name: place_at
-- $1 namespace, $2 channel, $3 seq.
select coalesce(c.id, 0) as channel_id, coalesce(c.last_id, 0) as last_id, coalesce(c.last_seq, 0) as last_seq,
       coalesce(c.first_seq, 1) as first_seq, coalesce(c.trimmed_id, 0) as trimmed_id,
       n.deletion_id as unborn_at,
       coalesce(c.deletion_id, d.deletion_id, n.forgotten_id, n.deletion_id) as deletion_id,
       coalesce(gapless.id_at_seq(c.id, $3), 0) as id
from gapless.namespaces n
left join gapless.channels c on c.namespace_id = n.id and c.name = $2
left join gapless.deleted_names d on d.namespace_id = n.id and d.name = $2
where n.name = $1
