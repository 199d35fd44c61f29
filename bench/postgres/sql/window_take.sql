insert into windowed.counters as c (key, since, n) values ($1, date_trunc('hour', now()), 1)
on conflict (key, since) do update set n = c.n + 1
returning n
