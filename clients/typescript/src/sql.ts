import { DipwellError, sqlError } from "./errors.js";
import type { Answer, AnswerOfAll, Checked, Decision, Held, Installed, Limit, Settled, Verb, Way } from "./types.js";
import { count, counted, interval, settings, snake, up, type Duration } from "./units.js";

type Row = Record<string, unknown>;

/**
 * Runs a statement, as pg's client.query, sql.unsafe of postgres.js and others do. Its text has
 * each of $1, $2, … once and in this order.
 */
export type Query = (text: string, params: any[]) => PromiseLike<{ rows: any[] } | Iterable<any>>;

// The types of parameters and columns are those that every driver can pass on: text, whole
// numbers, boolean, and seconds as a double, which holds the microseconds of 280 years.
const seconds = (column: string): string => `extract(epoch from ${column})::float8 as ${column}`;
const columns = `allowed, remaining, ${seconds("retry_after")}, ${seconds("reset_after")}, granted, ${seconds("delay")}, never, reservation`;
const settledColumns = `allowed, remaining, ${seconds("reset_after")}, granted, repeated`;

const take = (verb: Verb, args: string): string => `select ${columns} from dipwell.${verb}(${args})`;
const cost = "$1::text, $2::text, $3::bigint";
const verbs: Record<Verb, [text: string, params: (t: Checked) => unknown[]]> = {
  take: [take("take", `${cost}, $4::text, $5::bigint`), (t) => [t.limit, t.key, t.cost, t.plan, t.floor]],
  check: [take("check", `${cost}, $4::text, $5::bigint`), (t) => [t.limit, t.key, t.cost, t.plan, t.floor]],
  take_up_to: [take("take_up_to", `${cost}, $4::text`), (t) => [t.limit, t.key, t.cost, t.plan]],
  reserve: [take("reserve", `${cost}, $4::text`), (t) => [t.limit, t.key, t.cost, t.plan]],
  charge: [take("charge", cost), (t) => [t.limit, t.key, t.cost]],
  refund: [take("refund", cost), (t) => [t.limit, t.key, t.cost]],
  reset: [take("reset", cost), (t) => [t.limit, t.key, t.cost]],
};

/** The limits of a database, by the functions of the schema dipwell. */
export class Sql implements Way {
  readonly #query: Query;

  constructor(query: Query) {
    this.#query = query;
  }

  async one(verb: Verb, t: Checked): Promise<Answer> {
    const [text, params] = verbs[verb];
    return answer((await this.#rows(text, params(t)))[0]!, t);
  }

  async all(takes: Checked[]): Promise<AnswerOfAll> {
    const rows = await this.#rows(
      `select limit_name, key, ${columns} from dipwell.take_all($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::text[], $5::text::bigint[])`,
      lists(takes),
    );
    return decided(rows, takes);
  }

  async wait(t: Checked, timeoutMs: number, signal: AbortSignal | undefined): Promise<Answer> {
    for (const deadline = Date.now() + timeoutMs; ; ) {
      signal?.throwIfAborted();
      const a = await this.#attempt(t, Math.max(0, deadline - Date.now()));
      if (a.delayMs === 0) return a;
      const giveBack = async (): Promise<void> => (a.reservation === null ? undefined : this.cancel(a.reservation).catch(() => {})); // it may just have fallen due
      const late = a.delayMs - Math.max(0, deadline - Date.now());
      if (late > 0) { // the statement has waited for the row
        await giveBack();
        return { ...a, allowed: false, granted: 0, retryAfterMs: late, delayMs: 0, reservation: null };
      }
      try {
        signal?.throwIfAborted(); // meanwhile
        await sleep(a.delayMs, signal);
      } catch (e) {
        await giveBack();
        throw e;
      }
      if (a.allowed) return { ...a, delayMs: 0, reservation: null, resetAfterMs: Math.max(0, a.resetAfterMs! - a.delayMs) };
    }
  }

  /** #attempt reserves within the time that is left. A refusal with a delay says when to try again. */
  async #attempt(t: Checked, leftMs: number): Promise<Answer> {
    if (t.floor === null) {
      const text = take("reserve", `${cost}, $4::text, $5::text::interval`);
      return answer((await this.#rows(text, [t.limit, t.key, t.cost, t.plan, `${leftMs} milliseconds`]))[0]!, t);
    }
    const seen = await this.one("check", t); // a check begins no block
    const a = seen.allowed ? await this.one("take", t) : seen;
    if (a.allowed || a.retryAfterMs === null) return a;
    return { ...a, delayMs: a.retryAfterMs <= leftMs ? a.retryAfterMs : 0, retryAfterMs: Math.max(0, a.retryAfterMs - leftMs) };
  }

  async hold(takes: Checked[], several: boolean, ttl: Duration, id: string | null): Promise<Held> {
    const held = `${columns}, hold, ${seconds("expires")}, repeated`;
    const [t] = takes as [Checked];
    const [limits, keys, costs, plans, floors] = lists(takes);
    const rows = several
      ? await this.#rows(
          `select limit_name, key, ${held} from dipwell.hold_all($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::interval, $5::text, $6::text::text[], $7::text::bigint[])`,
          [limits, keys, costs, interval("ttl", ttl), id, plans, floors],
        )
      : await this.#rows(
          `select ${held} from dipwell.hold($1::text, $2::text, $3::bigint, $4::text::interval, $5::text, $6::text, $7::bigint)`,
          [t.limit, t.key, t.cost, interval("ttl", ttl), id, t.plan, t.floor],
        );
    const a = several ? decided(rows, takes) : answer(rows[0]!, t);
    const r = rows[0]!;
    return { ...a, hold: a.allowed ? (r["hold"] as string) : null, expires: a.allowed ? time(r["expires"]) : null, repeated: r["repeated"] === true };
  }

