insert into tx.buckets (key, tokens, refilled_us)
select 'user:' || k, 1000000000, extract(epoch from clock_timestamp()) * 1000000 from generate_series(0, $1 - 1) as k
