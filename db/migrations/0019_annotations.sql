-- Annotations: reactions, votes, receipts. Who made which is kept, so that each can be counted once and taken back.
create table gapless.annotations (
    channel_id bigint not null,
    target bigint not null,
    mode text not null check (mode in ('total', 'distinct', 'unique', 'flag')),
    -- The sender; '': all that have none, who are one.
    annotator text not null,
    name text not null,
    -- The message's key; '': none.
    key text not null,
    -- More than once only in mode `total`.
    times bigint not null,
    primary key (channel_id, target, mode, annotator, name, key)
);
-- How many of them count.
create table gapless.annotation_counts (
    channel_id bigint not null,
    target bigint not null,
    name text not null,
    mode text not null,
    key text not null,
    total bigint not null,
    primary key (channel_id, target, name, mode, key)
) with (fillfactor = 80);
alter table gapless.changes drop constraint changes_action_check,
    add constraint changes_action_check check (action in ('update', 'delete', 'reply', 'annotate'));
-- About how long the summary of a message's annotations is; 0: there is none.
alter table gapless.latest add column annotation_bytes integer not null default 0;
