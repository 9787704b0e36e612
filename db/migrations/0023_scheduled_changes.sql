-- What a scheduled message changes: as in messages.change, with the version that its target has to have, and whether its
-- sender may change anybody's messages. The lock is asked for as in 0018_changes.sql.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            alter table gapless.scheduled
                add column change json, add column version bigint, add column moderates boolean,
                -- Why it was refused when it was due, as gapless_internal.judge_changes says. It is withheld then.
                add column refused smallint;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;
