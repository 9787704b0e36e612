-- Granted anew after every migration and every change of a function: what the service and SQL publishers may do. The service reads tables and
-- calls functions; it cannot write a table, so the order of the log does not depend on the service's good will.
-- A function that is made belongs to everybody until that is taken back.
revoke all on all tables in schema gapless from public;
revoke all on all functions in schema gapless from public;
grant usage on schema gapless to gapless_service, gapless_publisher;
grant select on all tables in schema gapless to gapless_service;
revoke select on gapless.outbox from gapless_service;
revoke all on gapless.publishing_lock, gapless.definitions_lock, gapless.trimming_lock, gapless.due_lock,
    gapless.migration_lock
    from gapless_service, gapless_publisher, gapless_reader;
grant select on all sequences in schema gapless to gapless_service;
grant execute on all functions in schema gapless to gapless_service;
grant execute on function gapless.publish(text, jsonb, text, text, jsonb, double precision, text)
    to gapless_publisher;
-- What only works inside another function is not the service's to call.
do $$
declare
    f regprocedure;
begin
    foreach f in array array(
        select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'gapless' and p.proname in (
            'add_segment', 'ageing', 'append_outbox', 'backlog', 'bury', 'channels_of', 'commit_to_disk',
            'database_oid', 'doubts', 'dumps_may_begin', 'end_leases', 'expire_ahead', 'filter_of', 'first_in_doubt',
            'flaw', 'flush_outbox', 'follow_policy', 'forget_attendance', 'forget_deliveries', 'gaps_of', 'give_back',
            'gone_processes', 'has_ahead', 'has_control', 'headers_flaw', 'hold_retention', 'holds_messages',
            'is_about', 'is_attended', 'is_channel_name', 'is_key', 'is_misshapen', 'is_number', 'is_one_line',
            'is_plain_json', 'is_same_history', 'is_step', 'is_type', 'journey_after', 'json_flaw', 'judge',
            'judge_silence', 'jump', 'lane_of', 'last_id', 'less_company', 'line_up', 'lock_channels',
            'lock_subscriptions', 'look_ahead', 'lose', 'lose_between', 'losses', 'lost', 'make_channels', 'matching',
            'may_publish_to', 'needs_fresh_snapshots', 'no_progress', 'note_gaps', 'note_policy_change', 'note_use',
            'place_of', 'policy_settings', 'promote', 'promote_after', 'publish_kept', 'publish_scheduled',
            'readable', 'refilter', 'refresh_channels', 'refresh_subscriptions', 'refuse_tag', 'relane', 'resolve',
            'retained_from', 'rewrite', 'scan', 'seat', 'seat_pulls', 'seat_streams', 'share_definitions', 'size_of',
            'stand_at', 'state_of', 'streaming_process', 'tag_of', 'take_away', 'timeline', 'try_lock_subscription',
            'unknown_use', 'unused', 'with_journey'))
    loop
        execute format('revoke execute on function %s from gapless_service', f);
    end loop;
end $$;
-- The Spark sink publishes; of the rest of the schema it learns the version.
grant execute on function gapless.spark_stage, gapless.spark_bind, gapless.spark_publish, gapless.spark_discard,
    gapless.spark_tidy to gapless_publisher;
revoke execute on function gapless.spark_namespace, gapless.spark_check, gapless.spark_stage, gapless.spark_bind,
    gapless.spark_publish, gapless.spark_discard, gapless.spark_tidy from gapless_service;
-- Whoever reads by SQL what the service stores. Definitions hold the secrets of webhooks, and the log has the one
-- that signs hints: those columns are nobody's but the service's.
grant usage on schema gapless to gapless_reader;
grant select on gapless.migrations to gapless_reader, gapless_publisher;
grant select on gapless.namespaces, gapless.channels, gapless.messages, gapless.segments, gapless.trims,
    gapless.deleted_channels, gapless.progress, gapless.deliveries, gapless.settled_ahead, gapless.kept,
    gapless.dead_letters, gapless.gaps, gapless.fences to gapless_reader;
grant select (singleton, epoch, trimmed_id, created_at) on gapless.log to gapless_reader;
grant select (id, namespace_id, name, channels, names, regex, start, paused, created_at, ack_wait, max_deliver,
              backoff, max_in_flight, ordering, message_ttl, max_backlog, types, keys, dead_letter,
              retain, expires)
    on gapless.subscriptions to gapless_reader;
grant execute on function gapless.tick, gapless.id_before, gapless.seq_at to gapless_reader;
