-- calls: enter(1), departed(1), release_departed(3), attend(2), leave(2), told_gaps(4), ack(3), nack(6)
-- calls: extend(4), release(4), withdraw(3), reap(3), compact(1)

-- name: claim
-- $1 subscription, $2 settled, $3 limit, $4 members that the messages are for, $5 how many each then holds.
select c.*, case when c.kind = 0 then c.note end as change from gapless.claim($1, $2, $3, $4, $5) c

-- name: claim_streamed
-- $6 the process whose streams get it. The claim reads it from a setting, which is set first.
with process as materialized (select set_config('gapless.holder', $6::bigint::text, true) as holder)
select c.*, case when c.kind = 0 then c.note end as change from process, lateral gapless.claim($1::integer, $2::bigint, case when process.holder <> '' then $3::integer end,
                                             $4::bigint[], $5::integer[]) c

-- name: present
select true

-- name: give_back
select statuses from gapless.give_back_leases($1, $2, $3, $4)

-- name: look
-- $1 namespace, $2 subscription, $3 state or null, $4 after this id, $5 limit, $6 bytes.
select l.*, case when l.kind = 0 then l.note end as change from gapless.subscriptions s left join gapless.progress p on p.subscription_id = s.id
cross join lateral gapless.look(s, p, $3, $4, $5, $6) l
where s.namespace_id = $1 and s.name = $2

-- name: live_leases
select array_agg(d.message_id is not null order by r.ord) as live
from unnest($1::integer[], $2::bigint[], $3::bigint[]) with ordinality as r (subscription_id, message_id, lease, ord)
left join gapless.deliveries d on d.subscription_id = r.subscription_id and d.message_id = r.message_id
    and d.lease = r.lease and d.state = 0 and d.at > clock_timestamp()

-- name: reapable
select id from gapless.reapable($1) id

-- name: transact
-- A fence that this statement itself puts up, or waits for, is not in its snapshot: epoch and base are null.
select t.ids, t.seqs, t.channel_ids, t.last_ids, t.last_seqs, t.statuses, t.answers, t.appended_at, t.expires_at,
       t.fences, f.epoch::text as epoch, f.base
from gapless.transact_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::integer[],
     $13::text::integer[], $14, $15, $16, $17, $18, $19, $20, $21, $22, $23::text::boolean[]) t
left join gapless.fences f on f.number = t.fences
