update cron.buckets set tokens = least(tokens + 300, 1000000000)
where tokens < 1000000000
