-- Messages about messages. The log stays as it is: the two tables are what became of the messages that others change.
-- All of it is written by the transaction that publishes a change, under the lock of the channel's row.
-- messages.change: which message it changes, and how: a JSON object as readers get it. Null: it changes none. Whoever
-- waits for this lock makes everybody wait behind it, and a reader may hold it for as long as it scans the log: so it is
-- asked for again and again, for a moment each time.
do $$
declare
    before constant text := current_setting('lock_timeout');
begin
    loop
        begin
            perform set_config('lock_timeout', '200ms', true);
            alter table gapless.messages add column change json;
            alter table gapless.kept add column change json;
            exit;
        exception when lock_not_available then
            perform pg_sleep(0.3);
        end;
    end loop;
    perform set_config('lock_timeout', before, true);
end $$;

-- Every message that changes another one.
create table gapless.changes (
    channel_id bigint not null,
    target bigint not null,
    id bigint not null,
    action text not null check (action in ('update', 'delete', 'reply')),
    primary key (channel_id, target, id)
);

-- What became of each message that another one changed.
create table gapless.latest (
    channel_id bigint not null,
    id bigint not null,
    -- The newest message that changed it.
    version bigint not null,
    -- The newest update of it; null: none.
    updated_by bigint,
    deleted boolean not null default false,
    replies bigint not null default 0,
    primary key (channel_id, id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
create index latest_version on gapless.latest (channel_id, version);
