import type { Duration } from "./units.js";

/** What a bucket was found to have. Times are in milliseconds, and rounded up. */
export interface Decision {
  /** The decision. A refusal has changed nothing. */
  allowed: boolean;
  /** Whole tokens left after the call. */
  remaining: number;
  /** After which time the same call succeeds if nobody else comes; null if allowed or never. */
  retryAfterMs: number | null;
  /** When the bucket is full; null if that depends on holds. */
  resetAfterMs: number | null;
  /** Tokens taken. */
  granted: number;
  /** The call asks for more than the limit can ever hold, or its key is blocked. */
  never: boolean;
  /** How long to wait before acting, for reserve and leaky buckets. */
  delayMs: number;
  /** For cancel, if delayMs is above 0. */
  reservation: string | null;
  /** The clock of this process when the answer came, in Unix milliseconds, for predict. */
  at: number;
}

/** What a call was answered. */
export interface Answer extends Decision {
  limit: string;
  /** Null for a shared limit. */
  key: string | null;
  /** The tokens that were asked for; 0 of a parent. */
  cost: number;
}

/** The answers of several limits. The top level is that of the limit that decides. */
export interface AnswerOfAll extends Answer {
  /** One for each call in the order asked, then one for each parent. */
  limits: Answer[];
}

/** What became of a hold when it was settled. */
export interface Settled extends Decision {
  /** The hold was settled before, to the same cost. */
  repeated: boolean;
  /** One for each take of the hold, if a cost was given for each. */
  limits?: Decision[];
}

/** One of several calls that are decided together. */
export interface Take {
  limit: string;
  /** Absent for a shared limit. */
  key?: string | null | undefined;
  cost?: number | undefined;
  plan?: string | undefined;
  floor?: number | undefined;
}

export interface CostOptions {
  /** Tokens; default 1. */
  cost?: number | undefined;
  /** The plan that decides, unless the key has an override. */
  plan?: string | undefined;
}

export interface TakeOptions extends CostOptions {
  /** So many tokens must stay free. */
  floor?: number | undefined;
}

export interface WaitOptions extends TakeOptions {
  /** The longest wait; default 30s. */
  timeout?: Duration | undefined;
  /** Ends the wait, with its reason as the error. */
  signal?: AbortSignal | undefined;
}

export interface HoldOptions {
  /** After this time a hold that is not settled gives everything back. */
  ttl: Duration;
  /** Makes the call safe to repeat; at most 64 bytes. Default: a new one. */
  id?: string | undefined;
  plan?: string | undefined;
  floor?: number | undefined;
}

/** A plan of a limit: what it changes. */
export interface Plan {
  rate?: number;
  per?: Duration;
  burst?: number;
  maxDebt?: number;
  mode?: "enforce" | "shadow" | "unlimited" | "blocked";
  callable?: boolean | "children";
}

/** The settings of a limit. What is absent is the default, and 0 is 0. */
export interface Limit {
  rate?: number;
  per?: Duration;
  burst?: number;
  algorithm?: "token_bucket" | "fixed_window" | "sliding_window" | "interval" | "leaky_bucket" | "concurrency";
  /** Tokens; -1 is unlimited. */
  maxDebt?: number;
  start?: string;
  onChange?: "keep" | "proportional" | "reset";
  mode?: "enforce" | "shadow";
  plans?: Record<string, Plan>;
  parent?: string;
  parts?: number;
  /** One bucket for everybody: calls have no key. */
  shared?: boolean;
  ttl?: Duration;
  onExpire?: "give_back" | "keep";
  lease?: Duration;
  shards?: number;
  adaptive?: { floor: number; latency?: string; quantile?: number; errors?: string; window?: string };
  usage?: boolean;
  block?: Duration;
}

/** What install found or did. */
export interface Installed {
  /** The version of the schema; null if this role may not read it. */
  version: number | null;
  /** Whether there was no schema when the call began. */
  installed: boolean;
  /** What is missing, and what to do; empty if nothing is. */
  lacks: string[];
}

/** A way to the limits: SQL or HTTP. Arguments are checked and complete. */
export interface Way {
  one(verb: Verb, take: Checked): Promise<Answer>;
  all(takes: Checked[]): Promise<AnswerOfAll>;
  wait(take: Checked, timeoutMs: number, signal: AbortSignal | undefined): Promise<Answer>;
  hold(takes: Checked[], several: boolean, ttl: Duration, id: string | null): Promise<Held>;
  settle(hold: string, costs: number[] | null, several: boolean): Promise<Settled>;
  extend(hold: string, ttl: Duration): Promise<Date>;
  cancel(reservation: string): Promise<void>;
  ready(limit: string, keys: string[], cost: number, plan: string | null): Promise<string[]>;
  define(name: string, limit: Limit): Promise<void>;
  install(): Promise<Installed>;
}

export type Verb = "take" | "check" | "take_up_to" | "reserve" | "charge" | "refund" | "reset";

export interface Checked {
  limit: string;
  key: string | null;
  cost: number;
  plan: string | null;
  floor: number | null;
}

export interface Held extends Answer {
  hold: string | null;
  expires: Date | null;
  repeated: boolean;
  limits?: Answer[];
}
