import { camel, DipwellError, without } from "./errors.js";
import type { Answer, AnswerOfAll, Checked, Decision, Held, Installed, Limit, Settled, Verb, Way } from "./types.js";
import { counted, duration, settings, up, type Duration } from "./units.js";

export interface HttpOptions {
  /** Sent as `Authorization: Bearer`. */
  token?: string;
  /** The longest time of a call, besides a wait's own; default 5s. */
  timeoutMs?: number;
  /** Default: that of the platform. */
  fetch?: typeof fetch;
}

/** A decision as JSON. */
interface Body {
  allowed: boolean;
  limit: string;
  key?: string | null;
  cost: number;
  remaining: number;
  retry_after_us: number | null;
  reset_after_us: number | null;
  granted: number;
  never?: boolean;
  delay_us?: number;
  reservation?: string;
  repeated?: boolean;
  hold?: string;
  expires_us?: number;
  limits?: Body[];
}

/** The limits of a service. */
export class Http implements Way {
  readonly #url: string;
  readonly #options: HttpOptions;

  constructor(url: string, options: HttpOptions) {
    this.#url = url.replace(/\/+$/, "");
    this.#options = options;
  }

  async one(verb: Verb, take: Checked): Promise<Answer> {
    return answer(await this.#decide(verb, member(take)));
  }

  async all(takes: Checked[]): Promise<AnswerOfAll> {
    const body = await this.#decide("take", { takes: takes.map(member) });
    return { ...answer(body), limits: (body.limits ?? [body]).map(answer) };
  }

  async wait(take: Checked, timeoutMs: number, signal: AbortSignal | undefined): Promise<Answer> {
    return answer(await this.#decide("wait", { ...member(take), timeout: `${timeoutMs}ms` }, timeoutMs, signal));
  }

  async hold(takes: Checked[], several: boolean, ttl: Duration, id: string | null): Promise<Held> {
    const what = several ? { takes: takes.map(member) } : member(takes[0]!);
    const body = await this.#decide("hold", { ...what, ttl: duration("ttl", ttl), id: id ?? undefined });
    const a = several ? { ...answer(body), limits: (body.limits ?? [body]).map(answer) } : answer(body);
    return { ...a, hold: body.hold ?? null, expires: body.expires_us === undefined ? null : time(body.expires_us), repeated: body.repeated === true };
  }

  async settle(hold: string, costs: number[] | null, several: boolean): Promise<Settled> {
    const body = await this.#decide("settle", { hold, ...(several ? { costs } : costs && { cost: costs[0] }) });
    const limits = several && { limits: (body.limits ?? [body]).map(decision) };
    return { ...decision(body), repeated: body.repeated === true, ...limits };
  }

  async extend(hold: string, ttl: Duration): Promise<Date> {
    return time((await this.#decide("extend", { hold, ttl: duration("ttl", ttl) })).expires_us!);
  }

  async cancel(reservation: string): Promise<void> {
    await this.#call("POST", "/v1/cancel", { reservation });
  }

  async ready(limit: string, keys: string[], cost: number, plan: string | null): Promise<string[]> {
    return ((await this.#call("POST", "/v1/ready", { limit, keys, cost, plan: plan ?? undefined })) as { keys: string[] }).keys;
  }

  async define(name: string, limit: Limit): Promise<void> {
    await this.#call("PUT", `/v1/limits/${encodeURIComponent(name)}`, settings(limit as Record<string, unknown>, ""));
  }

  async install(): Promise<Installed> {
    throw new DipwellError(null, "over HTTP there is nothing to install: the service has its own store");
  }

  async #decide(verb: string, body: object, extraMs = 0, signal?: AbortSignal): Promise<Body> {
    return (await this.#call("POST", `/v1/${verb}`, body, extraMs, signal)) as Body;
  }

  /** call returns the body of an answer, which may be a refusal; any other is an error. */
  async #call(method: string, path: string, body: object, extraMs = 0, signal?: AbortSignal): Promise<unknown> {
    const { token, timeoutMs = 5000, fetch = globalThis.fetch } = this.#options;
    signal?.throwIfAborted();
    const stop = new AbortController();
    const ms = timeoutMs + extraMs;
    const timer = setTimeout(() => stop.abort(new Error(`no answer in ${ms} ms`)), ms);
    const abort = (): void => stop.abort(signal!.reason);
    signal?.addEventListener("abort", abort);
    try {
      const response = await fetch(this.#url + path, {
        method,
        headers: { "Content-Type": "application/json", ...(token !== undefined && { Authorization: `Bearer ${token}` }) },
        body: JSON.stringify(body),
        signal: stop.signal,
      });
      return read(response.status, await response.text());
    } catch (e) {
      signal?.throwIfAborted();
      if (e instanceof DipwellError) throw e;
      throw new DipwellError(null, `${this.#url}: ${messages(e)}`, null, { cause: e });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }
}

/** messages returns what an error says, and what its cause says: that of fetch is "fetch failed". */
function messages(e: unknown): string {
  if (!(e instanceof Error)) return String(e);
  return e.cause === undefined ? e.message : `${e.message}: ${messages(e.cause)}`;
}

/** read returns the body of an answer or a refusal. Anything else is an error, also what is not of the service. */
function read(status: number, text: string): unknown {
  let body: { allowed?: unknown; field?: string; detail?: string; title?: string } | undefined;
  try {
    body = JSON.parse(text || "{}");
  } catch {
    body = undefined;
  }
  if (body && (status < 300 || (status === 429 && typeof body.allowed === "boolean"))) return body;
  const reason = body?.detail ?? body?.title ?? (text.slice(0, 200).trim() || `status ${status}`);
  const field = body?.field ?? null;
  throw new DipwellError(field && camel(field), field === null ? reason : without(field, reason), String(status));
}

/** member returns a call as JSON has it: what is absent has the server's default. */
const member = (t: Checked): object => ({ limit: t.limit, key: t.key ?? undefined, cost: t.cost, plan: t.plan ?? undefined, floor: t.floor ?? undefined });

function decision(b: Body): Decision {
  return {
    allowed: b.allowed,
    remaining: counted("remaining", b.remaining),
    retryAfterMs: b.retry_after_us === null ? null : up(b.retry_after_us),
    resetAfterMs: b.reset_after_us === null ? null : up(b.reset_after_us),
    granted: counted("granted", b.granted),
    never: b.never === true,
    delayMs: up(b.delay_us ?? 0),
    reservation: b.reservation ?? null,
    at: Date.now(),
  };
}

const answer = (b: Body): Answer => ({ ...decision(b), limit: b.limit, key: b.key ?? null, cost: b.cost });

const time = (us: number): Date => new Date(us / 1000);
