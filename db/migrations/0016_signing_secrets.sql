-- What signs receipts of deliveries, and hints between processes: secrets of their own, which can be changed. See
-- gapless.rotate_secret.
create table gapless.signing_secrets (
    purpose text not null check (purpose in ('receipts', 'hints')),
    secret bytea not null check (length(secret) >= 32),
    -- A process signs with the newest of those from which on signatures are made. All others are only accepted.
    signs_at timestamptz not null default now(),
    -- From then on it is not accepted any more; null: until another one takes its place.
    ends_at timestamptz,
    primary key (purpose, signs_at)
);
-- Workers of the version before sign both with one secret, and go on beside new ones: so an installation that was not
-- made just now begins with it.
insert into gapless.signing_secrets (purpose, secret)
select p.purpose,
       case when l.created_at < clock_timestamp() - interval '10 s' then l.hint_secret
            else sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')) end
from gapless.log l, (values ('receipts'), ('hints')) p (purpose);
