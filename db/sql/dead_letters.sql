-- calls: delete_dead_letter(2), replay(2), replay_some(11), replayable(6), purge_dead_letters(7)

-- name: dead_letters
-- $1 namespace, $2 subscription, $3 channel, $4 reason, $5 after this id, $6 limit, $7 bytes, $8 subscriptions whose names
-- match. As a `case`, that condition is taken for true of half the rows. As an `or` it would be of few, and then Postgres
-- would keep one plan for all filters, which reads everything.
select * from (
    select e.id as dead_letter_id, e.subscription, e.reason, e.attempts, e.last_error, e.created_at as died_at, e.journey, e.published,
           e.unroutable, k.channel, k.seq, k.created_at, k.expires_at, k.type, k.key, k.sender, k.headers, k.data,
           k."binary", k.change, k.message_id as id,
           sum(k.size) over (order by e.id) - k.size as bytes_before
    from (select * from gapless.dead_letters e
          where e.namespace_id = $1 and e.id > $5 and ($2::text is null or e.subscription = $2)
            and ($3::text is null or e.channel = $3) and ($4::text is null or e.reason = $4)
            and case when $8::text is null then true else e.subscription ~ $8 end
          order by e.id limit $6) e
    join gapless.kept k on k.id = e.kept_id
) e
where e.bytes_before < $7
order by e.dead_letter_id

-- name: dead_letter
select e.id as dead_letter_id, e.subscription, e.reason, e.attempts, e.last_error, e.created_at as died_at, e.journey, e.published,
       e.unroutable, k.channel, k.seq, k.created_at, k.expires_at, k.type, k.key, k.sender, k.headers, k.data,
       k."binary", k.change, k.message_id as id
from gapless.dead_letters e join gapless.kept k on k.id = e.kept_id
where e.namespace_id = $1 and e.id = $2

-- name: count_dead_letters
-- $1 namespace, $2 subscription, $3 channel, $4 reason, $5 ids, $6 up to this id.
select count(*) from gapless.dead_letters e
where e.namespace_id = $1 and e.id <= $6 and ($2::text is null or e.subscription = $2)
  and ($3::text is null or e.channel = $3) and ($4::text is null or e.reason = $4)
  and ($5::bigint[] is null or e.id = any($5))

-- name: last_dead_letter
select coalesce(max(e.id), 0) from gapless.dead_letters e where e.namespace_id = $1
