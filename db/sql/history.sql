-- calls: id_before(1)

-- name: history_up
-- $1 channel id, $2 after, $3 before, $4 since, $5 types, $6 keys, $7 changes, $8 limit, $9 bytes. Each row has the
-- channel's floor and its newest id, in the snapshot of the messages. Without messages there is one row with only these.
-- Null ones: the channel is gone.
select m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key, m.sender, m.headers, m.data,
       m."binary", m.size, m.change, f.trimmed_id, f.last_id
from (select c.trimmed_id, c.last_id from (values (1)) one left join gapless.channels c on c.id = $1) f
left join (
    select m.*, sum(m.size) over (order by m.id) - m.size as bytes_before from (
        select m.* from gapless.messages m
        where (m.channel_id, m.id) > ((select $1::bigint), (select $2::bigint))
          and (m.channel_id, m.id) < ((select $1::bigint), (select $3::bigint)) and m.id >= $2::bigint - $2::bigint % 16777216
          and ($4::timestamptz is null or m.created_at >= $4)
          and gapless.admits($5, $6, $7, m.type, m.key, m.change)
        order by m.channel_id, m.id limit $8) m
) m on m.bytes_before < $9
order by m.id

-- name: history_down
select m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key, m.sender, m.headers, m.data,
       m."binary", m.size, m.change, f.trimmed_id, f.last_id
from (select c.trimmed_id, c.last_id from (values (1)) one left join gapless.channels c on c.id = $1) f
left join (
    select m.*, sum(m.size) over (order by m.id desc) - m.size as bytes_before from (
        select m.* from gapless.messages m
        where (m.channel_id, m.id) > ((select $1::bigint), (select $2::bigint))
          and (m.channel_id, m.id) < ((select $1::bigint), (select $3::bigint)) and m.id < $3::bigint
          and ($4::timestamptz is null or m.created_at >= $4)
          and gapless.admits($5, $6, $7, m.type, m.key, m.change)
        order by m.channel_id desc, m.id desc limit $8) m
) m on m.bytes_before < $9
order by m.id desc

-- name: message
select m.channel_id, m.id, m.seq, m.created_at, m.expires_at, m.type, m.key, m.sender, m.headers, m.data,
       m."binary", m.change
from gapless.messages m
where m.channel_id = $1 and m.id = $2 and m.id > $3
