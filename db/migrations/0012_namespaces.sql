-- Shared: every process serves it. Otherwise only those serve it whose setting names it. Limits are kept as they were
-- given: numbers by name.
alter table gapless.namespaces
    add column shared boolean not null default false,
    add column limits jsonb not null default '{}';
