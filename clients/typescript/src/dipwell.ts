import { DipwellError } from "./errors.js";
import { Http, type HttpOptions } from "./http.js";
import { Sql, type Query } from "./sql.js";
import type {
  Answer, AnswerOfAll, Checked, CostOptions, Held, HoldOptions, Installed, Limit, Settled, Take, TakeOptions, Verb, WaitOptions, Way,
} from "./types.js";
import { count, list, milliseconds, object, text, type Duration } from "./units.js";

/**
 * Limits in a PostgreSQL database, or behind `dipwell serve`. A refusal is an answer; whatever
 * else goes wrong is a DipwellError. A key that is null or undefined is for limits that are
 * shared, and only for them.
 */
export class Dipwell {
  readonly #way: Way;

  private constructor(way: Way) {
    this.#way = way;
  }

  /**
   * Calls functions in SQL. A call is part of the transaction that query runs in: a rollback
   * gives the tokens back.
   * @param query Runs a statement with parameters $1, $2, …, and returns rows or {rows}.
   */
  static sql(query: Query): Dipwell {
    return new Dipwell(new Sql(query));
  }

  /** Calls a service at an address such as http://127.0.0.1:8080. */
  static http(url: string | URL, options: HttpOptions = {}): Dipwell {
    return new Dipwell(new Http(String(url), options));
  }

  /** Takes tokens if all are there. */
  take(limit: string, key?: string | null, options: TakeOptions = {}): Promise<Answer> {
    return this.#one("take", limit, key, options);
  }

  /** Answers as take would, and changes nothing. */
  check(limit: string, key?: string | null, options: TakeOptions = {}): Promise<Answer> {
    return this.#one("check", limit, key, options);
  }

  /** Takes as many whole tokens as there are, at least one and at most cost: see granted. */
  takeUpTo(limit: string, key?: string | null, options: CostOptions = {}): Promise<Answer> {
    return this.#one("take_up_to", limit, key, options);
  }

  /** Takes tokens in advance, into debt: act after delayMs, or cancel the reservation. */
  reserve(limit: string, key?: string | null, options: CostOptions = {}): Promise<Answer> {
    return this.#one("reserve", limit, key, options);
  }

  /** Takes tokens even if they are not there, for a cost that is known only afterwards. */
  async charge(limit: string, key: string | null | undefined, cost: number): Promise<Answer> {
    return this.#one("charge", limit, key, { cost: count("cost", cost) });
  }

  /** Gives tokens back, up to a full bucket. */
  async refund(limit: string, key: string | null | undefined, cost: number): Promise<Answer> {
    return this.#one("refund", limit, key, { cost: count("cost", cost) });
  }

  /** Makes the bucket full, and ends its reservations and holds. */
  reset(limit: string, key?: string | null): Promise<Answer> {
    return this.#one("reset", limit, key, { cost: 0 });
  }

  /** Gives back what time has not returned yet of a reservation. */
  async cancel(reservation: string): Promise<void> {
    if (!/^[\da-f-]{36}$/i.test(need("reservation", reservation))) throw new DipwellError("reservation", `${JSON.stringify(reservation)} is no id of a reservation`);
    await this.#way.cancel(reservation);
  }

  /** Takes from up to 16 limits at one instant, or from none of them. */
  async takeAll(takes: Take[]): Promise<AnswerOfAll> {
    return this.#way.all(checkedAll(takes));
  }

  /**
   * Takes as soon as the tokens can be had. If that is not within the timeout, the answer is a
   * refusal, at once. Over SQL this process reserves or asks again, and sleeps: do not call it
   * in a transaction, which would stay open.
   */
  async wait(limit: string, key?: string | null, options: WaitOptions = {}): Promise<Answer> {
    const { timeout: longest = "30s", signal, ...rest } = object("options", options);
    const timeout = milliseconds("timeout", longest);
    if (timeout < 1 || timeout > 600_000) throw new DipwellError("timeout", "is not between 1ms and 10m");
    return this.#way.wait(checked({ ...rest, limit, key }), timeout, signal);
  }

