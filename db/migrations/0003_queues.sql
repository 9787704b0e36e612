-- Durable subscriptions at work: claim, lease, settle, expire, bury, replay.
--
-- Progress is one number, the frontier: every matching message at or below it was handed out and settled, or
-- has a row in gapless.deliveries (leased, due, delayed, or waiting behind its key). So rows are there only for
-- what is under way, and what is settled is known by the absence of a row.
--
-- All decisions about one subscription are made one after the other, under the lock of its row of gapless.progress.
-- Locks, in this order: dead letters being replayed; subscription locks, by id; then as the log has it (publishing
-- lock, definitions lock, channel rows, keys). A function that decides takes its lock first and reads afterwards, each
-- statement with a snapshot of its own: it sees all earlier decisions. So it refuses to run at an isolation level that
-- has one snapshot for all (gapless.needs_fresh_snapshots).

create table gapless.progress (
    subscription_id integer primary key,
    frontier bigint not null,
    -- Messages created before are passed over: a start in time is exact, though ids only roughly follow time.
    not_before timestamptz,
    -- The ordering that the rows' lanes were made for.
    ordering text not null,
    -- Of some lane several are leased, since before there was this order.
    crowded boolean not null default false,
    -- The filter that the rows were let through by (see gapless.filter_of), but for some that are leased, where they are
    -- mixed.
    filter text,
    mixed boolean not null default false,
    acked bigint not null default 0,
    redelivered bigint not null default 0,
    dead_lettered bigint not null default 0,
    removed bigint not null default 0,
    purged bigint not null default 0,
    -- When somebody used it last: a pull, a stream or what they said of it. A little less than that where nothing else
    -- had to be written: see gapless.note_use.
    used_at timestamptz not null default clock_timestamp(),
    -- How often it was moved by a seek.
    moves integer not null default 0,
    -- How many rows are leased, and a time before which none of those leases ends. The rows could tell, but not
    -- without passing by all that were there since vacuum came last.
    leased integer not null default 0 check (leased >= 0),
    -- The number of the newest lease.
    fence bigint not null default 0,
    next_end timestamptz not null default 'infinity',
    -- Whether there may be rows with a company, and the newest lease when one last ended without a word.
    doubt boolean not null default false,
    silent bigint not null default 0,
    -- Messages that expired up to then were looked at, wherever they are.
    expired_to timestamptz not null default '-infinity',
    -- What matched when that was done; see gapless.matching.
    matching text,
    -- A look at those that expired since, where one is under way: up to when, and how far it has come.
    look_to timestamptz,
    looked_at timestamptz,
    looked_id bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

create table gapless.deliveries (
    subscription_id integer not null,
    message_id bigint not null,
    channel_id bigint not null,
    lease bigint not null,
    at timestamptz not null,
    entered_at timestamptz not null,
    expires_at timestamptz,
    kept_id bigint,
    attempts integer not null,
    strikes integer not null default 0,
    company integer check (company > 0),
    member bigint not null default 0,
    state smallint not null check (state between 0 and 2),
    lane text,
    last_error text,
    holder bigint not null default 0,
    primary key (subscription_id, message_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000000);
create index deliveries_at on gapless.deliveries (subscription_id, state, at, message_id);
create index deliveries_lane on gapless.deliveries (subscription_id, channel_id, lane, state, message_id)
    where lane is not null;
create index deliveries_doubted on gapless.deliveries (subscription_id, state, at, message_id) where company is not null;
create index deliveries_expiring on gapless.deliveries (subscription_id, expires_at) where expires_at is not null;
comment on column gapless.deliveries.state is '0: leased, 1: due at `at`, 2: waiting for its lane';
comment on column gapless.deliveries.holder is 'leased: the process that streams it, with which its lease ends; 0: none';
comment on column gapless.deliveries.at is 'leased: the deadline; due or waiting: from when it may be handed out';
comment on column gapless.deliveries.lane is
    'messages of one channel and lane go one at a time; of a lane all rows but one wait. Null: no order';
comment on column gapless.deliveries.entered_at is 'when the subscription got it: created, or replayed';
comment on column gapless.deliveries.strikes is 'attempts that count towards max_deliver';
comment on column gapless.deliveries.company is
    'in doubt: a member that holds it may hold so many messages in all; null: any number';
comment on column gapless.deliveries.member is 'leased: the stream that has it, 0 for a pull';
comment on column gapless.deliveries.kept_id is 'a replayed message travels as its own copy';

-- Messages above the frontier that are settled already. Rows go once the frontier has passed them.
create table gapless.settled_ahead (
    subscription_id integer not null,
    message_id bigint not null,
    channel_id bigint not null,
    primary key (subscription_id, message_id)
) with (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000000);

-- Copies of messages that must outlive retention. Each belongs to one dead letter, or, replayed, to one delivery.
create table gapless.kept (
    id bigint generated always as identity primary key,
    channel_id bigint not null,
    message_id bigint not null,
    channel text not null,
    seq bigint not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    type text not null,
    key text,
    sender text,
    headers json,
    data json,
    "binary" bytea,
    size integer not null,
    -- Of a message that was replayed: the dead letter that it was.
    letter json
);

create table gapless.dead_letters (
    id bigint generated always as identity primary key,
    namespace_id integer not null,
    subscription_id integer not null,
    kept_id bigint not null,
    attempts integer not null,
    created_at timestamptz not null,
    subscription text not null,
    channel text not null,
    reason text not null check (reason in ('rejected', 'expired', 'max_deliver', 'max_backlog', 'hops')),
    last_error text,
    journey json not null,
    published json,
    unroutable text
);
create index dead_letters_subscription on gapless.dead_letters (namespace_id, subscription, id);
create index dead_letters_namespace on gapless.dead_letters (namespace_id, id);
create index dead_letters_channel on gapless.dead_letters (namespace_id, channel, id);
create index dead_letters_reason on gapless.dead_letters (namespace_id, reason, id);
create index messages_expiring on gapless.messages (expires_at, id) where expires_at is not null;

-- Ballast: rows of subscriptions that cannot be, with negative ids. These tables are all but empty most of the time,
-- and whoever plans for an empty table takes any index for any purpose, and keeps that plan when a thousand messages
-- are in flight. Statistics are gathered here, of what a busy table looks like, and not again.
insert into gapless.deliveries
    (subscription_id, message_id, channel_id, lease, at, entered_at, attempts, state, lane)
select -1 - n % 250, n, n % 50, n, now() + (n % 60) * interval '1 second', now(), 1, n % 3, n::text
from generate_series(1, 5000) n;
insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
select -1 - n % 250, n, n % 50 from generate_series(1, 5000) n;
analyze gapless.deliveries, gapless.settled_ahead;

create type gapless.death as (
    message_id bigint, channel_id bigint, attempts integer, lane text, kept_id bigint, reason text,
    last_error text
);

-- Processes that may stream deliveries. A session of each holds the lock of its key for as long as it is there.
create table gapless.processes (
    holder bigint primary key,
    key bigint not null,
    session integer not null,
    missing_since timestamptz
);
comment on column gapless.processes.session is 'its process id at the server, as pg_locks tells it';
comment on column gapless.processes.missing_since is 'when nobody was first seen to hold its lock';

-- Which processes have members of a subscription: streams of deliveries, and pulls that wait. A row of a process that
-- is gone means nothing.
create table gapless.attendance (
    subscription_id integer not null,
    holder bigint not null,
    primary key (subscription_id, holder)
);
create index attendance_holder on gapless.attendance (holder);

-- What retention took from subscriptions, and no stream of deliveries was told yet. `number` is of the newest loss in a
-- row, `since` of the oldest.
create sequence gapless.gap_number as bigint;
create table gapless.gaps (
    subscription_id integer not null,
    channel_id bigint not null,
    since bigint not null,
    number bigint not null,
    first_seq bigint not null,
    missed bigint not null,
    primary key (subscription_id, channel_id)
);

-- When a service of a namespace last looked for subscriptions that nobody uses.
create table gapless.looks (
    namespace_id integer primary key references gapless.namespaces,
    at timestamptz not null
);
