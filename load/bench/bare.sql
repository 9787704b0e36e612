-- What the batch benchmark holds the service against: tables of the same shape, and one statement.
drop schema if exists bench cascade;
create schema bench;
create sequence bench.message_id as bigint cache 1;
create table bench.channels (
    id bigint generated always as identity primary key,
    name text collate "C" not null unique,
    last_id bigint not null default 0,
    last_seq bigint not null default 0
) with (fillfactor = 50);
create table bench.messages (
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
    primary key (id),
    check ((data is null) <> ("binary" is null))
) partition by range (id);
create index messages_channel on bench.messages (channel_id, id);
create table bench.messages_1 partition of bench.messages for values from (1) to (1000000000);
-- the statement
with locked as materialized (
    select c.id, c.name, c.last_seq from bench.channels c
    where c.name = any ($1::text[])
    order by c.id
    for no key update
), numbered as materialized (
    select m.*, l.id as channel_id, nextval('bench.message_id') as id,
           l.last_seq + row_number() over (partition by l.id order by m.ord) as seq
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) with ordinality
        as m (name, type, key, data, headers, ord)
    join locked l using (name)
    order by m.ord
), stored as (
    insert into bench.messages (id, channel_id, seq, created_at, type, key, headers, data)
    select n.id, n.channel_id, n.seq, clock_timestamp(), n.type, n.key, n.headers::json, n.data::json
    from numbered n
), moved as (
    update bench.channels c set last_id = h.last_id, last_seq = h.last_seq
    from (select n.channel_id, max(n.id) as last_id, max(n.seq) as last_seq from numbered n group by 1) h
    where c.id = h.channel_id
)
select array_agg(n.id order by n.ord) as ids, array_agg(n.seq order by n.ord) as seqs from numbered n
