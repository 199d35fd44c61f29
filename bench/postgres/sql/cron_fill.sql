insert into cron.buckets (key, tokens)
select 'user:' || k, $1 from generate_series(0, $2 - 1) as k
