-- How long dead letters stay that were also published to a channel, in seconds. Null: until somebody removes them; 0:
-- they are not kept.
alter table gapless.subscriptions add column keep double precision;
alter table gapless.dead_letters add column remove_at timestamptz;
create index dead_letters_ageing on gapless.dead_letters (remove_at) where remove_at is not null;
