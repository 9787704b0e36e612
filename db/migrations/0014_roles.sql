-- What login roles may do by SQL: see gapless.grant_publisher and gapless.grant_reader. Roles are kept by name, as a dump
-- keeps them: a restore into another server finds the same ones.
create table gapless.role_grants (
    role name not null,
    kind text not null check (kind in ('publisher', 'reader')),
    namespace_id integer not null references gapless.namespaces on delete cascade,
    channels text[] not null,
    -- Matches the names that `channels` stand for; null: all.
    regex text,
    -- The sender of what the role publishes.
    sender text check (sender ~ '^[^[:cntrl:]]{1,255}$'),
    primary key (role, kind)
);
create index role_grants_namespace on gapless.role_grants (namespace_id);
-- Which role writes a query of the Spark sink: no other may touch its books.
create table gapless.spark_queries (
    namespace_id integer not null references gapless.namespaces on delete cascade,
    query text collate "C" not null,
    role name not null,
    claimed_at timestamptz not null default now(),
    primary key (namespace_id, query)
);
alter table gapless.outbox add column sender text;
-- Until now each member of two group roles published and read in all namespaces. Those of an installation that is in use
-- go on in `default`.
insert into gapless.role_grants (role, kind, namespace_id, channels)
select r.rolname, k.kind, n.id, '{>}'
from pg_roles r, (values ('publisher', 'gapless_publisher'), ('reader', 'gapless_reader')) k (kind, member_of),
     gapless.namespaces n
where n.name = 'default' and exists (select from gapless.channels)
  and r.rolcanlogin and not r.rolsuper and pg_has_role(r.oid, k.member_of, 'member')
  and not pg_has_role(r.oid, 'gapless_service', 'member') and not pg_has_role(r.oid, current_user, 'member');
