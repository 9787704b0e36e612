-- Publishing from Spark: rows become messages once, however often Spark repeats a task, a batch or a job.
--
-- A task may run several times and never learns how many others there are, so no task publishes. Each stages
-- its rows as an attempt, which nobody sees. When all tasks of a batch are done, the driver binds the batch to
-- the attempts that Spark counts: that one insert decides for good which rows the batch is. Then the bound
-- rows are published, whole partitions at a time, each in one transaction with the note that it was. Who comes
-- later with the same batch, at the same time or after a crash, goes on with the rows that were bound first,
-- whatever its own look like.
--
-- Locks, before those of the log (0001_log.sql): the batch's row.
-- Errors: GS001 the batch had other rows, GS002 a later batch was there before, GS003 staged rows are gone.

-- The ledger. A batch write of its own has batch -1, and its write id for a query.
create table gapless.spark_batches (
    namespace_id integer not null references gapless.namespaces,
    query text collate "C" not null check (length(query) between 1 and 255),
    batch bigint not null check (batch >= -1),
    attempts uuid[] not null,
    row_count bigint not null,
    -- So many of the attempts, from the first on, are published.
    published integer not null default 0,
    bound_at timestamptz not null default now(),
    primary key (namespace_id, query, batch)
) with (fillfactor = 70);
create index spark_batches_age on gapless.spark_batches (bound_at) where batch = -1;
comment on column gapless.spark_batches.attempts is 'one a partition that has rows, in the order of partitions';

create table gapless.spark_attempts (
    id uuid primary key,
    namespace_id integer not null references gapless.namespaces,
    query text collate "C" not null,
    batch bigint not null,
    -- Which run of the query or job staged it: what an earlier one left is nobody's.
    run text not null,
    row_count bigint not null,
    byte_count bigint not null,
    -- Those of each chunk, so at least as many as there are.
    channel_count bigint not null,
    bound boolean not null default false,
    started_at timestamptz not null default now()
);
create index spark_attempts_batch on gapless.spark_attempts (namespace_id, query, batch);
create index spark_attempts_age on gapless.spark_attempts (started_at);

-- Rows as gapless.append takes them: arrays, null where the whole column is.
create table gapless.spark_chunks (
    attempt_id uuid not null references gapless.spark_attempts on delete cascade,
    number integer not null,
    names text[] not null,
    channel integer[] not null,
    types text[],
    keys text[],
    data text[],
    "binary" bytea[],
    headers text[],
    ttls double precision[],
    primary key (attempt_id, number)
);
