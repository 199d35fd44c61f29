// The store in hono-rate-limiter itself.
import assert from "node:assert/strict";
import { it } from "node:test";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { DipwellStore } from "dipwell/hono";
import { ways } from "./servers.mjs";

for (const [way, dipwell] of Object.entries(ways)) {
  it(`${way}: limits a route of hono`, async () => {
    const store = new DipwellStore({ dipwell, prefix: `hono-${way}` });
    const app = new Hono();
    app.use(rateLimiter({ windowMs: 3_600_000, limit: 2, keyGenerator: (c) => c.req.header("x-user"), store, skipFailedRequests: true }));
    app.get("/ok", (c) => c.text("hello"));
    app.get("/bad", (c) => c.text("no", 400));
    const get = (path, user) => app.request(path, { headers: { "x-user": user } });
    for (let i = 0; i < 3; i++) assert.equal((await get("/bad", "ann")).status, 400);
    assert.equal((await get("/ok", "ann")).headers.get("ratelimit-remaining"), "1");
    assert.equal((await get("/ok", "ann")).status, 200);
    const refused = await get("/ok", "ann");
    assert.equal(refused.status, 429);
    assert.ok(Number(refused.headers.get("retry-after")) > 0);
    assert.equal((await get("/ok", "bob")).status, 200);
    assert.equal((await store.get("ann")).totalHits, 3); // with the refused one
    await store.resetKey("ann");
    assert.equal((await get("/ok", "ann")).status, 200);
  });
}