  async settle(hold: string, costs: number[] | null, several: boolean): Promise<Settled> {
    if (!several) {
      const rows = await this.#rows(`select ${settledColumns} from dipwell.settle($1::text, $2::bigint)`, [hold, costs?.[0] ?? null]);
      return settled(rows[0]!);
    }
    const rows = await this.#rows(`select ${settledColumns} from dipwell.settle_all($1::text, $2::text::bigint[])`, [hold, array(costs!)]);
    const limits = rows.map(settled);
    return { ...deciding(limits), limits };
  }

  async extend(hold: string, ttl: Duration): Promise<Date> {
    const rows = await this.#rows(`select ${seconds("expires")} from dipwell.extend($1::text, $2::text::interval) expires`, [hold, interval("ttl", ttl)]);
    return time(rows[0]!["expires"]);
  }

  async cancel(reservation: string): Promise<void> {
    await this.#rows("select from dipwell.cancel($1::text::uuid)", [reservation]);
  }

  async ready(limit: string, keys: string[], cost: number, plan: string | null): Promise<string[]> {
    const rows = await this.#rows("select key from dipwell.ready($1::text, $2::text::text[], $3::bigint, $4::text)", [limit, array(keys), cost, plan]);
    return rows.map((r) => r["key"] as string);
  }

  async define(name: string, limit: Limit): Promise<void> {
    const given = Object.entries(limit).filter(([, value]) => value !== undefined);
    const args = given.map(([setting], i) => {
      const type = types[setting as keyof Limit];
      if (type === undefined) throw new DipwellError(setting, "is no setting that a limit has in SQL");
      return `${snake(setting)} => $${i + 2}::${type}`;
    });
    const values = given.map(([setting, value]) => valueOf(setting as keyof Limit, value));
    await this.#rows(`select from dipwell.define(${["$1::text", ...args].join(", ")})`, [name, ...values]);
  }

  async install(): Promise<Installed> {
    const { install } = await import("./install.js");
    return install((text, params) => this.#rows(text, params));
  }

  async #rows(text: string, params: unknown[]): Promise<Row[]> {
    let result;
    try {
      result = await this.#query(text, params);
    } catch (e) {
      throw sqlError(e, text);
    }
    return "rows" in result ? result.rows : [...result];
  }
}

/** The types of define's arguments. */
const types: Partial<Record<keyof Limit, string>> = {
  rate: "bigint", per: "text::interval", burst: "bigint", algorithm: "text", maxDebt: "bigint", start: "text", onChange: "text", mode: "text", plans: "text::jsonb",
  parent: "text", parts: "bigint", shared: "boolean", ttl: "text::interval", onExpire: "text", shards: "bigint",
  usage: "boolean", block: "text::interval",
};

function valueOf(setting: keyof Limit, value: unknown): unknown {
  switch (types[setting]) {
    case "bigint":
      return count(setting, value);
    case "text::interval":
      return interval(setting, value as Duration);
    case "text::jsonb":
      return JSON.stringify((settings({ [setting]: value }, "") as Record<string, unknown>)[setting]);
  }
  return value;
}

/** array writes a list as PostgreSQL's text of an array, which every driver can pass on. */
function array(list: (string | number | null)[]): string {
  const entry = (v: string | number | null): unknown => (typeof v === "string" ? `"${v.replace(/["\\]/g, "\\$&")}"` : (v ?? "null"));
  return `{${list.map(entry).join(",")}}`;
}

const lists = (takes: Checked[]): string[] =>
  (["limit", "key", "cost", "plan", "floor"] as const).map((member) => array(takes.map((t) => t[member])));

function decision(r: Row): Decision {
  return {
    allowed: r["allowed"] === true,
    remaining: counted("remaining", r["remaining"]),
    retryAfterMs: wait(r["retry_after"]),
    resetAfterMs: wait(r["reset_after"]),
    granted: counted("granted", r["granted"]),
    never: r["never"] === true,
    delayMs: wait(r["delay"]) ?? 0,
    reservation: (r["reservation"] as string | null | undefined) ?? null,
    at: Date.now(),
  };
}

const answer = (r: Row, { limit, key, cost }: Checked): Answer => Object.assign(decision(r), { limit, key, cost });

const settled = (r: Row): Settled => ({ ...decision(r), repeated: r["repeated"] === true });

/**
 * decided returns the answers of several limits under that of the one that decides. After those
 * of the takes come those of parents, of whose cost a refusal says nothing.
 */
function decided(rows: Row[], takes: Checked[]): AnswerOfAll {
  const limits = rows.map(decision).map((d, i) => ({ ...d, limit: rows[i]!["limit_name"] as string, key: rows[i]!["key"] as string | null, cost: takes[i]?.cost ?? d.granted }));
  return { ...deciding(limits), limits };
}

/** deciding returns the refusal with the latest retry, or else the answer with the fewest remaining. */
function deciding<D extends Decision>(list: D[]): D {
  const weight = (d: D): number => (d.allowed ? -d.remaining : (d.retryAfterMs ?? Infinity));
  return list.reduce((a, b) => (a.allowed && !b.allowed || a.allowed === b.allowed && weight(b) > weight(a) ? b : a));
}

/** wait returns seconds as whole milliseconds, or null. */
const wait = (value: unknown): number | null => (value === null || value === undefined ? null : up(Math.round(Number(value) * 1e6)));

const time = (value: unknown): Date => new Date(Number(value) * 1000);

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
