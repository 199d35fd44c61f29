// Compiled, and not run: the types of this package fit those of others.
import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { rateLimit, type Store } from "express-rate-limit";
import { rateLimiter, type Store as HonoStore } from "hono-rate-limiter";
import pg from "pg";
import postgres from "postgres";
import { Dipwell, DipwellError, Hold, install, predict, type Answer, type Limit, type Query } from "dipwell";
import { DipwellStore } from "dipwell/express";
import { DipwellStore as OfHono } from "dipwell/hono";
import { Ratelimit } from "dipwell/ratelimit";
import { usePrediction } from "dipwell/react";

const pool = new pg.Pool();
const js = postgres();
const d: Dipwell = Dipwell.sql((text, params) => pool.query(text, params));
export const ways: Dipwell[] = [
  d,
  Dipwell.sql((text, params) => js.unsafe(text, params)),
  Dipwell.sql((text) => drizzle(pool).execute(sql.raw(text))),
  Dipwell.http("http://127.0.0.1:8080", { token: "t" }),
];
export const prisma = (client: { $queryRawUnsafe<T>(text: string, ...params: unknown[]): PromiseLike<T> }): Query =>
  (text, params) => client.$queryRawUnsafe<unknown[]>(text, ...params);

export const stores: [Store, HonoStore] = [new DipwellStore({ dipwell: d }), new OfHono({ dipwell: d })];
export const limiters = [rateLimit({ store: new DipwellStore({ dipwell: d }) }), rateLimiter({ store: new OfHono({ dipwell: d }), keyGenerator: () => "k" })];
export const limiter = new Ratelimit({ pool, limiter: Ratelimit.slidingWindow(10, "1m"), prefix: "api", durable: false, analytics: true, inMemoryBlock: true });

export async function uses(limit: Limit): Promise<number | null> {
  await install(pool);
  await d.define("login", limit);
  const r: Answer = await d.take("login", "user:7", { cost: 1, plan: "pro", floor: 0 });
  const h: Hold = await d.hold("tokens", "acme", 3000, { ttl: "2m", id: "req-81" });
  const field: string | null = new DipwellError("cost", "is missing").field;
  // @ts-expect-error A key is a text.
  await d.take("login", 7);
  // @ts-expect-error No such setting.
  await d.define("login", { brust: 7 });
  return field === null ? usePrediction(r, { rate: 5, per: "1m" }).retryAfterMs : predict(await h.settle(3).then(() => r)).retryAfterMs;
}
