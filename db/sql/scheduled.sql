-- calls: cancel_scheduled(2), publish_now(2), publish_due(3)

-- name: schedule
select status, scheduled_ids, deliver_at, created_at
from gapless.schedule_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)

-- name: scheduled_one
select * from gapless.scheduled s where s.namespace_id = $1 and s.id = $2

-- name: scheduled_page
-- $1 namespace, $2 channel or null, $3 after this id, $4 limit, $5 bytes, $6 channels whose names match.
select * from (
    select s.*, sum(coalesce(octet_length(s.data), octet_length(s."binary"))) over (order by s.id)
                - coalesce(octet_length(s.data), octet_length(s."binary")) as bytes_before
    from (select * from gapless.scheduled s
          where s.namespace_id = $1 and s.id > $3 and ($2::text is null or s.channel = $2)
            and case when $6::text is null then true else s.channel ~ $6 end
          order by s.id limit $4) s
) s
where s.bytes_before < $5
order by s.id
