-- calls: create_key(7), revoke_key(2), require_credentials(0), open_installation(0)

-- name: keys_state
select l.credentials_required, l.keys_version from gapless.log l

-- name: keys
select k.id, n.name as namespace, k.name, k.digest, k.grants, k.operator, k.created_at, k.expires_at
from gapless.keys k join gapless.namespaces n on n.id = k.namespace_id order by k.created_at, k.id
