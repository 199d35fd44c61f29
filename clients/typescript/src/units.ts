import { DipwellError } from "./errors.js";
import type { Plan } from "./types.js";

/** A length of time: a number of milliseconds, or a text such as `250ms`, `30s`, `1m`, `1h`, `1d`, `1w`, `1mo`, `1y`. */
export type Duration = number | string;

const microseconds: Record<string, number> = { us: 1, ms: 1e3, s: 1e6, m: 6e7, h: 3.6e9, d: 8.64e10, w: 6.048e11 };

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
  const text = duration(field, value);
  if (/mo|y/.test(text)) throw new DipwellError(field, `${text} has no fixed length; write it in days`);
  return count(field, [...text.matchAll(/(\d+)([a-z]+)/g)].reduce((sum, [, n, unit]) => sum + Number(n) * microseconds[unit!]!, 0) / 1000);
}

/** interval returns a length of time as PostgreSQL reads it. */
export function interval(field: string, value: Duration | undefined): string | null {
  return value === undefined ? null : duration(field, value).replaceAll("mo", "mon");
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
  if (/[\0\p{Surrogate}]/u.test(value)) throw new DipwellError(field, "has a character that is not allowed in UTF-8 text");
  return value;
}

/** object returns an argument that is an object, which null is too, or throws. */
export function object<T extends object>(field: string, value: T): T {
  if (typeof value !== "object") throw new DipwellError(field, `has type ${typeof value}, but must be an object`);
  return value ?? {};
}

/** list returns an argument that is an array, or throws. */
export function list<T>(field: string, value: T[]): T[] {
  if (!Array.isArray(value)) throw new DipwellError(field, `has type ${typeof value}, but must be an array`);
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
  const given = Object.entries(limit).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given.map(([name, value]) => [snake(name), setting(name, value, path + name)]));
}

function setting(name: string, value: unknown, field: string): unknown {
  switch (name) {
    case "plans":
      return Object.fromEntries(Object.entries(object(field, value as Record<string, Plan>)).map(([plan, p]) => [plan, settings({ ...p }, `plans.${plan}.`)]));
    case "maxDebt":
      return value === -1 ? "unlimited" : count(field, value);
    case "per": case "ttl": case "lease": case "block":
      return duration(field, value as Duration);
    case "rate": case "burst": case "parts": case "shards":
      return count(field, value);
  }
  return value;
}
