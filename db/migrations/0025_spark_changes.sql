-- What rows of the Spark sink change: as in messages.change, null where a chunk has no such rows. How many changes an
-- attempt has, and how many changes of a batch were refused and left out. The lock is asked for as in 0018_changes.sql.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            alter table gapless.spark_chunks add column changes json[];
            alter table gapless.spark_attempts add column change_count bigint not null default 0;
            alter table gapless.spark_batches add column refused bigint not null default 0;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;
