-- The watermark's raw reading, as before, but for the journal: what reads leave in it (a pruned page, say) is
-- flushed by nobody until something commits, up to 15 s later in an idle database, and until then the last id was
-- not settled. A tick that finds that nobody who could still publish is there flushes it by committing something
-- itself; the next tick sees it.
create or replace function gapless.tick(
    out last_id bigint, out lsn bigint, out flushed bigint, out holders text[], out life uuid
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    select l.id into life from gapless.lives l;
    if not found then
        insert into gapless.lives default values on conflict do nothing;
        select l.id into life from gapless.lives l;
    end if;
    select case when s.is_called then s.last_value else 0 end into last_id from gapless.message_id s;
    lsn := pg_current_wal_insert_lsn() - '0/0'::pg_lsn;
    -- At the end of a page the journal's position counts the header of the next, which is written with the
    -- next record only: without this an idle database would stay unsettled there.
    lsn := lsn - case
        when lsn % pg_size_bytes(current_setting('wal_segment_size')) = 40 then 40
        when lsn % current_setting('wal_block_size')::integer = 24 then 24
        else 0 end;
    flushed := pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
    select coalesce(array_agg(distinct l.virtualtransaction), '{}') into holders
    from pg_locks l
    where l.locktype = 'advisory' and l.classid = 1195462739 and l.objid = 1 and l.objsubid = 2
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.mode = 'ShareLock' and l.granted;
    if flushed < lsn and holders = '{}' then
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true);
        end if;
        -- A commit with something of its own in the journal waits for the disk; an empty one does not.
        perform pg_logical_emit_message(true, 'gapless', '');
    end if;
end $$;
