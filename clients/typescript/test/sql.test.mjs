import assert from "node:assert/strict";
import { it } from "node:test";
import { inspect } from "node:util";
import { drizzle } from "drizzle-orm/node-postgres";
import pg from "pg";
import postgres from "postgres";
import { Dipwell, DipwellError, install } from "dipwell";
import { drizzled, pool, url, ways } from "./servers.mjs";

const { pg: d } = ways;
const over = (client) => Dipwell.sql((text, params) => client.query(text, params));

/** database makes an empty database and returns its URL. */
async function database(name) {
  await pool.query(`create database ${name}`);
  return Object.assign(new URL(url), { pathname: `/${name}` }).href;
}

/** connected calls f with a client. */
async function connected(options, f) {
  const client = new pg.Client(options);
  await client.connect();
  try {
    return await f(client);
  } finally {
    await client.end();
  }
}

it("takes in the caller's transaction", async () => {
  await d.define("orders", { rate: 2, per: "1h" });
  const left = async (key) => (await d.check("orders", key)).remaining;
  const client = await pool.connect();
  await client.query("begin");
  assert.equal((await over(client).take("orders", "pg")).remaining, 1);
  await client.query("rollback");
  client.release();
  assert.equal(await left("pg"), 2);

  const sql = postgres(url);
  const failed = (tx) => Dipwell.sql((text, params) => tx.unsafe(text, params)).take("orders", "js").then(() => Promise.reject(new Error("the order failed")));
  await assert.rejects(sql.begin(failed), /the order failed/);
  await sql.end();
  assert.equal(await left("js"), 2);

  await assert.rejects(drizzle(pool).transaction(async (tx) => {
    await Dipwell.sql(drizzled(tx)).take("orders", "drizzle");
    tx.rollback();
  }));
  assert.equal(await left("drizzle"), 2);
});

it("installs once, in one transaction, also at the same time", async () => {
  const fresh = await database("fresh");
  await connected(fresh, (a) => connected(fresh, async (b) => {
    await a.query("begin; set local search_path = public");
    const rolledBack = await install(a);
    assert.ok(rolledBack.installed && rolledBack.version > 0);
    assert.equal((await a.query("show search_path")).rows[0].search_path, "public");
    await a.query("rollback");
    const both = await Promise.all([install(a), install(b)]);
    assert.ok(both.some((i) => i.installed));
    assert.match(both[0].lacks.join(), /pg_cron.*sweep/);
    await over(b).define("login", { rate: 2, per: "1h" });
    assert.equal((await over(a).take("login", "k")).remaining, 1);
    assert.deepEqual(await install(b), { ...both[0], installed: false });
    assert.equal((await over(b).check("login", "k")).remaining, 1);

    await b.query("insert into dipwell.migrations (version, name) values (99, 'later')");
    await assert.rejects(install(a), (e) => e.field === "schema" && /has version 99.*migrate up/.test(e.reason));
  }));
});

it("says which right it lacks", async () => {
  await pool.query("create role poor login");
  const fresh = await database("poor");
  const poor = Object.assign(new URL(fresh), { username: "poor" }).href;
  const denied = (reason) => (e) => e instanceof DipwellError && e.code === "42501" && e.field === null && reason.test(e.reason);
  await connected(poor, async (client) => {
    await assert.rejects(install(client), denied(/permission denied for database poor/));
    assert.ok(inspect(await install(client).catch((e) => e)).length < 5000, "the error has the whole schema");
  });
  await pool.query("create role owner login");
  await pool.query("alter database poor owner to owner");
  await connected(Object.assign(new URL(fresh), { username: "owner" }).href, async (client) => {
    assert.equal((await install(client)).installed, true);
    await over(client).define("login", { rate: 2, per: "1h" });
  });
  await pool.query("grant dipwell_app to poor");
  await connected(poor, async (client) => {
    assert.deepEqual(await install(client), { version: null, installed: false, lacks: [] });
    assert.equal((await over(client).take("login", "k")).remaining, 1);
    await assert.rejects(over(client).define("login", { rate: 3, per: "1h" }), denied(/permission denied for function define/));
  });
});

it("passes on the code of other errors", async () => {
  await d.define("busy", { rate: 9, per: "1h" });
  const clients = [await pool.connect(), await pool.connect()];
  for (const c of clients) {
    await c.query("begin isolation level serializable");
    await c.query("select 1");
  }
  await over(clients[0]).take("busy", "k");
  const second = over(clients[1]).take("busy", "k");
  const lost = assert.rejects(second, (e) => e instanceof DipwellError && e.code === "40001" && e.field === null && e.cause instanceof Error);
  await clients[0].query("commit");
  await lost;
  await clients[1].query("rollback");
  for (const c of clients) c.release();

  for (const cause of [Object.assign(new Error("write EPIPE"), { code: "EPIPE" }), Object.assign(new Error("no server"), { code: "P1001" })]) {
    const gone = Dipwell.sql(() => Promise.reject(cause));
    await assert.rejects(gone.take("busy", "k"), (e) => e instanceof DipwellError && e.code === null && e.reason === cause.message && e.cause === cause);
  }
});

// A statement may wait for a row longer than the caller wants to.
it("gives back what is due too late", async () => {
  for (const reservation of ["511c8973-c2dc-461a-a9a7-27e82829e767", null]) {
    const cancelled = [];
    const slow = Dipwell.sql(async (text, params) => {
      if (/cancel/.test(text)) return cancelled.push(...params) && [];
      await new Promise((r) => setTimeout(r, 60));
      return [{ allowed: reservation !== null, remaining: 0, retry_after: null, reset_after: 3600, granted: reservation ? 1 : 0, delay: 0.05, never: false, reservation }];
    });
    const a = await slow.wait("jobs", "k", { timeout: 50 });
    assert.deepEqual([a.allowed, a.granted, a.retryAfterMs, a.delayMs, a.reservation, cancelled], [false, 0, 50, 0, null, reservation ? [reservation] : []]);
  }
});

// The error of Prisma 7, which is too large to be installed here, and that of Prisma 6.
it("finds what PostgreSQL said in an error of Prisma", async () => {
  const [code, message] = ["22023", "cost: -1 is not between 0 and 2^53-1"];
  for (const meta of [{ code, message }, { driverAdapterError: { name: "DriverAdapterError", cause: { kind: "postgres", originalCode: code, originalMessage: message } } }]) {
    const prisma = Dipwell.sql(() => Promise.reject(Object.assign(new Error("Raw query failed"), { code: "P2010", meta })));
    await assert.rejects(prisma.take("login", "k", { cost: -1 }), (e) => e.field === "cost" && e.code === code && e.reason === "-1 is not between 0 and 2^53-1");
  }
});

it("refuses a count that a number does not hold", async () => {
  const row = { allowed: true, remaining: "9007199254740993", retry_after: null, reset_after: 0, granted: "1", delay: 0, never: false, reservation: null };
  const big = Dipwell.sql(async () => [row]);
  await assert.rejects(big.take("login", "k"), (e) => e.field === "remaining" && /2\^53-1/.test(e.reason));
  row.remaining = 9007199254740991n;
  assert.equal((await big.take("login", "k")).remaining, Number.MAX_SAFE_INTEGER);
});
