-- calls: mark(6)

-- name: move_markers
select * from gapless.mark($1, $2, $3, $4, $5, $6)

-- name: markers_of_user
-- $1 namespace, $2 user, $3 name, $4 after this channel's id, $5 a regular expression of names or null, $6 limit.
-- Unread are the messages after the marker, without those that change others and without deleted originals. It is one
-- statement, so all of it is of one moment, and without functions, which would take most of the time.
select c.id as channel_id, c.name as channel, m.id,
       c.last_seq - b.seq - (h.changes - b.changes)
       -- The same sum as gapless_internal.deleted_after. Most channels have two levels, so the others are left out for
       -- them. Without changes nothing was deleted, and nothing was after channels.deleted_seq.
       - case when h.changes = 0 or b.seq >= c.deleted_seq then 0 else
             coalesce((select d.sums[(x.seq & 63)::integer + 2] from gapless.deleted_sums d
                         where d.channel_id = c.id and d.level = 0 and d.bucket = x.seq >> 6), 0)
             + coalesce((select d.sums[(x.seq >> 6 & 63)::integer + 2] from gapless.deleted_sums d
                         where d.channel_id = c.id and d.level = 1 and d.bucket = x.seq >> 12), 0)
             + case when c.last_seq < 4096 then 0 else (
                   select coalesce(sum(d.sums[(x.seq >> l.shift & 63)::integer + 2]), 0)::bigint
                   from (values (2, 12), (3, 18), (4, 24), (5, 30), (6, 36)) l (level, shift)
                   join gapless.deleted_sums d
                     on d.channel_id = c.id and d.level = l.level and d.bucket = x.seq >> (l.shift + 6)
                   where c.last_seq >> l.shift > 0) end
             + case when r.last_seq is null then 0 else r.last_seq - b.seq + b.changes - coalesce((
                   select n.number from gapless.changes n
                   where n.channel_id = c.id and n.id <= r.last_id order by n.id desc limit 1), b.changes) end
             end as unread, c.last_id, c.last_seq
from gapless.markers m join gapless.channels c on c.id = m.channel_id
-- Where retention removed messages after the marker, what is kept begins later.
cross join lateral (
    select greatest(m.seq, c.first_seq - 1) as seq,
           case when m.seq >= c.first_seq - 1 then m.id else c.trimmed_id end as id,
           case when m.seq >= c.first_seq - 1 then m.changes else coalesce(
               (select n.number from gapless.changes n
                where n.channel_id = c.id and n.id <= c.trimmed_id order by n.id desc limit 1),
               (select n.number - (n.action <> 'reply')::integer from gapless.changes n
                where n.channel_id = c.id order by n.id limit 1), 0) end as changes) b
cross join lateral (
    select coalesce(c.changes, (select n.number from gapless.changes n
                                where n.channel_id = c.id order by n.id desc limit 1), 0) as changes offset 0) h
-- A deleted stretch counts at its beginning. If that comes before the marker, the rest of it is counted here. It is
-- looked for as gapless.hidden_by does.
left join lateral (
    select r.first_seq, r.last_seq, r.last_id from gapless.deleted_ranges r
    where (r.channel_id, r.first_id) between (c.id, 0) and (c.id, b.id)
      and (h.changes = 0 or b.seq >= c.deleted_seq) is not true
    order by r.channel_id desc, r.first_id desc limit 1
) r on r.first_seq <= b.seq and r.last_seq > b.seq
cross join lateral (select coalesce(r.last_seq, b.seq) as seq) x
where m.namespace_id = $1 and m."user" = $2 and m.name = $3 and m.channel_id > $4
  and ($5::text is null or c.name ~ $5)
order by m.channel_id limit $6

-- name: markers_of_channel
-- $1 namespace, $2 channel, $3 name, $4 after this user, $5 limit. A row without a user: the channel exists.
select m."user", m.id, m.updated_at
from gapless.channels c left join lateral (
    select * from gapless.markers m where m.channel_id = c.id and m.name = $3 and m."user" > $4
    order by m."user" limit $5) m on true
where c.namespace_id = $1 and c.name = $2
order by m."user"
