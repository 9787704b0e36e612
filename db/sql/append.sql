-- name: append
select ids, seqs, channel_ids, last_ids, last_seqs, statuses, answers, appended_at, expires_at, fences
from gapless.append($1, $2, $3, $4, $5, $6, $7, $8, $9::text::integer[], $10::text::integer[], $11, $12, $13, $14, $15, $16, $17)

-- name: namespaces
select id, name from gapless.namespaces
