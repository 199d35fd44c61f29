-- Makes a key live at least until a time (µs). KEYS: the key. ARGV: time.
local till = longer(KEYS[1], tonumber(ARGV[1]))
if till then
  call('PEXPIREAT', KEYS[1], expiry(till))
end
return {0}
