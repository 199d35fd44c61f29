-- Removes the caller's locks. KEYS: n locks, their n rows. ARGV: token.
local call, n = redis.call, #KEYS / 2
for i = 1, n do
  if call('GET', KEYS[i]) == ARGV[1] then
    call('DEL', KEYS[i])
    local row = call('GET', KEYS[n + i])
    local plain, found = string.gsub(row or '', '^000([1-9])', '%1')
    if found == 0 then
      plain, found = string.gsub(row or '', '^00([1-9])', '0%1')
    end
    if found == 0 then
      plain, found = string.gsub(row or '', '^H', 'h')
    end
    if found > 0 then
      call('SET', KEYS[n + i], plain, 'KEEPTTL')
    end
  end
end
return {1}
