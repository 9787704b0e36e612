-- Rewriting bloated tables.

-- Whether a session with an older snapshot may still read these tables. A dump takes its snapshot first, then
-- reads the catalogs, and then locks all tables that it will read; from then on they cannot be rewritten. Its
-- application name proves nothing. The signs of a dump are: a transaction of several statements that keeps a
-- snapshot, with a role that may read all of the schema. A session that has had its snapshot for long, and
-- does not wait for a lock, is not a dump on its way to its locks. The owner sees less of sessions of other
-- roles, unless it has pg_read_all_stats: then each session that keeps a snapshot counts as a dump.
create or replace function gapless_internal.dumps_may_begin() returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    -- Postgres reads the list of sessions once in a transaction, and caches it after that.
    select pg_stat_clear_snapshot();
    select exists (
        select from pg_stat_get_activity(null) a
        where a.datid = (select d.oid from pg_database d where d.datname = current_database())
          and a.pid <> pg_backend_pid() and a.backend_xmin is not null and a.usesysid is not null
          and coalesce(has_table_privilege(a.usesysid, 'gapless.outbox', 'select'), true)
          and (a.xact_start is null
               or (a.state like 'idle in transaction%' or a.query_start > a.xact_start + interval '1 millisecond')
                  and (a.xact_start > clock_timestamp() - interval '10 minutes' or a.wait_event_type = 'Lock')))
$$;

-- Copies, truncates and writes back a table. The caller holds the lock.
create or replace function gapless_internal.rewrite(p_table text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    execute format('create temporary table gapless_compacting on commit drop as select * from gapless.%I', p_table);
    execute format('truncate gapless.%I', p_table);
    execute format('insert into gapless.%I select * from pg_temp.gapless_compacting', p_table);
    drop table pg_temp.gapless_compacting;
end $$;

-- Rewrites the queue tables when dead rows outweigh live ones. Copy and truncate does not wait for old
-- snapshots, as vacuum must: so a transaction that stays open for hours elsewhere cannot make queues slow.
-- Other decisions wait for some milliseconds meanwhile. For the same reason an older snapshot finds a
-- rewritten table empty, and a dump would keep that: see gapless_internal.dumps_may_begin. To make such a
-- loss visible, progress is rewritten together with any other table: without its rows nothing is handed out.
-- Returns the bytes freed; raises lock_not_available if another session is in the way.
create or replace function gapless.compact(p_min_bytes bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    -- For each table: the bytes of a row with its indexes, and the share of p_min_bytes from which it is
    -- checked. progress has one row for each subscription, and each decision reads all dead versions of it.
    tables constant text[] := array['progress', 'deliveries', 'settled_ahead'];
    row_bytes constant integer[] := array[200, 400, 200];
    shares constant integer[] := array[64, 1, 1];
    least_bytes bigint;
    size bigint;
    live bigint;
    freed bigint := 0;
    locked boolean := false;
    begun boolean := false;
begin
    perform gapless_internal.needs_fresh_snapshots();
    for i in 1 .. cardinality(tables) loop
        size := pg_total_relation_size(('gapless.' || tables[i])::regclass);
        least_bytes := p_min_bytes / shares[i];
        continue when size < least_bytes;
        execute format('select count(*) from gapless.%I', tables[i]) into live;
        continue when size < live * row_bytes[i] * 4 + least_bytes / 2;
        if not locked then
            -- All decisions and counts lock progress first: so none sees one table rewritten and another not.
            lock table gapless.progress in access exclusive mode;
            locked := true;
            begun := not gapless_internal.dumps_may_begin();
            exit when not begun;
            if i > 1 then
                perform gapless_internal.rewrite('progress');
            end if;
        end if;
        execute format('lock table gapless.%I in access exclusive mode', tables[i]);
        perform gapless_internal.rewrite(tables[i]);
        freed := freed + size - pg_total_relation_size(('gapless.' || tables[i])::regclass);
    end loop;
    if begun and gapless_internal.dumps_may_begin() then
        raise exception 'a dump may have begun meanwhile' using errcode = 'lock_not_available';
    end if;
    return freed;
end $$;
