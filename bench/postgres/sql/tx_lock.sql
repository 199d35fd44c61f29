select tokens, refilled_us from tx.buckets where key = $1 for update
