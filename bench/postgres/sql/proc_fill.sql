insert into proc.buckets (key, tokens, refilled)
select 'user:' || k, 1000000000, now() from generate_series(0, $1 - 1) as k
