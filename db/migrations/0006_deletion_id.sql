-- The last id that was taken when a channel was last deleted in the namespace. A reader that began to follow a
-- channel before it existed, at a settled id above this one, knows that no channel of that name came and went
-- since.
alter table gapless.namespaces add column deletion_id bigint not null default 0;
