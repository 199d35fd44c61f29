import type { Dipwell } from "./dipwell.js";
import { DipwellError } from "./errors.js";
import type { Answer } from "./types.js";
import { count, limitName } from "./units.js";

export interface StoreOptions {
  dipwell: Dipwell;
  /** Names the limit that counts, together with the length of the window: `hits.60000ms`. Default `hits`. */
  prefix?: string;
  /** False: that limit is defined elsewhere, and this role need not be allowed to. */
  define?: boolean;
}

export interface Hits {
  totalHits: number;
  resetTime: Date;
}

// More than any window has, so that every hit is counted, and the middleware decides.
const capacity = 2 ** 40;

/**
 * Counts hits for a middleware that compares them with a limit of its own. Its limit here is a
 * window that begins with a key's first hit.
 */
export class HitStore {
  /** Other processes see the same hits. */
  readonly localKeys = false;
  readonly prefix: string;
  readonly #dipwell: Dipwell;
  readonly #define: boolean;
  #windowMs = 0;
  #defined: Promise<string> | undefined;

  constructor({ dipwell, prefix = "hits", define = true }: StoreOptions) {
    if (!dipwell) throw new DipwellError("dipwell", "is missing");
    this.#dipwell = dipwell;
    this.prefix = prefix;
    this.#define = define;
  }

  /** The middleware calls it with its options. */
  init(options: { windowMs: number }): void {
    this.#windowMs = count("windowMs", options.windowMs);
  }

  async increment(key: string): Promise<Hits> {
    return hits(await this.#dipwell.take(await this.#limit(), key));
  }

  /** Takes a hit back, for requests that are not to be counted. */
  async decrement(key: string): Promise<void> {
    await this.#dipwell.refund(await this.#limit(), key, 1);
  }

  async resetKey(key: string): Promise<void> {
    await this.#dipwell.reset(await this.#limit(), key);
  }

  async get(key: string): Promise<Hits | undefined> {
    const h = hits(await this.#dipwell.check(await this.#limit(), key, { cost: 0 }));
    return h.totalHits === 0 ? undefined : h;
  }

  /** The name of the limit, which is defined once; after an error again with the next call. */
  #limit(): Promise<string> {
    this.#defined ??= this.#defineLimit().catch((e: unknown) => {
      this.#defined = undefined;
      throw e;
    });
    return this.#defined;
  }

  async #defineLimit(): Promise<string> {
    const name = limitName(`${this.prefix}.${this.#windowMs}ms`);
    if (this.#define) {
      await this.#dipwell.define(name, { algorithm: "fixed_window", rate: capacity, per: this.#windowMs, start: "first_call" });
    }
    return name;
  }
}

const hits = (a: Answer): Hits => ({ totalHits: capacity - a.remaining, resetTime: new Date(a.at + (a.resetAfterMs ?? 0)) });