  /** Takes tokens and keeps them until the hold is settled to what was really used. */
  async hold(limit: string, key: string | null | undefined, cost: number, options: HoldOptions): Promise<Hold> {
    const { ttl, id, ...rest } = object("options", options);
    return new Hold(this, await this.#way.hold([checked({ ...rest, limit, key, cost: count("cost", cost) })], false, ttl, text("id", id)));
  }

  /** Holds of several limits, all or nothing, under one id; settle has a cost for each. */
  async holdAll(takes: Take[], options: Pick<HoldOptions, "ttl" | "id">): Promise<Hold> {
    const { ttl, id } = object("options", options);
    return new Hold(this, await this.#way.hold(checkedAll(takes), true, ttl, text("id", id)));
  }

  /**
   * Ends a hold by its id: gives back the rest, or charges the difference.
   * @param cost What was used, for holdAll one cost for each take; absent: as held; 0: nothing.
   */
  async settle(hold: string, cost?: number | number[]): Promise<Settled> {
    const several = Array.isArray(cost);
    const costs = several ? cost.map((c, i) => count(`costs[${i}]`, c)) : cost === undefined ? null : [count("cost", cost)];
    return this.#way.settle(need("hold", hold), costs, several);
  }

  /** Lets a hold expire ttl from now, and returns that time. */
  async extend(hold: string, ttl: Duration): Promise<Date> {
    return this.#way.extend(need("hold", hold), ttl);
  }

  /** Returns those of at most 1,000 keys whose take would be allowed now, in their order. */
  async ready(limit: string, keys: string[], options: CostOptions = {}): Promise<string[]> {
    const checkedKeys = list("keys", keys).map((key, i) => need(`keys[${i}]`, key));
    const { cost, plan } = checked({ ...object("options", options), limit });
    return this.#way.ready(limit, checkedKeys, cost, plan);
  }

  /** Adds a limit, or changes it while it is in use. Unchanged settings do nothing. */
  async define(name: string, limit: Limit): Promise<void> {
    await this.#way.define(need("name", name), object("limit", limit));
  }

  /**
   * Creates the schema dipwell, in one transaction and over SQL alone. It does nothing if the
   * schema is there.
   */
  install(): Promise<Installed> {
    return this.#way.install();
  }

  async #one(verb: Verb, limit: string, key: string | null | undefined, options: TakeOptions): Promise<Answer> {
    return this.#way.one(verb, checked({ ...object("options", options), limit, key }));
  }
}

/** install creates the schema dipwell through a client of pg, or any other with such a query. */
export function install(client: { query: Query }): Promise<Installed> {
  return Dipwell.sql((text, params) => client.query(text, params)).install();
}

/** key joins the parts of a key of a limit with a parent; a '/' inside a part is escaped. */
export function key(...parts: string[]): string {
  if (parts.includes("")) throw new DipwellError(`parts[${parts.indexOf("")}]`, "is empty");
  return parts.map((part, i) => need(`parts[${i}]`, part).replaceAll("%", "%25").replaceAll("/", "%2F")).join("/");
}

/** Tokens that were taken until they are settled. Allowed is false if there were not enough. */
export interface Hold extends Held {}

export class Hold {
  readonly #dipwell: Dipwell;

  constructor(dipwell: Dipwell, held: Held) {
    Object.assign(this, held);
    this.#dipwell = dipwell;
  }

  /** Ends the hold: gives back the rest, or charges the difference. As Dipwell.settle. */
  async settle(cost?: number | number[]): Promise<Settled> {
    return this.#dipwell.settle(this.#id(), cost);
  }

  /** Lets the hold expire ttl from now, and returns that time. */
  async extend(ttl: Duration): Promise<Date> {
    this.expires = await this.#dipwell.extend(this.#id(), ttl);
    return this.expires;
  }

  #id(): string {
    if (this.hold === null) throw new DipwellError("hold", "was refused");
    return this.hold;
  }
}

const members = ["limit", "key", "cost", "plan", "floor"];

/** checked checks the names and types of a call's arguments. What they may be else, the server checks. */
function checked(take: Take, path = ""): Checked {
  for (const name in take) if (!members.includes(name)) throw new DipwellError(path + name, "is not known");
  return {
    limit: need(`${path}limit`, take.limit),
    key: text(`${path}key`, take.key),
    cost: take.cost === undefined ? 1 : count(`${path}cost`, take.cost),
    plan: text(`${path}plan`, take.plan),
    floor: take.floor === undefined ? null : count(`${path}floor`, take.floor),
  };
}

const checkedAll = (takes: Take[]): Checked[] => list("takes", takes).map((take, i) => checked(object(`takes[${i}]`, take), `takes[${i}].`));

function need(field: string, value: unknown): string {
  const s = text(field, value);
  if (s === null) throw new DipwellError(field, `is ${String(value)}`);
  return s;
}
