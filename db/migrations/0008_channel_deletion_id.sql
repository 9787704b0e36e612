-- The last id that was taken when the last channel of this name before this one was deleted, or a larger id if that
-- name was forgotten. Null: unknown. Of the channels that exist now it is known that all deletions came before them; a
-- constant as the default does not write their rows again.
lock table gapless.channels in access exclusive mode;
do $$
begin
    execute format('alter table gapless.channels add column deletion_id bigint default %s',
                   (select max(n.deletion_id) from gapless.namespaces n));
end $$;
alter table gapless.channels alter column deletion_id drop default;
