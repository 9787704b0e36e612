-- name: roll_segment
select gapless.roll_segment($1)

-- name: trim_channels
select gapless.trim_channels($1)

-- name: drop_segment
select gapless.drop_segment($1)

-- name: purge_rows
select gapless.purge_rows($1)

-- name: purge_idempotency
select gapless.purge_idempotency($1)

-- name: remove_unused
select namespace, subscription from gapless.remove_unused($1, $2, $3)

-- name: takes_writes
select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'

-- name: schema_version
select max(version) from gapless.migrations

-- name: holders
select gapless.holders()

-- name: end_holders
select ended, refused from gapless.end_holders($1)
