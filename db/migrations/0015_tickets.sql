-- Tickets stand for a credential once, for some seconds, where none can be sent. What they open is lost with a crash
-- anyway, but who holds one that was not used yet must not be refused by a promoted standby: so they are logged.
create table gapless.tickets (
    digest bytea primary key check (length(digest) = 32),
    namespace_id integer not null references gapless.namespaces on delete cascade,
    holder jsonb not null,
    expires_at timestamptz not null
);
create index tickets_expiry on gapless.tickets (expires_at);
create index tickets_namespace on gapless.tickets (namespace_id);
