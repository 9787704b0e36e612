-- One table says what changes what and how many changes there are up to each, in place of gapless.changes and
-- gapless.change_numbers: each change is written once. gapless.latest has no index by version any more: what changed
-- after an id is found in gapless.changes, and a row of gapless.latest can be updated in its page.
-- A change that functions of the version before publish until the new functions are there is refused with an error.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            lock table gapless.changes, gapless.latest, gapless.change_numbers, gapless.deleted_counts
                in access exclusive mode;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;

drop index gapless.latest_version;

-- Retention left the newest number of a channel, and numbers of changes whose target it removed. Nobody asks what these
-- change.
insert into gapless.changes (channel_id, target, id, action)
select n.channel_id, coalesce((m.change ->> 'target')::bigint, 0), n.id, coalesce(m.change ->> 'action', 'update')
from gapless.change_numbers n
left join gapless.messages m on m.id = n.id and m.channel_id = n.channel_id
where not exists (select from gapless.changes c where c.channel_id = n.channel_id and c.id = n.id);

-- How many messages of the channel change others, up to this one. A reply has a row too and is not counted.
alter table gapless.changes add column number bigint;
update gapless.changes c
set number = coalesce(
    (select n.number from gapless.change_numbers n
     where n.channel_id = c.channel_id and n.id <= c.id order by n.id desc limit 1),
    (select n.number - 1 from gapless.change_numbers n where n.channel_id = c.channel_id order by n.id limit 1), 0);
alter table gapless.changes alter column number set not null, drop constraint changes_pkey,
    add primary key (channel_id, id);
create index changes_target on gapless.changes (channel_id, target, id);
drop table gapless.change_numbers;

-- Deletions are summed over 64^n seqs in place of 256^n: a sum over any stretch reads at most 63 rows of each level.
alter table gapless.deleted_counts drop constraint deleted_counts_level_check;
create temporary table deleted_seqs on commit drop as
select d.channel_id, d.bucket as seq, d.total from gapless.deleted_counts d where d.level = 0;
truncate gapless.deleted_counts;
insert into gapless.deleted_counts (channel_id, level, bucket, total)
select s.channel_id, level, s.seq >> (6 * level), sum(s.total)
from deleted_seqs s cross join generate_series(0, 6) level
group by 1, 2, 3;
alter table gapless.deleted_counts add constraint deleted_counts_level_check check (level between 0 and 6);
