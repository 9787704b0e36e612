-- Messages to be published later. They get their ids when they are published, like any other.

create table gapless.scheduled (
    id bigint generated always as identity primary key,
    namespace_id integer not null references gapless.namespaces,
    deliver_at timestamptz not null,
    created_at timestamptz not null,
    channel text not null,
    type text not null,
    key text,
    sender text,
    headers text,
    data text,
    "binary" bytea,
    ttl double precision,
    check ((data is null) <> ("binary" is null))
) with (autovacuum_vacuum_scale_factor = 0.05);
create index scheduled_due on gapless.scheduled (deliver_at, id);
create index scheduled_namespace on gapless.scheduled (namespace_id, id);
