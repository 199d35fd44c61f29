import { Dipwell } from "./dipwell.js";
import { DipwellError } from "./errors.js";
import type { Query } from "./sql.js";
import type { Answer, Limit } from "./types.js";
import { count, limitName, milliseconds, type Duration } from "./units.js";

/** How a limiter counts: a limit, and how many tokens it has at most. */
export interface Algorithm {
  readonly tokens: number;
  readonly limit: Limit;
}

/** Settings of such limiters that change no decision, and mean nothing here. */
const ignored = [
  "analytics", "cleanupProbability", "debug", "durable", "enableTelemetry", "ephemeralCache", "inMemoryBlock", "maxBlockedKeys", "synchronousCommit",
] as const;
type Ignored = { [setting in (typeof ignored)[number]]?: unknown };

export interface RatelimitConfig extends Ignored {
  limiter: Algorithm;
  /** Where the limit is. */
  dipwell?: Dipwell;
  /** In place of dipwell: a pool or client of pg, in whose database the schema is installed with the first call. */
  pool?: { query: Query };
  /** Names the limit. Other characters than letters, digits, `_`, `-` and `.` become `_`. Default: a name made of the limiter's numbers. */
  prefix?: string;
  /** False: the limit is defined elsewhere, and this role need not be allowed to. */
  define?: boolean;
}

const known: string[] = ["limiter", "dipwell", "pool", "prefix", "define", ...ignored];

export interface RatelimitResponse {
  success: boolean;
  /** Tokens of a full bucket or window. */
  limit: number;
  remaining: number;
  /** Unix milliseconds: of a refusal when the same call succeeds, else when all tokens are back. */
  reset: number;
  /** Is resolved: there is nothing to wait for. */
  pending: Promise<unknown>;
}

export interface LimitOptions {
  /** Tokens; default 1. Negative ones are given back, up to a full bucket. */
  rate?: number;
}

/** Limits with the methods that pg-ratelimit and Upstash's ratelimit have. */
export class Ratelimit {
  readonly #dipwell: Dipwell;
  readonly #algorithm: Algorithm;
  readonly #name: string;
  #defined: Promise<void> | undefined;
  readonly #prepare: () => Promise<void>;

  constructor(config: RatelimitConfig) {
    const unknown = Object.keys(config).find((name) => !known.includes(name));
    if (unknown !== undefined) throw new DipwellError(unknown, "is not supported");
    const { dipwell, pool, limiter, prefix, define = true } = config;
    if (!limiter) throw new DipwellError("limiter", "is missing, such as Ratelimit.tokenBucket(5, '10s', 20)");
    if (!dipwell === !pool) throw new DipwellError("dipwell", "is needed, or a pool in its place");
    this.#dipwell = dipwell ?? Dipwell.sql((text, params) => pool!.query(text, params));
    this.#algorithm = limiter;
    this.#name = limitName(prefix ?? named(limiter));
    this.#prepare = async () => {
      if (pool) await this.#dipwell.install();
      if (define) await this.#dipwell.define(this.#name, limiter.limit);
    };
  }

  /** A bucket of max tokens, into which come so many per interval, evenly. */
  static tokenBucket(refill: number, interval: Duration, max: number): Algorithm {
    return { tokens: some("max", max), limit: { rate: some("refill", refill), per: milliseconds("interval", interval), burst: max } };
  }

  /** So many tokens in each window; the windows of a key begin at a time of their own. */
  static fixedWindow(tokens: number, window: Duration): Algorithm {
    return windowed("fixed_window", tokens, window);
  }

  /** About so many tokens in any window: the one before counts by the part that is still covered. */
  static slidingWindow(tokens: number, window: Duration): Algorithm {
    return windowed("sliding_window", tokens, window);
  }

  async limit(identifier: string, { rate = 1 }: LimitOptions = {}): Promise<RatelimitResponse> {
    await this.#ready();
    count("rate", rate);
    return this.#response(
      rate < 0 ? await this.#dipwell.refund(this.#name, identifier, -rate) : await this.#dipwell.take(this.#name, identifier, { cost: rate }),
    );
  }

  /** Takes as soon as the tokens are there; a refusal at once if that is not within the timeout. */
  async blockUntilReady(identifier: string, timeout: Duration, { rate = 1 }: LimitOptions = {}): Promise<RatelimitResponse> {
    await this.#ready();
    return this.#response(await this.#dipwell.wait(this.#name, identifier, { cost: count("rate", rate), timeout }));
  }

  /** Takes nothing. */
  async getRemaining(identifier: string): Promise<{ remaining: number; reset: number; limit: number }> {
    await this.#ready();
    const { remaining, reset, limit } = this.#response(await this.#dipwell.check(this.#name, identifier, { cost: 0 }));
    return { remaining, reset, limit };
  }

  async resetUsedTokens(identifier: string): Promise<void> {
    await this.#ready();
    await this.#dipwell.reset(this.#name, identifier);
  }

  /** Defines the limit, once; after an error again with the next call. */
  #ready(): Promise<void> {
    this.#defined ??= this.#prepare().catch((e: unknown) => {
      this.#defined = undefined;
      throw e;
    });
    return this.#defined;
  }

  #response(a: Answer): RatelimitResponse {
    return {
      success: a.allowed,
      limit: this.#algorithm.tokens,
      remaining: a.remaining,
      reset: a.at + (a.retryAfterMs ?? a.resetAfterMs ?? 0),
      pending: Promise.resolve(),
    };
  }
}

function some(field: string, tokens: number): number {
  if (count(field, tokens) < 1) throw new DipwellError(field, `${tokens} is less than 1`);
  return tokens;
}

function windowed(algorithm: "fixed_window" | "sliding_window", tokens: number, window: Duration): Algorithm {
  return { tokens: some("tokens", tokens), limit: { algorithm, rate: tokens, per: milliseconds("window", window) } };
}

const named = ({ limit }: Algorithm): string => ["ratelimit", limit.algorithm ?? "token_bucket", limit.rate, `${limit.per}ms`, limit.burst].filter(Boolean).join("-");
