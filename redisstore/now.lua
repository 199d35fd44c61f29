-- The clock by which the limits begin. KEYS: the hash of limits.
return {now}
