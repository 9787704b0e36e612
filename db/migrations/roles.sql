-- Granted anew after every migration: what the service and SQL publishers may do. The service reads tables and
-- calls functions; it cannot write a table, so the order of the log does not depend on the service's good will.
grant usage on schema gapless to gapless_service, gapless_publisher;
grant select on all tables in schema gapless to gapless_service;
revoke select on gapless.outbox from gapless_service;
grant select on all sequences in schema gapless to gapless_service;
grant execute on all functions in schema gapless to gapless_service;
revoke execute on function gapless.flush_outbox() from gapless_service;
revoke execute on function gapless.lock_channels(integer[], text[], boolean) from gapless_service;
grant execute on function gapless.publish(text, jsonb, text, text, jsonb, double precision, text)
    to gapless_publisher;
