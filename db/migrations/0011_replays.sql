-- Dead letters that a transaction replays: they go back at its commit; see gapless_internal.give_back_replays. Rows
-- live here only inside that transaction, so nothing is lost when a crash empties it.
create unlogged table gapless.replays (
    transaction_id xid8 not null default pg_current_xact_id(),
    -- Of the dead letter.
    id bigint not null,
    namespace_id integer not null,
    subscription text not null,
    kept_id bigint not null,
    last_error text,
    -- All of the dead letter, as in gapless.kept.
    letter json not null,
    -- Not before then; null: at once.
    due timestamptz,
    primary key (transaction_id, id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
