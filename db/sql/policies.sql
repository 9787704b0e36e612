-- calls: put_policy(7), lock_defined_subscriptions(2), lock_definitions(0), import_once(2)
-- calls: lock_defined_channels(3), set_auto_create(1)

-- name: put_policy_if
-- $8 tags, one of which it must have (null: any), $9 whether it must not exist. Checked first, under its
-- lock.
with expected as materialized (select gapless.expect_policy($1, $2, $8, $9) as fits),
put as materialized (
    select case when e.fits then gapless.put_policy($1, $2, $3, $4, $5, $6, $7::jsonb) end as made from expected e
)
select put.made,
       gapless.policy_tag(row($1::integer, $2::text, $3::text, $4::text, $5::text, $6::integer, $7::jsonb)::gapless.policies) as tag
from put

-- name: delete_policy
with expected as materialized (select gapless.expect_policy($1, $2, $3, false) as fits)
select case when e.fits then gapless.delete_policy($1, $2) end from expected e

-- name: policies
select p.*, gapless.policy_tag(p) as tag from gapless.policies p where p.namespace_id = $1 order by p.name

-- name: policy
select p.*, gapless.policy_tag(p) as tag from gapless.policies p where p.namespace_id = $1 and p.name = $2

-- name: defined_channels
-- Those with settings of their own, and those of the names $2.
select c.name, c.own from gapless.channels c
where c.namespace_id = $1 and (c.own <> '{}' or c.name = any($2)) order by c.name

-- name: defined_subscriptions
select s.name, s.channels, s.start, s.own, s.paused, gapless.subscription_tag(s) as tag from gapless.subscriptions s
where s.namespace_id = $1 order by s.name
