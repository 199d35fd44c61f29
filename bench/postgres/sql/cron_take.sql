update cron.buckets set tokens = tokens - 1
where key = $1 and tokens > 0
returning tokens
