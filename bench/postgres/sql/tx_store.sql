insert into tx.buckets (key, tokens, refilled_us)
values ($1, $2, $3)
on conflict (key) do update set tokens = excluded.tokens, refilled_us = excluded.refilled_us
