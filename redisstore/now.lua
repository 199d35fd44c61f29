-- Returns the server's time. KEYS: the hash of limits.
return {now}
