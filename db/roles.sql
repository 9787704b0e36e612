-- Rights, granted after every migration and every change of a function: those of the service, of publishers
-- by SQL and of readers by SQL. The service reads tables and calls functions. It cannot write to a table, so
-- the order of the log does not depend on the service.

-- Postgres lets every role call a new function. No role may until it is granted below.
revoke all on all tables in schema gapless from public;
revoke all on all functions in schema gapless, gapless_internal from public;
-- Functions that only work inside another function, under its locks, may be called only by their owner.
revoke all on schema gapless_internal from public, gapless_service, gapless_publisher, gapless_reader;
revoke all on all functions in schema gapless_internal from gapless_service, gapless_publisher, gapless_reader;

-- The service: every function of the schema except those of the Spark sink, which publishers call, and those that only
-- the owner may call.
grant usage on schema gapless to gapless_service;
grant select on all tables in schema gapless to gapless_service;
revoke select on gapless.outbox from gapless_service;
revoke all on gapless.publishing_lock, gapless.definitions_lock, gapless.trimming_lock, gapless.due_lock,
    gapless.migration_lock
    from gapless_service, gapless_publisher, gapless_reader;
grant select on all sequences in schema gapless to gapless_service;
grant execute on all functions in schema gapless to gapless_service;
revoke execute on function gapless.open_installation, gapless.grant_publisher, gapless.grant_reader, gapless.revoke,
    gapless.rotate_secret from gapless_service;
revoke execute on function gapless.spark_stage, gapless.spark_stage_changes, gapless.spark_bind, gapless.spark_publish,
    gapless.spark_publish_batch, gapless.spark_discard, gapless.spark_tidy from gapless_service;

-- Publishers and readers by SQL: the two group roles, and each role that was granted something.
select gapless_internal.give_rights('gapless_publisher', 'publisher'),
       gapless_internal.give_rights('gapless_reader', 'reader');
select gapless_internal.give_rights(g.role, g.kind)
from gapless.role_grants g join pg_roles r on r.rolname = g.role;

grant execute on function gapless.reads_everything, gapless.readable_namespace, gapless.readable_channels,
    gapless.readable_subscriptions to pg_read_all_data;
