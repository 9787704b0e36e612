-- Replaying and removing dead letters.

-- Takes dead letters, locked by the caller, out of the list, to go back to the subscriptions that failed them at
-- the commit: see give_back_replays. Until then only the dead letters are locked. Returns how many, without those
-- whose subscription is gone. With a rate, each is due 1/p_rate seconds after the one before it; the first at p_from.
create or replace function gapless_internal.set_aside(
    p_ids bigint[], p_rate double precision default null, p_from timestamptz default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    n integer;
begin
    -- What follows at the commit decides by what it reads then.
    perform gapless_internal.needs_fresh_snapshots();
    with gone as (
        delete from gapless.dead_letters e
        where e.id = any(p_ids) and exists (select from gapless.subscriptions s
                                            where s.namespace_id = e.namespace_id and s.name = e.subscription)
        returning e.*, to_json(e) as letter
    ), aside as (
        insert into gapless.replays (id, namespace_id, subscription, kept_id, last_error, letter, due)
        select g.id, g.namespace_id, g.subscription, g.kept_id, g.last_error, g.letter,
               p_from + (row_number() over (order by g.id) - 1) / p_rate * interval '1 second'
        from gone g
        returning 1
    )
    select count(*) into n from aside;
    if n > 0 then
        insert into gapless.commits (kind) values (0) on conflict do nothing;
    end if;
    return n;
end $$;

-- Takes the locks of the subscriptions to which this transaction gives dead letters back; returns their ids. A
-- subscription that is gone since then fails the transaction, so that its dead letters stay in the list.
create or replace function gapless_internal.lock_receivers() returns integer[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Another subscription of the same name may be created while this waits: it is not locked, and gets
    -- nothing.
    held constant integer[] := array(
        select distinct s.id from gapless.replays r
        join gapless.subscriptions s on s.namespace_id = r.namespace_id and s.name = r.subscription
        where r.transaction_id = pg_current_xact_id());
    missing text;
begin
    perform gapless_internal.lock_subscriptions(held);
    select r.subscription into missing from gapless.replays r
    where r.transaction_id = pg_current_xact_id()
      and not exists (select from gapless.subscriptions s
                      where s.namespace_id = r.namespace_id and s.name = r.subscription and s.id = any(held))
    limit 1;
    if found then
        raise exception 'subscription % does not exist', missing
            using errcode = 'GL404', hint = 'It was there when the dead letter was replayed. Nothing was done.';
    end if;
    return held;
end $$;

-- Gives the dead letters that this transaction set aside back to their subscriptions. The kept copy goes with the
-- message, because it may be the only one. For gapless_internal.flush_outbox.
create or replace function gapless_internal.give_back_replays() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    held integer[];
    t timestamptz;
    given record;
begin
    if not exists (select from gapless.replays r where r.transaction_id = pg_current_xact_id()) then
        return;
    end if;
    held := gapless_internal.lock_receivers();
    t := clock_timestamp();
    with mine as materialized (
        delete from gapless.replays r where r.transaction_id = pg_current_xact_id() returning r.*
    ), letters as (
        -- Uses the ordering that the existing rows have. If another one is in force now, the next claim
        -- changes all rows.
        select m.*, s.id as subscription_id, k.message_id, k.channel_id, p.frontier,
               gapless_internal.lane_of(p.ordering, k.key) as lane,
               -- One message may have died several times, in a subscription that was moved back.
               row_number() over (partition by s.id, k.message_id order by m.id) as nth,
               greatest(t, m.due) as due_at
        from mine m
        join gapless.subscriptions s on s.namespace_id = m.namespace_id and s.name = m.subscription and s.id = any(held)
        join gapless.kept k on k.id = m.kept_id
        join gapless.progress p on p.subscription_id = s.id
    ), passed as (
        insert into gapless.settled_ahead (subscription_id, message_id, channel_id)
        select l.subscription_id, l.message_id, l.channel_id
        from letters l where l.message_id > l.frontier and l.nth = 1
        on conflict do nothing
    ), stored as (
        insert into gapless.deliveries (subscription_id, message_id, channel_id, lease, at, entered_at, kept_id,
                                        attempts, state, lane, last_error)
        select l.subscription_id, l.message_id, l.channel_id, 0,
               case when l.lane is not null and l.due_at = t then 'epoch' else l.due_at end, l.due_at, l.kept_id, 0,
               case when l.lane is not null then 2 else 1 end, l.lane, l.last_error
        from letters l where l.nth = 1
        -- It is under way already: then it starts again there, with the lease that is out, if any, and with
        -- this copy: retention does not remove the message of a dead letter.
        on conflict (subscription_id, message_id)
            do update set attempts = (gapless.deliveries.state = 0)::integer, strikes = 0, company = null,
                          entered_at = excluded.entered_at, expires_at = null,
                          kept_id = coalesce(gapless.deliveries.kept_id, excluded.kept_id)
        returning kept_id
    ), remembered as (
        update gapless.kept k set letter = l.letter from letters l
        where k.id = l.kept_id and exists (select from stored x where x.kept_id = l.kept_id)
    ), unused as (
        delete from gapless.kept k using letters l
        where k.id = l.kept_id and not exists (select from stored x where x.kept_id = l.kept_id)
    )
    select array_agg(l.subscription_id) as subscriptions, array_agg(l.channel_id) as channels,
           array_agg(l.lane) as lanes
    into given from letters l where l.lane is not null;
    -- Those with a lane wait behind the message of it that was handed out; if there is none, the first becomes due.
    if given.lanes is not null then
        perform gapless_internal.make_way(given.subscriptions, given.channels, given.lanes);
        perform gapless_internal.promote(given.subscriptions, given.channels, given.lanes, t);
    end if;
end $$;

-- Replays one dead letter, if and when the transaction commits. Status: 0 done, 1 the dead letter does not exist (any
-- more), 2 its subscription is gone.
create or replace function gapless.replay(
    p_namespace_id integer, p_id bigint, out status integer, out subscription text, out message_id bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    select e.subscription, k.message_id into subscription, message_id
    from gapless.dead_letters e join gapless.kept k on k.id = e.kept_id
    where e.namespace_id = p_namespace_id and e.id = p_id for update of e;
    if not found then
        status := 1;
        return;
    end if;
    status := case when gapless_internal.set_aside(array[p_id]) = 0 then 2 else 0 end;
end $$;

-- Replays dead letters by a filter; here and below, null members match all. It is planned for each call: a
-- generic plan would read every dead letter for each. p_done were replayed before by the same request, whose
-- first call was at p_begun (null: this is the first).
create or replace function gapless.replay_some(
    p_namespace_id integer, p_subscription text, p_channel text, p_reason text, p_ids bigint[], p_after bigint,
    p_upto bigint, p_limit integer, p_rate double precision default null, p_done bigint default 0,
    p_begun timestamptz default null, out replayed integer, out reached bigint, out begun timestamptz
) language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan as $$
declare
    chosen bigint[];
begin
    begun := coalesce(p_begun, clock_timestamp());
    chosen := array(
        select e.id from gapless.dead_letters e
        where e.namespace_id = p_namespace_id and e.id > p_after and e.id <= p_upto
          and (p_subscription is null or e.subscription = p_subscription)
          and (p_channel is null or e.channel = p_channel) and (p_reason is null or e.reason = p_reason)
          and (p_ids is null or e.id = any(p_ids))
        order by e.id limit p_limit for update skip locked);
    reached := (select max(x) from unnest(chosen) x);
    replayed := gapless_internal.set_aside(chosen, p_rate, begun + p_done / p_rate * interval '1 second');
end $$;

-- How many a replay of at most p_most would give back, and how many it would skip on its way because their
-- subscription is gone. Dead letters locked by another replay are counted.
create or replace function gapless.replayable(
    p_namespace_id integer, p_subscription text, p_channel text, p_reason text, p_ids bigint[], p_most bigint,
    out replayed bigint, out skipped bigint
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan as $$
begin
    select count(*) filter (where x.there), count(*) filter (where not x.there) into replayed, skipped
    from (
        select e.there, count(*) filter (where e.there) over (order by e.id) as n
        from (
            select e.id, exists (select from gapless.subscriptions s
                                 where s.namespace_id = e.namespace_id and s.name = e.subscription) as there
            from gapless.dead_letters e
            where e.namespace_id = p_namespace_id
              and (p_subscription is null or e.subscription = p_subscription)
              and (p_channel is null or e.channel = p_channel) and (p_reason is null or e.reason = p_reason)
              and (p_ids is null or e.id = any(p_ids))
        ) e
    ) x
    where p_most is null or x.n < p_most or x.n = p_most and x.there;
end $$;

-- Removes dead letters for good, with their copies. Those that are being replayed at the moment are skipped.
create or replace function gapless.purge_dead_letters(
    p_namespace_id integer, p_subscription text, p_channel text, p_reason text, p_ids bigint[],
    p_before timestamptz, p_limit integer
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan as $$
begin
    return gapless_internal.remove_letters(array(
        select x.id from gapless.dead_letters x
        where x.namespace_id = p_namespace_id
          and (p_subscription is null or x.subscription = p_subscription)
          and (p_channel is null or x.channel = p_channel) and (p_reason is null or x.reason = p_reason)
          and (p_ids is null or x.id = any(p_ids)) and (p_before is null or x.created_at < p_before)
        order by x.id limit p_limit for update skip locked));
end $$;

-- Removes these dead letters, which the caller has locked, with their copies; returns how many.
create or replace function gapless_internal.remove_letters(p_ids bigint[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    n integer;
begin
    with gone as (
        delete from gapless.dead_letters e where e.id = any(p_ids) returning e.kept_id
    ), forgotten as (
        delete from gapless.kept k using gone g where k.id = g.kept_id
    )
    select count(*) into n from gone;
    return n;
end $$;

-- Removes one dead letter; waits if another session holds it.
create or replace function gapless.delete_dead_letter(p_namespace_id integer, p_id bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    copy bigint;
begin
    delete from gapless.dead_letters e where e.namespace_id = p_namespace_id and e.id = p_id
    returning e.kept_id into copy;
    delete from gapless.kept k where k.id = copy;
    return copy is not null;
end $$;

-- Removes dead letters whose time is over, at most p_limit; returns how many. Those that are being replayed at the
-- moment are skipped.
create or replace function gapless_internal.remove_aged_letters(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return gapless_internal.remove_letters(array(
        select x.id from gapless.dead_letters x
        where x.remove_at <= clock_timestamp() order by x.remove_at limit p_limit for update skip locked));
end $$;
