-- Which names had channels that were deleted, and when. A reader that began to follow a channel before it existed
-- learns from it whether a channel of that name came and went since. Names are forgotten again, the oldest first, so
-- that they need bounded room: see gapless_internal.note_deletion.
create table gapless.deleted_names (
    namespace_id integer not null references gapless.namespaces,
    name text collate "C" not null,
    -- Counts the deletions of the namespace.
    number bigint not null,
    -- The last id that was taken when the last channel of this name was deleted.
    deletion_id bigint not null,
    primary key (namespace_id, name),
    unique (namespace_id, number)
);
alter table gapless.namespaces
    add column deletions bigint not null default 0,
    -- The largest deletion_id of a name that is forgotten. Null: all deletions so far are.
    add column forgotten_id bigint;
