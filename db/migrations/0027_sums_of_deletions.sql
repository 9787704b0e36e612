-- How much is unread is read in one row of each level, and how many changes a channel has in the channel's own row.
-- Until the new functions are there, those of the version before refuse deletions with an error, and retention waits.
-- The table has a new name for that: they must not write to it, nor remove rows that are needed.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            lock table gapless.channels, gapless.deleted_counts in access exclusive mode;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;

-- How many messages of the channel change others; null: as the newest row of gapless.changes says.
alter table gapless.channels add column changes bigint;

-- How many originals are deleted, by their seq. A row of level n is about 64^(n+1) seqs in 64 places of 64^n seqs, and
-- sums[i] says how many are deleted in place i and in the places after it. A deletion of a stretch counts at the first
-- seq of the stretch.
create table gapless.deleted_sums (
    channel_id bigint not null,
    level smallint not null check (level between 0 and 6),
    bucket bigint not null,
    sums bigint[] not null check (cardinality(sums) = 64),
    primary key (channel_id, level, bucket)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

insert into gapless.deleted_sums (channel_id, level, bucket, sums)
select d.channel_id, d.level, d.bucket >> 6,
       array(select coalesce(sum(p.total), 0)::bigint
             from generate_series(0, 63) place
             left join unnest(array_agg(d.bucket & 63), array_agg(d.total)) as p (place, total) on p.place >= place.place
             group by place.place order by place.place)
from gapless.deleted_counts d
group by d.channel_id, d.level, d.bucket >> 6;

drop table gapless.deleted_counts;
