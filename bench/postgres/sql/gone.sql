-- Makes empty buckets that stay empty, for the keys 0 to $1.
insert into cron.buckets (key, tokens) select 'gone:user:' || k, 0 from generate_series(0, $1) as k;
insert into proc.buckets (key, tokens, refilled) select 'gone:user:' || k, -1, now() from generate_series(0, $1) as k;
insert into tx.buckets (key, tokens, refilled_us)
select 'gone:user:' || k, -1e9, extract(epoch from clock_timestamp()) * 1000000 from generate_series(0, $1) as k;
insert into counter.buckets (key, n) select 'gone:user:' || k, 1000000000 from generate_series(0, $1) as k;
