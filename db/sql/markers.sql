-- calls: mark(6), unread(4)

-- name: move_markers
select * from gapless.mark($1, $2, $3, $4, $5, $6)

-- name: markers_of_user
-- $1 namespace, $2 user, $3 name, $4 after this channel's id, $5 a regular expression of names or null, $6 limit.
select c.id as channel_id, c.name as channel, m.id, gapless.unread(c.id, m.id, m.seq, m.changes) as unread, c.last_id,
       c.last_seq
from gapless.markers m join gapless.channels c on c.id = m.channel_id
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
