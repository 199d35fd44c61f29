insert into counter.buckets (key, n)
select 'user:' || k, 0 from generate_series(0, $1 - 1) as k
