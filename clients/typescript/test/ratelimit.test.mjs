// The surface of pg-ratelimit and of Upstash's ratelimit, as their documentation uses it.
import assert from "node:assert/strict";
import { it } from "node:test";
import { Ratelimit } from "dipwell/ratelimit";
import { pool, ways } from "./servers.mjs";

/** near checks a time in Unix milliseconds. */
const near = (reset, ms) => assert.ok(Number.isInteger(reset) && reset > Date.now() - 600_000 && reset <= Date.now() + ms, `${reset}`);

it("takes the pool of pg-ratelimit's examples, and installs the schema", async () => {
  const name = "of_pool";
  await pool.query(`create database ${name}`);
  const own = new pool.constructor({ ...pool.options, connectionString: undefined, ...parts(name) });
  const ratelimit = new Ratelimit({ pool: own, limiter: Ratelimit.slidingWindow(3, "1m"), prefix: "api", durable: false, debug: false, inMemoryBlock: true });
  for (const remaining of [2, 1, 0]) {
    const r = await ratelimit.limit("user:123");
    assert.deepEqual([r.success, r.limit, r.remaining], [true, 3, remaining]);
  }
  const refused = await ratelimit.limit("user:123");
  assert.deepEqual([refused.success, refused.remaining], [false, 0]);
  near(refused.reset, 120_000);
  await own.end();
});

const parts = (database) => {
  const u = new URL(process.env.DATABASE_URL);
  return { host: u.hostname, port: Number(u.port), user: u.username, database };
};

for (const [way, dipwell] of Object.entries(ways)) {
  const prefix = `@upstash/ratelimit:${way}`;

  it(`${way}: limits by each algorithm`, async () => {
    for (const [i, limiter] of [Ratelimit.fixedWindow(10, "10 s"), Ratelimit.slidingWindow(10, 10_000), Ratelimit.tokenBucket(5, "10 s", 10)].entries()) {
      const ratelimit = new Ratelimit({ dipwell, limiter, analytics: true, prefix: `${prefix}:${i}` });
      const { success, limit, remaining, reset, pending } = await ratelimit.limit("api", { rate: 4 });
      assert.deepEqual([success, limit, remaining], [true, 10, 6]);
      near(reset, 20_000);
      await pending;
      assert.equal((await ratelimit.limit("api", { rate: 7 })).success, false);
      assert.equal((await ratelimit.getRemaining("other")).remaining, 10);
    }
  });

  it(`${way}: gives back, resets and shows`, async () => {
    const ratelimit = new Ratelimit({ dipwell, limiter: Ratelimit.fixedWindow(10, "1h"), prefix: `${prefix}:back` });
    await ratelimit.limit("u", { rate: 8 });
    assert.equal((await ratelimit.limit("u", { rate: -3 })).remaining, 5);
    const { remaining, limit, reset } = await ratelimit.getRemaining("u");
    assert.deepEqual([remaining, limit], [5, 10]);
    near(reset, 3_600_000);
    await ratelimit.resetUsedTokens("u");
    assert.equal((await ratelimit.getRemaining("u")).remaining, 10);
  });

  it(`${way}: blocks until there is a token`, async () => {
    const ratelimit = new Ratelimit({ dipwell, limiter: Ratelimit.tokenBucket(20, "1s", 2) });
    await ratelimit.limit(prefix, { rate: 2 });
    assert.equal((await ratelimit.blockUntilReady(prefix, 60_000, { rate: 2 })).success, true);
    const slow = new Ratelimit({ dipwell, limiter: Ratelimit.fixedWindow(1, "1d") });
    await slow.limit(prefix);
    assert.equal((await slow.blockUntilReady(prefix, 100)).success, false);
  });
}

it("refuses what it cannot do", async () => {
  const dipwell = ways.pg;
  const limiter = Ratelimit.fixedWindow(1, "1m");
  assert.throws(() => new Ratelimit({ dipwell, limiter, timeout: 1000 }), /^DipwellError: timeout: is not supported/);
  assert.throws(() => new Ratelimit({ dipwell, limiter, clock: () => new Date() }), /clock/);
  assert.throws(() => new Ratelimit({ limiter }), /dipwell: is needed/);
  assert.throws(() => new Ratelimit({ dipwell }), /limiter: is missing/);
  assert.throws(() => Ratelimit.fixedWindow(1.5, "1m"), /tokens: 1.5/);
  assert.throws(() => Ratelimit.fixedWindow(0, "1m"), /tokens: 0 is less than 1/);
  assert.throws(() => Ratelimit.slidingWindow(1, "a while"), /window: "a while"/);
  const elsewhere = new Ratelimit({ dipwell, limiter, prefix: "defined-later", define: false });
  await assert.rejects(elsewhere.limit("k"), (e) => e.field === "limit");
  await dipwell.define("defined-later", { rate: 7, per: "1m" });
  assert.equal((await elsewhere.limit("k")).remaining, 6);
});
