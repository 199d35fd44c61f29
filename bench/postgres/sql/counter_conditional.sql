update counter.buckets set n = n + 1
where key = $1 and n < 1000000000
returning n
