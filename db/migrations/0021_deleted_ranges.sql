-- What deletions of a stretch hide: every original from first_id to last_id, by the message `id`, the newest that hides
-- it. The ranges of a channel are disjoint, so the one about an id is that with the greatest first_id at or below it.
create table gapless.deleted_ranges (
    channel_id bigint not null,
    first_id bigint not null,
    last_id bigint not null check (last_id >= first_id),
    id bigint not null check (id > last_id),
    primary key (channel_id, first_id)
);
create index deleted_ranges_id on gapless.deleted_ranges (channel_id, id);
