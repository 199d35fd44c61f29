// The servers that the tests use, which whoever runs them has started: examples/node_test.go,
// or you. DATABASE_URL is an empty database; DIPWELL_URL a service whose admin token is TOKEN.
import { after } from "node:test";
import { drizzle } from "drizzle-orm/node-postgres";
import { sql } from "drizzle-orm";
import pg from "pg";
import postgres from "postgres";
import { Dipwell } from "dipwell";

export const url = process.env.DATABASE_URL;
export const service = process.env.DIPWELL_URL;
export const token = process.env.TOKEN;

export const pool = new pg.Pool({ connectionString: url, max: 4 });
const js = postgres(url, { max: 2, onnotice: () => {} });
after(async () => {
  await pool.end();
  await js.end();
});

/** A query of drizzle's, whose own statements have no $1. */
export const drizzled = (db) => (text, params) =>
  db.execute(sql.join(text.split(/\$\d+/).flatMap((part, i) => (i === 0 ? [] : [sql.param(params[i - 1])]).concat(sql.raw(part)))));

/** Every way to the limits. */
export const ways = {
  pg: Dipwell.sql((text, params) => pool.query(text, params)),
  "postgres.js": Dipwell.sql((text, params) => js.unsafe(text, params)),
  drizzle: Dipwell.sql(drizzled(drizzle(pool))),
  http: Dipwell.http(service, { token }),
};
await ways.pg.install();
