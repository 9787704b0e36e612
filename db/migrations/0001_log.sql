-- The log: channels, messages in segments, idempotency. Only the functions in db/functions write them.
--
-- Locks, in the order every writer takes them, so that no two can wait for one another in a circle:
--   1. the publishing lock, shared: held from before an id is taken until commit
--   2. the definitions lock (0002_definitions.sql), shared, by whoever makes a channel
--   3. channel rows, missing ones created by name, then all locked by id
--   4. idempotency keys, by key
-- The watermark reads who holds lock 1 (gapless.tick); a new segment is opened, and a channel is deleted,
-- under lock 1, exclusive.
--
-- Each lock that is not a row's is a table without columns, on which nobody but the owner of these functions has any
-- right: who holds it shared has it in row share mode, who holds it alone in exclusive mode. An advisory lock could be
-- taken, and kept, by whoever may connect.

create table gapless.publishing_lock ();
create table gapless.definitions_lock ();
create table gapless.trimming_lock ();
create table gapless.due_lock ();

create sequence gapless.message_id as bigint minvalue 1 maxvalue 9007199254740991 cache 1;

create table gapless.log (
    singleton boolean primary key default true check (singleton),
    -- Another one with each history; see gapless.fence.
    epoch uuid not null default gen_random_uuid(),
    -- Signs the hints that travel through Redis, so that nobody who can write there can invent a message.
    hint_secret bytea not null
        default decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'),
    -- The newest id that retention has removed, of any channel: a reader of everything that is behind it
    -- cannot trust a plain read of the ids.
    trimmed_id bigint not null default 0,
    -- Whether a first publish by SQL makes its channel: see gapless.set_auto_create.
    auto_create boolean not null default true,
    created_at timestamptz not null default now()
);
insert into gapless.log default values;

create table gapless.namespaces (
    id integer generated always as identity primary key,
    name text not null unique check (name ~ '^[A-Za-z0-9_~:@.-]{1,255}$'),
    -- SHA-256 of the definitions file imported last: every worker has it, and a worker that comes back later must not
    -- undo what was changed since.
    imported bytea,
    -- Counts changes of policies: whoever has an older snapshot finds the row changed under it.
    policy_changes bigint not null default 0
);
insert into gapless.namespaces (name) values ('default');

create table gapless.channels (
    id bigint generated always as identity primary key,
    namespace_id integer not null references gapless.namespaces,
    last_id bigint not null default 0,
    last_seq bigint not null default 0,
    first_id bigint not null default 0,
    first_seq bigint not null default 1,
    trimmed_id bigint not null default 0,
    created_at timestamptz not null default now(),
    max_age integer check (max_age > 0),
    max_messages bigint check (max_messages > 0),
    message_ttl double precision check (message_ttl > 0),
    -- The settings given to this channel itself; the plain columns are those in force, `origins` where each is from.
    own jsonb not null default '{}',
    origins jsonb not null default '{}',
    name text collate "C" not null
        check (length(name) <= 255 and name ~ '^[A-Za-z0-9_~:@-]+(\.[A-Za-z0-9_~:@-]+)*$'),
    unique (namespace_id, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
comment on column gapless.channels.first_id is 'id of the oldest message kept; meaningless while none is';
comment on column gapless.channels.trimmed_id is 'id of the newest message that retention removed; 0: none';

create table gapless.messages (
    id bigint not null,
    channel_id bigint not null,
    seq bigint not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    type text not null,
    key text,
    sender text,
    headers json,
    data json,
    "binary" bytea,
    -- Bytes as gapless.size_of counts them: what a page of history adds up, without unpacking anything.
    size integer not null,
    primary key (id),
    check ((data is null) <> ("binary" is null))
) partition by range (id);
create index messages_channel on gapless.messages (channel_id, id);

-- A segment is one partition of messages: ids lower <= id < upper.
create table gapless.segments (
    lower bigint primary key,
    upper bigint not null,
    opened_at timestamptz,
    check (lower < upper)
);

-- What was in a dropped segment, one row a channel: enough to say how much a late reader missed.
create table gapless.trims (
    channel_id bigint not null,
    last_id bigint not null,
    last_seq bigint not null,
    last_created_at timestamptz not null,
    primary key (channel_id, last_id)
);

create table gapless.deleted_channels (
    channel_id bigint primary key,
    last_id bigint not null
);

create table gapless.idempotency (
    namespace_id integer not null,
    key text collate "C" not null,
    fingerprint bytea not null,
    created_at timestamptz not null,
    stored_at timestamptz not null,
    channels text[] not null,
    ids bigint[] not null,
    seqs bigint[] not null,
    primary key (namespace_id, key)
) with (autovacuum_vacuum_scale_factor = 0.05);
create index idempotency_age on gapless.idempotency (stored_at);

-- Rows live here only inside the transaction that publishes them, so nothing is lost when a crash empties it.
create unlogged table gapless.outbox (
    transaction_id xid8 not null default pg_current_xact_id(),
    ord bigint generated always as identity,
    namespace_id integer not null,
    channel text not null,
    type text not null,
    key text,
    headers json,
    data json not null,
    ttl double precision,
    -- Of this message and all before it in its transaction.
    bytes bigint not null,
    primary key (transaction_id, ord)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Where the log went on after its history broke off: a standby was promoted, an earlier moment was restored, or the
-- server crashed. The newest row says where the log is written; see gapless.fence. Ids from lost_from to below base may
-- have been messages that are not here any more, and never become messages here.
create table gapless.fences (
    number integer primary key,
    kind text not null check (kind in ('begun', 'crashed', 'moved')),
    epoch uuid not null,
    timeline integer not null,
    database oid not null,
    transaction xid8 not null default pg_current_xact_id(),
    -- The newest id that a message here had when the fence was put up.
    newest bigint not null,
    lost_from bigint not null,
    -- As lost_from would be if what looked like a crash was the restoration of an earlier moment.
    in_doubt bigint not null,
    base bigint not null,
    at timestamptz not null default now()
);

-- Something of a transaction is to be done at its commit, and not before: see gapless.flush_outbox. Kind 0 says so;
-- kind 1 is there for a moment only, to find out whether the commit has come.
create unlogged table gapless.commits (
    transaction_id xid8 not null default pg_current_xact_id(),
    kind smallint not null check (kind in (0, 1)),
    primary key (transaction_id, kind)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- One row, made anew whenever the server lost what it had not flushed: a crash empties an unlogged table.
create unlogged table gapless.lives (
    singleton boolean primary key default true check (singleton),
    id uuid not null default gen_random_uuid()
);
