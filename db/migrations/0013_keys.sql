-- API keys. A secret is random and long, so its SHA-256 suffices: nobody can guess it.
create table gapless.keys (
    id text collate "C" primary key check (id ~ '^[a-z0-9]{12}$'),
    namespace_id integer not null references gapless.namespaces,
    name text not null check (name ~ '^[^[:cntrl:]]{1,255}$'),
    digest bytea not null check (length(digest) = 32),
    -- Null: everything in the namespace.
    grants jsonb,
    -- An admin of all namespaces.
    operator boolean not null default false,
    created_at timestamptz not null default now(),
    expires_at timestamptz
);
create index keys_namespace on gapless.keys (namespace_id, created_at);
-- Once a key was made, every request needs a credential, also when the last key is gone. The version changes with the
-- keys, so that whoever knows them can see whether there are others.
alter table gapless.log
    add column credentials_required boolean not null default false,
    add column keys_version bigint not null default 0;
