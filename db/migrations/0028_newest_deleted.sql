-- How far deletions reach in a channel: for whoever has read further, how much is unread is known without a look at them.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            lock table gapless.channels in access exclusive mode;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;

-- No original after this seq was deleted; null: not known, or none was.
alter table gapless.channels add column deleted_seq bigint;
