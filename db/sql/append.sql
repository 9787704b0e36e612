-- name: append
-- A fence that this statement itself puts up, or waits for, is not in its snapshot: epoch and base are null.
select a.ids, a.seqs, a.channel_ids, a.last_ids, a.last_seqs, a.statuses, a.answers, a.appended_at, a.expires_at,
       a.fences, f.epoch::text as epoch, f.base
from gapless.append_messages($1, $2, $3, $4, $5, $6, $7, $8, $9::text::integer[], $10::text::integer[], $11, $12,
                             $13, $14, $15, $16, $17, $18, $19, $20::text::boolean[]) a
left join gapless.fences f on f.number = a.fences
