-- Replaces a row by the same row of a later version of its limit, unless it was changed in
-- the meantime, and then does what lengthen.lua does.
--
-- KEYS: the row. ARGV: time (µs), the row's old text and its new one. Returns -1 if it was changed.
if call('GET', KEYS[1]) ~= ARGV[2] then
  return {-1}
end
call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
