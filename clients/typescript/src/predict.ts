import type { Answer } from "./types.js";
import { milliseconds, type Duration } from "./units.js";

/** What a bucket has at a time if nobody else takes from it. */
export interface Prediction {
  /** Whether the same call is allowed. */
  allowed: boolean;
  /** Tokens that are free, at least. */
  remaining: number;
  /** From then on the same call is allowed, at the latest; 0 if now, null if never or unknown. */
  retryAfterMs: number | null;
}

/** The settings of a token bucket, with which a prediction is exact to a millisecond. */
export interface Bucket {
  rate: number;
  per: Duration;
  burst?: number;
}

/**
 * predict returns what will be free at a time, from an answer alone: nobody is asked. Without
 * the settings of a bucket it knows when the call that was refused succeeds, and when all
 * tokens are back; between these it promises no more than there certainly is.
 * @param at The time, on the clock of the answer's `at`.
 */
export function predict(answer: Answer, at: number | Date = Date.now(), bucket?: Bucket): Prediction {
  const elapsed = Math.max(0, Number(at) - answer.at);
  const { remaining, wait } = bucket && answer.resetAfterMs !== null ? ofBucket(answer, elapsed, bucket) : ofAny(answer, elapsed);
  const shadow = answer.allowed && answer.retryAfterMs !== null;
  if (shadow || answer.never) return { allowed: shadow, remaining, retryAfterMs: shadow ? 0 : null };
  return { allowed: wait === 0, remaining, retryAfterMs: wait };
}

function ofAny(a: Answer, elapsed: number): { remaining: number; wait: number | null } {
  const full = a.resetAfterMs !== null && elapsed >= a.resetAfterMs;
  const after = a.allowed && a.remaining >= a.cost ? 0 : (a.retryAfterMs ?? a.resetAfterMs);
  const wait = after === null ? null : Math.max(0, after - elapsed);
  const known = full && a.allowed ? a.remaining + a.granted : a.remaining;
  return { remaining: wait === 0 && !a.never ? Math.max(known, a.cost) : known, wait };
}

function ofBucket(a: Answer, elapsed: number, { rate, per, burst = rate }: Bucket): { remaining: number; wait: number | null } {
  const perToken = milliseconds("per", per) / rate;
  const missing = Math.max(0, a.resetAfterMs! - elapsed); // until it is full
  const free = Math.max(a.remaining, burst - Math.ceil(missing / perToken)); // missing was rounded up
  const wait = Math.max(0, Math.ceil(missing - (burst - a.cost) * perToken));
  return { remaining: free, wait: a.cost > burst ? null : wait };
}
