-- Who asked for a scheduled message: it is published while that credential is good. Null: nobody needed one.
alter table gapless.scheduled
    -- The id of an API key.
    add column key_id text,
    -- When the credential expires.
    add column until timestamptz,
    -- Its credential had ended when it was due: somebody has to publish or to cancel it.
    add column withheld boolean not null default false;
drop index gapless.scheduled_due;
create index scheduled_due on gapless.scheduled (deliver_at, id) where not withheld;
