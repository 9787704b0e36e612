-- Rewriting bloated tables.

-- Whether somebody has a snapshot of before who may still come to read these tables. A dump takes its snapshot first,
-- then looks into the catalogs, and then locks all that it is going to read, which nobody can rewrite from then on. What
-- it calls itself says nothing. What tells it is a transaction of several statements that keeps a snapshot, of a role
-- that may read all of the schema. One that has had its snapshot for long, and does not wait for a lock, is no dump on
-- its way to its locks. Of sessions of other roles the owner sees less, unless it has pg_read_all_stats: each that keeps
-- a snapshot may then be one.
create or replace function gapless.dumps_may_begin() returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    -- Who is there is looked at once a transaction, and told from memory after that.
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

-- Copies, truncates and writes back. The caller holds the lock.
create or replace function gapless.rewrite(p_table text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    execute format('create temporary table gapless_compacting on commit drop as select * from gapless.%I', p_table);
    execute format('truncate gapless.%I', p_table);
    execute format('insert into gapless.%I select * from pg_temp.gapless_compacting', p_table);
    drop table pg_temp.gapless_compacting;
end $$;

-- Rewrites the tables of what is under way when dead rows outweigh what lives in them. Copy and truncate does not
-- wait for old snapshots, as vacuum must: a transaction that stays open for hours elsewhere cannot make queues
-- slow. Whoever decides meanwhile waits for some milliseconds. For the same reason an older snapshot finds a table
-- empty that was rewritten since, and a dump would keep that: see gapless.dumps_may_begin. So that it never does so in
-- silence, progress is rewritten along with whatever else is: without its rows nothing is handed out. Returns the bytes
-- given back; raises lock_not_available where somebody is in the way.
create or replace function gapless.compact(p_min_bytes bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms' as $$
declare
    -- Each with the bytes that a row takes with its indexes, and the share of p_min_bytes at which it is looked at: of
    -- progress there is one row a subscription, and each decision goes by all of its dead versions.
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
    perform gapless.needs_fresh_snapshots();
    for i in 1 .. cardinality(tables) loop
        size := pg_total_relation_size(('gapless.' || tables[i])::regclass);
        least_bytes := p_min_bytes / shares[i];
        continue when size < least_bytes;
        execute format('select count(*) from gapless.%I', tables[i]) into live;
        continue when size < live * row_bytes[i] * 4 + least_bytes / 2;
        if not locked then
            -- All who decide or count come to progress first: none of them sees one table rewritten and not another.
            lock table gapless.progress in access exclusive mode;
            locked := true;
            begun := not gapless.dumps_may_begin();
            exit when not begun;
            if i > 1 then
                perform gapless.rewrite('progress');
            end if;
        end if;
        execute format('lock table gapless.%I in access exclusive mode', tables[i]);
        perform gapless.rewrite(tables[i]);
        freed := freed + size - pg_total_relation_size(('gapless.' || tables[i])::regclass);
    end loop;
    if begun and gapless.dumps_may_begin() then
        raise exception 'a dump may have begun meanwhile' using errcode = 'lock_not_available';
    end if;
    return freed;
end $$;
