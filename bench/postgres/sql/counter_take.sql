insert into counter.buckets as c (key, n) values ($1, 1)
on conflict (key) do update set n = c.n + 1
returning n
