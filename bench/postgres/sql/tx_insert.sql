insert into tx.buckets (key, tokens, refilled_us)
values ($1, 1000000000, $2)
on conflict do nothing
