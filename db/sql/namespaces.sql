-- calls: ensure_namespace(1), put_namespace(2), empty_namespace(2), remove_namespace(1), delete_some_channels(2)

-- name: namespaces
select id, name, shared from gapless.namespaces

-- name: described_namespaces
select n.name, n.limits, n.shared from gapless.namespaces n order by n.name collate "C"
