-- name: messages
select m.id, c.name as channel, m.data ->> 'name' as name,
       case when c.name = any($2) then m.headers ->> 'gapless-journey' end as journey
from gapless.messages m
join gapless.channels c on c.id = m.channel_id
join gapless.namespaces n on n.id = c.namespace_id
where n.name = $1
order by m.id

-- name: letters
select e.subscription, e.channel, k.message_id, k.data ->> 'name' as name, e.reason,
       e.published ->> 'channel' as to_channel, (e.published ->> 'id')::bigint as to_id,
       (select sum((step ->> 'count')::integer) from json_array_elements(e.journey) step)::integer as hops,
       extract(epoch from e.created_at)::double precision as died_at
from gapless.dead_letters e
join gapless.kept k on k.id = e.kept_id
join gapless.namespaces n on n.id = e.namespace_id
where n.name = $1
order by e.id

-- name: rows
-- A kept copy without a dead letter has no namespace, and is counted in each.
with own as materialized (
    select s.id from gapless.subscriptions s join gapless.namespaces n on n.id = s.namespace_id where n.name = $1
)
select (select count(*) from gapless.deliveries d join own s on s.id = d.subscription_id) as deliveries,
       (select count(*) from gapless.settled_ahead a join own s on s.id = a.subscription_id
        join gapless.progress p on p.subscription_id = s.id where a.message_id > p.frontier) as settled_ahead,
       (select count(*) from gapless.kept k
        left join gapless.dead_letters e on e.kept_id = k.id
        left join gapless.namespaces n on n.id = e.namespace_id
        where n.name is null or n.name = $1) as kept
