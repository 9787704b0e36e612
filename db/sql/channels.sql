-- calls: set_channels(3)

-- name: channel
select n.name as namespace, c.id, c.name, c.last_id, c.last_seq, c.first_seq, c.trimmed_id, c.created_at,
       c.max_age, c.max_messages, c.message_ttl, c.origins
from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
where n.name = $1 and c.name = $2

-- name: described_channel
-- A channel with its tag, both as of one moment.
select n.name as namespace, c.*, gapless.channel_tag(c) as tag
from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
where n.name = $1 and c.name = $2

-- name: channels
select n.name as namespace, c.id, c.name, c.last_id, c.last_seq, c.first_seq, c.trimmed_id, c.created_at,
       c.max_age, c.max_messages, c.message_ttl, c.origins
from gapless.channels c join gapless.namespaces n on n.id = c.namespace_id
where n.name = $1 and ($2::text is null or c.name ~ $2) and c.name > $3 collate "C"
order by c.name limit $4

-- name: set_channel
select channel_id, made from gapless.set_channel_if($1, $2, $3::jsonb, $4, $5, $6)

-- name: delete_channel
select gapless.delete_channel_if($1, $2, $3)
