-- calls: create_subscription(8), pause_pushed(3)

-- name: change_subscription
-- $9 tags, one of which it must have; null: any. They are checked first, under the locks of the change.
with expected as materialized (select gapless.expect_subscription($1, $2, $9) as is_there)
select case when e.is_there then gapless.change_subscription($1, $2, $3, $4, $5, $6::jsonb, $7, $8) end from expected e

-- name: replace_channels
-- $8 as $9 above.
with expected as materialized (select gapless.expect_subscription($1, $2, $8) as is_there)
select case when e.is_there then gapless.replace_channels($1, $2, $3, $4, $5, $6, $7) end from expected e

-- name: pause_subscription
-- $4 as $9 above.
with expected as materialized (select gapless.expect_subscription($1, $2, $4) as is_there)
select case when e.is_there then gapless.pause_subscription($1, $2, $3) end from expected e

-- name: seek_subscription
-- $5 as $9 above.
with expected as materialized (select gapless.expect_subscription($1, $2, $5) as is_there)
select case when e.is_there then gapless.seek_subscription($1, $2, $3, $4) end from expected e

-- name: remove_subscription
-- $5 as $9 above.
with expected as materialized (select gapless.expect_subscription($1, $2, $5) as is_there)
select case when e.is_there then gapless.remove_subscription($1, $2, $3, $4) end from expected e

-- name: purge_subscription
-- $7 as $9 above. The function takes the name from `expected`, so it runs after the check.
with expected as materialized (select gapless.expect_subscription($1, $2, $7) as is_there)
select p.subscription_id, p.purged, p.upto, p.moves, p.more
from expected e
cross join lateral gapless.purge_subscription($1, case when e.is_there then $2 end, $3, $4, $5, $6) p

-- name: subscription_length
select l.waiting, l.leased, l.exact from gapless.subscriptions s cross join lateral gapless.length_of(s, $3) l
where s.namespace_id = $1 and s.name = $2

-- name: subscription
select s.*, gapless.subscription_tag(s) as tag from gapless.subscriptions s where s.namespace_id = $1 and s.name = $2

-- name: subscriptions
-- $1 namespace, $2 regex or null, $3 after this name, $4 limit.
select s.*, gapless.subscription_tag(s) as tag from gapless.subscriptions s
where s.namespace_id = $1 and s.name > $3 collate "C" and ($2::text is null or s.name ~ $2)
order by s.name limit $4

-- name: pushed_subscriptions
select s.*, gapless.subscription_tag(s) as tag from gapless.subscriptions s where s.namespace_id = any($1) and s.own ? 'push' order by s.id

-- name: subscriptions_by_id
select s.*, gapless.subscription_tag(s) as tag from gapless.subscriptions s where s.id = any($1)

-- name: subscription_stats
-- A null cursor: there is no progress.
select x.* from gapless.subscriptions s left join gapless.progress p on p.subscription_id = s.id
cross join lateral gapless.stats(s, p) x
where s.id = $1

-- name: try_seek
-- $5 as $7 of a purge.
with expected as materialized (select gapless.expect_subscription($1, $2, $5) as is_there)
select t.moved, t.before, t.after
from expected e cross join lateral gapless.try_seek($1, case when e.is_there then $2 end, $3, $4) t
