-- calls: put_ticket(5)

-- name: take_ticket
select t.namespace, t.holder from gapless.take_ticket($1) t
