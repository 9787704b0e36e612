-- What users define: policies over channels and subscriptions, and subscriptions themselves.
--
-- The settings in force are worked out when a definition or a policy changes, in that same transaction, and
-- stand as plain columns: a decision reads one row, and every decision after the commit follows it.
--
-- The definitions lock: a change of policies holds it alone; whoever makes a channel or a subscription, or changes
-- one, holds it shared. It comes after the publishing lock and before any row, so that its holders never wait for one
-- another in a circle.

create table gapless.policies (
    namespace_id integer not null references gapless.namespaces,
    name text collate "C" not null,
    pattern text not null,
    regex text not null,
    applies_to text not null check (applies_to in ('channels', 'subscriptions')),
    priority integer not null,
    definition jsonb not null,
    primary key (namespace_id, name)
);

create table gapless.subscriptions (
    id integer generated always as identity primary key,
    namespace_id integer not null references gapless.namespaces,
    name text collate "C" not null
        check (length(name) <= 255 and name ~ '^[A-Za-z0-9_~:@-]+(\.[A-Za-z0-9_~:@-]+)*$'),
    channels text[] not null check (cardinality(channels) between 1 and 128),
    -- The same taken apart: names of channels, and one regular expression for all patterns or null.
    names text[] not null,
    regex text,
    start text not null,
    own jsonb not null,
    paused boolean not null default false,
    created_at timestamptz not null default now(),
    -- In force:
    ack_wait double precision not null default 30,
    max_deliver integer not null default 5,
    backoff double precision[] not null default '{1,5,30}',
    max_in_flight integer not null default 1000,
    ordering text not null default 'key',
    message_ttl double precision,
    max_backlog bigint,
    types text[],
    keys text[],
    dead_letter text,
    -- Whether retention waits for it.
    retain boolean not null default false,
    -- Removed when nobody used it for so many seconds; null: never.
    expires double precision,
    -- Of its definition or of `expires`, or when it was asked for again.
    changed_at timestamptz not null default clock_timestamp(),
    origins jsonb not null default '{}',
    unique (namespace_id, name)
);
