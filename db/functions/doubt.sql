-- Finds the message that kills its members. A lease that ends without a word (stream gone, deadline passed)
-- puts the message in doubt: it, or one of those that its member held beside it, caused the end. Each of them
-- gets a company: a limit on how many messages a member that holds it may hold. The first time it is as many
-- as were held, then half as many each time. So messages in doubt are handed out again in ever smaller
-- company, the harmless ones are acked, and a message that ends a lease alone gets a strike. Only strikes and
-- nacks count towards max_deliver. Of n messages in one hand the one at fault is alone after log2(n) + 1 such
-- ends, whatever happens to the others. A member that goes away once has usually just been stopped: no
-- message gets a strike for that.
--
-- A stream is a member, and the claiming process says how many messages it holds. For pulls the member is
-- unknown: all pulls together count as one member, and only its messages in doubt are limited. Otherwise one
-- such message would stop all pulls.

-- Whether any message is in doubt. The flag p_doubt may be out of date.
create or replace function gapless_internal.doubts(p_subscription_id integer, p_doubt boolean) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_doubt and not exists (select from gapless.deliveries d
                               where d.subscription_id = p_subscription_id and d.company is not null) then
        update gapless.progress p set doubt = false where p.subscription_id = p_subscription_id;
        return false;
    end if;
    return p_doubt;
end $$;

-- The next company of a message with this company (null: none yet), when p_held messages were held.
create or replace function gapless_internal.less_company(p_company integer, p_held integer) returns integer
language sql immutable as $$
    select case when p_company is null then p_held else greatest(1, least(p_company, p_held) / 2) end
$$;

-- Leases whose deadline has passed, at most p_limit, and the company of each from now on. alone: the member
-- held only this message. The leases of a member end one after the other: only a lease that began after the
-- last silent end is known to have been alone.
create or replace function gapless_internal.judge_silence(s gapless.subscriptions, p_limit integer, p_now timestamptz)
returns table (message_id bigint, strikes integer, alone boolean, company integer)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with ended as materialized (
        select d.* from gapless.deliveries d
        where d.subscription_id = s.id and d.state = 0 and d.at <= p_now
        order by d.at, d.message_id limit p_limit
    ), hands as (
        select d.member, count(*)::integer as held from gapless.deliveries d
        where d.subscription_id = s.id and d.state = 0 and exists (select from ended)
        group by d.member
    ), pulled as (
        select count(*)::integer as doubted from gapless.deliveries d
        where d.subscription_id = s.id and d.company is not null and exists (select from ended)
    )
    select e.message_id, e.strikes,
           coalesce(e.company = 1, false)
           or h.held = 1 and e.lease > p.silent,
           gapless_internal.less_company(e.company, case when e.company is not null and e.member = 0 then pulled.doubted
                                                else h.held end)
    from ended e join hands h on h.member = e.member cross join pulled
    join gapless.progress p on p.subscription_id = s.id
$$;

