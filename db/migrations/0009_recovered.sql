-- How far the WAL went that a crash left, in bytes. Null: the fence was put up for another reason, or before this
-- column was there.
alter table gapless.fences add column recovered bigint;
