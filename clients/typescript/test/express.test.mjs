// The store in express-rate-limit itself, in an app of express that listens.
import assert from "node:assert/strict";
import { it } from "node:test";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { DipwellStore } from "dipwell/express";
import { ways } from "./servers.mjs";

/** serve calls f with get, which asks an app whose requests the options limit. */
async function serve(options, f) {
  const app = express();
  const limiter = rateLimit({ windowMs: 3_600_000, limit: 2, standardHeaders: "draft-8", legacyHeaders: false, keyGenerator: (q) => q.get("x-user"), ...options });
  app.use(limiter);
  app.get("/ok", (q, r) => r.json({ used: q.rateLimit?.used, remaining: q.rateLimit?.remaining }));
  app.get("/bad", (_, r) => r.status(500).end());
  app.use((e, _q, r, _next) => r.status(503).end(e.message));
  const server = await new Promise((listens) => {
    const s = app.listen(0, "127.0.0.1", () => listens(s));
  });
  const get = async (path, user) => {
    const r = await fetch(`http://127.0.0.1:${server.address().port}${path}`, { headers: { "x-user": user } });
    return { status: r.status, text: await r.text(), retry: r.headers.get("retry-after") };
  };
  try {
    await f(get, limiter);
  } finally {
    server.closeAllConnections();
    await new Promise((closed) => server.close(closed));
  }
}

/** eventually calls f until it returns a value, as after an answer was sent. */
async function eventually(f, want) {
  for (const end = Date.now() + 60_000; ; await new Promise((r) => setTimeout(r, 5))) {
    const got = await f();
    if (got === want || Date.now() > end) return assert.equal(got, want);
  }
}

for (const [way, dipwell] of Object.entries(ways)) {
  const store = (prefix) => new DipwellStore({ dipwell, prefix: `rl:${way}:${prefix}` });

  it(`${way}: limits, shows and resets a key`, () =>
    serve({ store: store("plain") }, async (get, limiter) => {
      assert.deepEqual(JSON.parse((await get("/ok", "ann")).text), { used: 1, remaining: 1 });
      assert.equal((await get("/ok", "ann")).status, 200);
      const refused = await get("/ok", "ann");
      assert.equal(refused.status, 429);
      assert.ok(Number(refused.retry) > 0 && Number(refused.retry) <= 3600);
      assert.equal((await get("/ok", "bob")).status, 200);
      const seen = await limiter.getKey("ann");
      assert.equal(seen.totalHits, 3);
      assert.ok(seen.resetTime > new Date());
      assert.equal(await limiter.getKey("nobody"), undefined);
      await limiter.resetKey("ann");
      await eventually(async () => (await limiter.getKey("ann"))?.totalHits, undefined);
      assert.equal((await get("/ok", "ann")).status, 200);
    }));

  it(`${way}: does not count failed requests, nor gives tokens to refused ones`, () =>
    serve({ store: store("failed"), skipFailedRequests: true }, async (get, limiter) => {
      const hits = async () => (await limiter.getKey("ann"))?.totalHits;
      for (let i = 0; i < 4; i++) {
        assert.equal((await get("/bad", "ann")).status, 500);
        await eventually(hits, undefined);
      }
      assert.equal((await get("/ok", "ann")).status, 200);
      assert.equal((await get("/ok", "ann")).status, 200);
      for (let i = 0; i < 3; i++) {
        assert.equal((await get("/ok", "ann")).status, 429);
        await eventually(hits, 2);
      }
    }));

  it(`${way}: has limits that a function chooses`, () =>
    serve({ store: store("chosen"), limit: (q) => (q.get("x-user") === "pro" ? 3 : 1) }, async (get) => {
      const statuses = async (user) => [(await get("/ok", user)).status, (await get("/ok", user)).status];
      assert.deepEqual([await statuses("ann"), await statuses("pro")], [[200, 429], [200, 200]]);
    }));
}

it("passes on errors, and tries again", async () => {
  let away = true;
  const dipwell = { define: () => (away ? Promise.reject(new Error("away")) : Promise.resolve()), take: (...args) => ways.pg.take(...args) };
  await ways.pg.define("away.3600000ms", { algorithm: "fixed_window", rate: 2 ** 40, per: "1h", start: "first_call" });
  const store = () => new DipwellStore({ dipwell, prefix: "away" });
  await serve({ store: store() }, async (get) => {
    const failed = await get("/ok", "ann");
    assert.deepEqual([failed.status, failed.text], [503, "away"]);
    away = false;
    assert.equal((await get("/ok", "ann")).status, 200);
  });
  away = true;
  await serve({ store: store(), passOnStoreError: true, logger: { error() {}, warn() {}, info() {}, debug() {} } }, async (get) => {
    assert.equal((await get("/ok", "ann")).status, 200);
  });
});
