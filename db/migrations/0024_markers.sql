-- How far users have come in channels, and what does not count as unread there: messages that change others, and
-- originals that are deleted. Whatever is written here for a channel is written under the lock of its row, but markers.

-- How many messages of a channel change others, up to each of them. Retention leaves the newest one.
create table gapless.change_numbers (
    channel_id bigint not null,
    id bigint not null,
    number bigint not null,
    primary key (channel_id, id)
);

-- How many originals are deleted, by their seq: at level n, those of 256^n seqs. A deletion of a stretch counts at the
-- first seq of the stretch. So a sum over any stretch reads at most 255 rows of each level.
create table gapless.deleted_counts (
    channel_id bigint not null,
    level smallint not null check (level between 0 and 4),
    bucket bigint not null,
    total bigint not null,
    primary key (channel_id, level, bucket)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- The stretch in seqs: what comes after first_seq - 1, up to last_seq; and how many originals it is counted for.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            alter table gapless.deleted_ranges add column first_seq bigint, add column last_seq bigint,
                add column total bigint not null default 0;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;

create table gapless.markers (
    namespace_id integer not null,
    channel_id bigint not null,
    "user" text not null,
    name text not null,
    id bigint not null,
    -- How many messages the channel had up to the id, and how many of them change others.
    seq bigint not null,
    changes bigint not null,
    updated_at timestamptz not null,
    primary key (channel_id, name, "user")
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index markers_of_user on gapless.markers (namespace_id, "user", name, channel_id);

-- What was there before.
insert into gapless.change_numbers (channel_id, id, number)
select m.channel_id, m.id, row_number() over (partition by m.channel_id order by m.id)
from gapless.messages m
where m.change is not null and m.change ->> 'action' <> 'reply' and exists (select from gapless.changes);

update gapless.deleted_ranges d
set first_seq = coalesce(x.first_seq, 1), last_seq = coalesce(x.last_seq, 0), total = x.total
from (
    select d.channel_id, d.first_id, min(m.seq) as first_seq, max(m.seq) as last_seq,
           count(m.id) filter (where (m.change is null or m.change ->> 'action' = 'reply') and l.id is null) as total
    from gapless.deleted_ranges d
    left join gapless.messages m on m.channel_id = d.channel_id and m.id between d.first_id and d.last_id
    left join gapless.latest l on l.channel_id = m.channel_id and l.id = m.id and l.deleted
    group by d.channel_id, d.first_id) x
where d.channel_id = x.channel_id and d.first_id = x.first_id;

insert into gapless.deleted_counts (channel_id, level, bucket, total)
select p.channel_id, level, p.seq >> (8 * level), sum(p.total)
from (
    select m.channel_id, m.seq, 1 as total
    from gapless.latest l join gapless.messages m on m.channel_id = l.channel_id and m.id = l.id
    where l.deleted
    union all
    select d.channel_id, d.first_seq, d.total from gapless.deleted_ranges d where d.total > 0
) p cross join generate_series(0, 4) level
group by 1, 2, 3;
