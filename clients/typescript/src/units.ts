import { DipwellError } from "./errors.js";
import type { Plan } from "./types.js";

/** A length of time: a number of milliseconds, or a text such as `250ms`, `30s`, `1m`, `1h`, `1d`, `1w`, `1mo`, `1y`. */
export type Duration = number | string;

const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

/** duration returns a length of time as the service writes it. */
export function duration(field: string, value: Duration): string {
  if (typeof value === "number") return `${count(field, value)}ms`;
  const text = String(value).replace(/\s/g, "");
  if (!/^(\d+(ms|us|mo|[smhdwy]))+$/.test(text)) {
    throw new DipwellError(field, `${JSON.stringify(value)} is not a length of time such as 250ms, 30s, 1m, 1h or 1d`);
  }
  return text;
}

/** milliseconds returns a length of time as a number; months and years have none. */
export function milliseconds(field: string, value: Duration): number {
  const sum = [...duration(field, value).matchAll(/(\d+)([a-z]+)/g)].reduce((ms, [, n, unit]) => ms + Number(n) * (units[unit!] ?? NaN), 0);
  return count(field, sum);
}

/** interval returns a length of time as PostgreSQL reads it. */
export function interval(field: string, value: Duration | undefined): string | null {
  return value === undefined ? null : duration(field, value).replace(/mo$/, "mon");
}

/** count returns a whole number that a double holds exactly, or throws. */
export function count(field: string, value: unknown): number {
  if (!Number.isSafeInteger(value)) {
    const what = typeof value === "number" ? String(value) : value === null ? "null" : `of type ${typeof value}`;
    throw new DipwellError(field, `${what} is not a whole number of at most 2^53-1`);
  }
  return value as number;
}

/** counted returns a bigint of an answer, which drivers pass on as text, number or bigint. */
export function counted(field: string, value: unknown): number {
  return count(field, typeof value === "string" || typeof value === "bigint" ? Number(value) : value);
}

/** text returns a text, or null for undefined; anything else is an error. */
export function text(field: string, value: unknown): string | null {
  if (value === undefined || value === null) return null;
  if (typeof value !== "string") {
    throw new DipwellError(field, `has type ${typeof value}, but must be a string; write String(…)`);
  }
  return value;
}

/** limitName returns a text as the name of a limit: other characters become '_'. */
export const limitName = (text: string): string => text.replace(/[^A-Za-z0-9_.-]/g, "_");

/** snake returns the name of a setting as SQL and the service have it. */
export const snake = (name: string): string => name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);

/** A wait rounded up, so that who waits for it is never early. */
export const up = (microseconds: number): number => Math.ceil(microseconds / 1000);

/** settings returns those of a limit or a plan as the service's configuration names them. */
export function settings(limit: Record<string, unknown>, path: string): object {
  return Object.fromEntries(Object.entries(limit).map(([name, value]) => [snake(name), setting(name, value, path + name)]));
}

function setting(name: string, value: unknown, field: string): unknown {
  switch (name) {
    case "plans":
      return Object.fromEntries(Object.entries(value as Record<string, Plan>).map(([plan, p]) => [plan, settings(p as Record<string, unknown>, `plans.${plan}.`)]));
    case "maxDebt":
      return value === -1 ? "unlimited" : count(field, value);
    case "per": case "ttl": case "lease": case "block":
      return value === undefined ? undefined : duration(field, value as Duration);
    case "rate": case "burst": case "parts": case "shards":
      return value === undefined ? undefined : count(field, value);
  }
  return value;
}
