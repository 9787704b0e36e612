-- calls: roll_segment(1), trim_channels(1), drop_segment(1), purge_rows(1), purge_idempotency(1)
-- calls: remove_unused(3), holders(0), end_holders(1)

-- name: takes_writes
select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'

-- name: schema_version
select max(version) from gapless.migrations
