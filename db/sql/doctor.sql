-- name: doctor_server
select current_setting('server_version') as version, current_setting('server_version_num')::integer as number,
       session_user::text as login, current_user::text as role, pg_is_in_recovery() as standby,
       (select r.rolsuper from pg_roles r where r.rolname = current_user) as superuser,
       current_setting('fsync') = 'on' as fsync,
       current_setting('full_page_writes') = 'on' as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('server_encoding') as encoding,
       current_setting('max_prepared_transactions')::integer as max_prepared_transactions,
       (select count(*) from pg_prepared_xacts p where p.database = current_database()) as prepared,
       current_setting('max_connections')::integer as max_connections,
       current_setting('max_locks_per_transaction')::integer as max_locks,
       (select count(*) from pg_inherits i join pg_class c on c.oid = i.inhparent
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'gapless' and c.relname = 'messages') as segments,
       -- The list of connections hides the details of other roles; the statistics count all connections.
       (select coalesce(sum(d.numbackends), 0)::integer from pg_stat_database d) as connections,
       (select count(*) from pg_stat_activity a where a.datname = current_database()
        and a.pid <> pg_backend_pid() and a.backend_type is null) as hidden,
       -- Of other users only the transactions that this role may see.
       coalesce((select max(extract(epoch from clock_timestamp() - a.xact_start)) from pg_stat_activity a
                 where a.datname = current_database() and a.pid <> pg_backend_pid()), 0)::double precision
           as oldest_transaction,
       (extract(epoch from clock_timestamp()))::double precision as clock,
       exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where n.nspname = 'gapless' and c.relname = 'migrations') as migrated

-- name: doctor_rights
select coalesce(array_agg(c.relname::text order by c.relname)
                filter (where has_table_privilege(c.oid, 'insert, update, delete, truncate')), '{}') as writable,
       coalesce(array_agg(c.relname::text order by c.relname)
                filter (where c.relname = any ('{channels,messages,segments,migrations}')
                        and not has_table_privilege(c.oid, 'select')), '{}') as unreadable,
       (select coalesce(array_agg(p.proname::text order by p.proname), '{}')
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'gapless' and p.proname = any ('{append,tick,trim_channels,set_channel_if}')
          and not has_function_privilege(p.oid, 'execute')) as uncallable
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'gapless' and c.relkind in ('r', 'p')

-- name: doctor_ids_left
select s.seqmax - coalesce(pg_sequence_last_value(s.seqrelid), 0) from pg_sequence s
where s.seqrelid = 'gapless.message_id'::regclass

-- name: doctor_backend
select pg_backend_pid()
