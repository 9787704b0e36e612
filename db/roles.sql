-- Rights, granted after every migration and every change of a function: those of the service, of publishers
-- by SQL and of readers by SQL. The service reads tables and calls functions. It cannot write to a table, so
-- the order of the log does not depend on the service.

-- Postgres lets every role call a new function. No role may until it is granted below.
revoke all on all tables in schema gapless from public;
revoke all on all functions in schema gapless, gapless_internal from public;
-- Functions that only work inside another function, under its locks, may be called only by their owner.
revoke all on schema gapless_internal from public, gapless_service, gapless_publisher, gapless_reader;
revoke all on all functions in schema gapless_internal from gapless_service, gapless_publisher, gapless_reader;
grant usage on schema gapless to gapless_service, gapless_publisher, gapless_reader;

-- The service: every function of the schema except those of the Spark sink, which publishers call.
grant select on all tables in schema gapless to gapless_service;
revoke select on gapless.outbox from gapless_service;
revoke all on gapless.publishing_lock, gapless.definitions_lock, gapless.trimming_lock, gapless.due_lock,
    gapless.migration_lock
    from gapless_service, gapless_publisher, gapless_reader;
grant select on all sequences in schema gapless to gapless_service;
grant execute on all functions in schema gapless to gapless_service;
revoke execute on function gapless.open_installation from gapless_service;
revoke execute on function gapless.spark_stage, gapless.spark_bind, gapless.spark_publish, gapless.spark_discard,
    gapless.spark_tidy from gapless_service;

-- Publishers by SQL, including the Spark sink. Of the rest of the schema they may only read the version.
grant execute on function gapless.publish(text, jsonb, text, text, jsonb, double precision, text)
    to gapless_publisher;
grant execute on function gapless.spark_stage, gapless.spark_bind, gapless.spark_publish, gapless.spark_discard,
    gapless.spark_tidy to gapless_publisher;

-- Readers by SQL of the stored data. Definitions hold the secrets of webhooks, and the log has the secret
-- that signs hints: only the service may read those columns.
grant select on gapless.migrations to gapless_reader, gapless_publisher;
grant select on gapless.namespaces, gapless.channels, gapless.messages, gapless.segments, gapless.trims,
    gapless.deleted_channels, gapless.progress, gapless.deliveries, gapless.settled_ahead, gapless.kept,
    gapless.dead_letters, gapless.gaps, gapless.fences to gapless_reader;
grant select (singleton, epoch, trimmed_id, created_at) on gapless.log to gapless_reader;
grant select (id, namespace_id, name, channels, names, regex, start, paused, created_at, ack_wait, max_deliver,
              backoff, max_in_flight, ordering, message_ttl, max_backlog, types, keys, dead_letter,
              retain, expires, keep)
    on gapless.subscriptions to gapless_reader;
grant execute on function gapless.tick, gapless.id_before, gapless.seq_at to gapless_reader;