-- Assigns messages that are due again to hands: ids in the order of handing out, the index in p_hands for
-- each, and which of p_hands are left for other messages. Messages in doubt come first, in the order in which
-- they became due, as far as a hand is small enough. If no stream's hand is small enough for the first of
-- them, no stream gets a message: the hands get smaller, and the first one small enough takes it.
create or replace function gapless_internal.seat(
    p_subscription_id integer, p_doubt boolean, p_now timestamptz, p_hands bigint[], p_places integer[],
    p_room integer, out ids bigint[], out seats integer[], out open integer[]
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    doubted record;
    fit record;
    others bigint[];
begin
    ids := '{}';
    seats := '{}';
    open := array(select generate_subscripts(p_hands, 1));
    if p_doubt then
        select array_agg(d.message_id order by d.at, d.message_id) as ids,
               array_agg(d.company order by d.at, d.message_id) as companies
        into doubted
        from (select d.message_id, d.at, d.company from gapless.deliveries d
              where d.subscription_id = p_subscription_id and d.state = 1 and d.at <= p_now and d.company is not null
              order by d.at, d.message_id limit p_room) d;
        if doubted.ids is not null then
            select * into fit from gapless_internal.seat_streams(doubted.companies, p_hands, p_places);
            ids := doubted.ids[:cardinality(fit.seats)];
            seats := fit.seats;
            open := fit.open;
            if 0 = any(p_hands) then
                select * into fit from gapless_internal.seat_pulls(
                    p_subscription_id, doubted.companies[cardinality(seats) + 1:], p_hands, open);
                ids := doubted.ids[:cardinality(seats) + cardinality(fit.seats)];
                seats := seats || fit.seats;
                open := fit.open;
            end if;
        end if;
    end if;
    others := array(
        select d.message_id from gapless.deliveries d
        where d.subscription_id = p_subscription_id and d.state = 1 and d.at <= p_now
          and (d.company is null or not p_doubt)
        order by d.at, d.message_id limit least(p_room - cardinality(ids), cardinality(open)));
    ids := ids || others;
    seats := seats || open[:cardinality(others)];
    open := open[cardinality(others) + 1:];
end $$;

-- As many of them as fit into a hand that is small enough for all of its messages together. It loops, because
-- joins of a thousand hands with themselves take a second.
create or replace function gapless_internal.seat_streams(
    p_companies integer[], p_hands bigint[], p_places integer[], out seats integer[], out open integer[]
) language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
declare
    largest constant integer := (select coalesce(max(x), 0) from unnest(p_places) x);
    -- How many places of streams there are at or below each.
    up_to integer[] := array_fill(0, array[largest + 1]);
    most integer := 2147483647;
    n integer := 0;
    small integer;
    given bigint[] := '{}';
begin
    seats := '{}';
    open := '{}';
    for i in 1 .. cardinality(p_hands) loop
        if p_hands[i] <> 0 then
            up_to[p_places[i] + 1] := up_to[p_places[i] + 1] + 1;
        end if;
    end loop;
    for i in 1 .. largest loop
        up_to[i + 1] := up_to[i + 1] + up_to[i];
    end loop;
    foreach small in array p_companies loop
        small := least(small, most);
        exit when n + 1 > up_to[least(small, largest) + 1];
        most := small;
        n := n + 1;
    end loop;
    for i in 1 .. cardinality(p_hands) loop
        if p_hands[i] <> 0 and p_places[i] <= most and cardinality(seats) < n then
            seats := seats || i;
            if not p_hands[i] = any(given) then
                given := given || p_hands[i];
            end if;
        end if;
    end loop;
    for i in 1 .. cardinality(p_hands) loop
        if p_hands[i] = 0 or n > 0 and not i = any(seats)
           and (p_places[i] <= most or not p_hands[i] = any(given)) then
            open := open || i;
        end if;
    end loop;
end $$;

-- The same for pulls: all messages in doubt that pulls hold are one company.
create or replace function gapless_internal.seat_pulls(
    p_subscription_id integer, p_companies integer[], p_hands bigint[], p_open integer[],
    out seats integer[], out open integer[]
) language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with slots as materialized (
        select o.seat, row_number() over (order by o.ord) as i
        from unnest(p_open) with ordinality as o (seat, ord) where p_hands[o.seat] = 0
    ), held as materialized (
        select count(*) as n, coalesce(min(d.company), 2147483647) as most from gapless.deliveries d
        where d.subscription_id = p_subscription_id and d.state = 0 and d.member = 0 and d.company is not null
    ), fit as materialized (
        select coalesce(max(c.i), 0) as n from (
            select c.i, min(c.company) over (order by c.i) as most
            from unnest(p_companies) with ordinality as c (company, i)) c, held
        where c.i + held.n <= least(c.most, held.most) and c.i <= (select count(*) from slots)
    ), seated as materialized (
        select x.seat from slots x, fit where x.i <= fit.n
    )
    select array(select y.seat from seated y order by y.seat),
           array(select o from unnest(p_open) o where not exists (select from seated y where y.seat = o) order by o)
$$;
