-- Makes a key live at least until a time (µs). KEYS: the key. ARGV: time.
prolong(KEYS[1], tonumber(ARGV[1]))
return {0}
