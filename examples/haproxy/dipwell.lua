-- dipwell asks /v1/auth for a request and leaves the answer in variables of the
-- transaction: txn.dipwell is "allowed", "refused" or "unknown".
local function ask(txn, url)
    local res = core.httpclient():get{
        url = url,
        dst = "abns@dipwell-limiter",
        headers = { ["host"] = { "localhost" }, ["x-forwarded-for"] = { txn.sf:src() } },
        timeout = 2000, -- ms; the listener called limiter has the bound that matters
    }
    local answer = "unknown"
    if res and res.status == 200 then
        answer = "allowed"
    elseif res and res.status == 429 then
        answer = "refused"
    end
    txn:set_var("txn.dipwell", answer)
    for var, name in pairs{ retry_after = "retry-after", ratelimit = "ratelimit", ratelimit_policy = "ratelimit-policy" } do
        local values = res and res.headers and res.headers[name]
        if values then
            txn:set_var("txn." .. var, values[0])
        end
    end
end

core.register_action("dipwell", { "http-req" }, ask, 1)
