-- name: put_policy
select gapless.put_policy($1, $2, $3, $4, $5, $6, $7::jsonb)

-- name: delete_policy
select gapless.delete_policy($1, $2)

-- name: policies
select * from gapless.policies p where p.namespace_id = $1 order by p.name

-- name: policy
select * from gapless.policies p where p.namespace_id = $1 and p.name = $2

-- name: lock_defined_subscriptions
select gapless.lock_defined_subscriptions($1, $2)

-- name: lock_definitions
select gapless.lock_definitions()

-- name: import_once
select gapless.import_once($1, $2)

-- name: lock_defined_channels
select gapless.lock_defined_channels($1, $2, $3)

-- name: defined_channels
select c.name, c.own from gapless.channels c where c.namespace_id = $1 and c.own <> '{}' order by c.name

-- name: defined_subscriptions
select s.name, s.channels, s.start, s.own, s.paused from gapless.subscriptions s
where s.namespace_id = $1 order by s.name

-- name: ensure_namespace
select gapless.ensure_namespace($1)

-- name: set_auto_create
select gapless.set_auto_create($1)
