-- Where a subscription stands, in numbers.

-- Of one subscription, in one snapshot; an aggregate each over an index. Whoever asks comes to gapless.progress first: see
-- gapless.compact.
create or replace function gapless.stats(s gapless.subscriptions, p gapless.progress)
returns table (
    cursor bigint, acked bigint, redelivered bigint, dead_lettered bigint, purged bigint, removed bigint, ahead bigint,
    leased bigint, waiting bigint, ready bigint, delayed bigint, dead_letters bigint, oldest double precision
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select p.frontier, p.acked, p.redelivered, p.dead_lettered, p.purged,
           greatest(0, p.removed + gapless.removed_between(s, p.frontier, 9007199254740991)),
           gapless.ahead(s, p.frontier), d.leased, d.waiting, d.ready, d.delayed,
           (select count(*) from gapless.dead_letters e
            where e.namespace_id = s.namespace_id and e.subscription = s.name),
           extract(epoch from clock_timestamp() - least(d.oldest, gapless.oldest_ahead(s, p.frontier)))::double precision
    from (
        select count(*) filter (where d.state = 0) as leased, count(*) filter (where d.state = 2) as waiting,
               count(*) filter (where d.state = 1 and d.at <= clock_timestamp()) as ready,
               count(*) filter (where d.state = 1 and d.at > clock_timestamp()) as delayed, min(d.entered_at) as oldest
        from gapless.deliveries d where d.subscription_id = s.id
    ) d
$$;

-- What a seek would lead to. It is made, looked at and taken back: so it says what a seek does, whatever that is. `moved`
-- as gapless.seek_subscription gives it; the stats of before (null: there is no progress) and of after as JSON.
create or replace function gapless.try_seek(
    p_namespace_id integer, p_name text, p_to text, p_settled bigint default null,
    out moved boolean, out before json, out after json
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id constant integer := (select s.id from gapless.subscriptions s
                                  where s.namespace_id = p_namespace_id and s.name = p_name);
begin
    perform gapless.lock_subscriptions(array[found_id]);
    select to_json(x) into before
    from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id, lateral gapless.stats(s, p) x
    where s.id = found_id;
    begin
        moved := gapless.seek_subscription(p_namespace_id, p_name, p_to, p_settled);
        if moved then
            select to_json(x) into after
            from gapless.subscriptions s join gapless.progress p on p.subscription_id = s.id, lateral gapless.stats(s, p) x
            where s.id = found_id;
            raise exception using errcode = 'GL000';
        end if;
    exception when sqlstate 'GL000' then
        null;
    end;
    perform set_config('synchronous_commit', 'off', true);
end $$;
