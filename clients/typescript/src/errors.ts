/**
 * What a call failed with. A refusal is no error: it is an answer whose `allowed` is false.
 */
export class DipwellError extends Error {
  override readonly name = "DipwellError";

  /**
   * @param field The argument or setting that is wrong, such as `key`, `takes[1].cost` or
   *   `per`; null if the fault is not in the call: the server does not answer, or a right is
   *   missing.
   * @param reason What is wrong, without the field.
   * @param code The SQLSTATE of PostgreSQL, such as 22023 or 40001, or the status of HTTP;
   *   null if neither answered.
   */
  constructor(
    readonly field: string | null,
    readonly reason: string,
    readonly code: string | null = null,
    options?: { cause?: unknown },
  ) {
    super(field === null ? reason : `${field}: ${reason}`, options);
  }
}

/** The members of errors of pg, postgres.js, Prisma and Drizzle that say what PostgreSQL said. */
interface DriverError {
  message?: unknown;
  code?: unknown;
  constraint?: unknown;
  constraint_name?: unknown;
  originalCode?: unknown;
  originalMessage?: unknown;
  cause?: unknown;
  meta?: unknown;
  driverAdapterError?: unknown;
}

// Not EPIPE of Node, nor P2010 of Prisma.
const SQLSTATE = /^(?!P[1-9])(?=.*\d)[0-9A-Z]{5}$/;

/** sqlError returns the error for one of a driver, which may wrap that of PostgreSQL, of a statement. */
export function sqlError(cause: unknown, statement: string): DipwellError {
  for (let e = cause as DriverError | undefined; e; e = (e.meta ?? e.driverAdapterError ?? e.cause) as DriverError | undefined) {
    const code = e.originalCode ?? e.code;
    const message = e.originalMessage ?? e.message;
    if (typeof code === "string" && SQLSTATE.test(code) && typeof message === "string") {
      const field = e.constraint ?? e.constraint_name ?? fieldOf(code, message);
      return new DipwellError(...fault(typeof field === "string" ? field : null, message, /(take|hold)_all/.test(statement)), code, { cause });
    }
  }
  return new DipwellError(null, cause instanceof Error ? cause.message : String(cause), null, { cause });
}

/** fieldOf finds the field in the message, for drivers that do not pass on the constraint. */
function fieldOf(code: string, message: string): string | null {
  const ours = ["22023", "42704", "55000", "P0002"].includes(code);
  return (ours && /(?:^|: )([a-z_]+(?:\[\d+\])?): /.exec(message)?.[1]) || null;
}

/** The arguments of take_all and hold_all in SQL, and the members of their takes here. */
const members: Record<string, string> = { limit_names: "limit", keys: "key", costs: "cost", plans: "plan", floors: "floor" };

/** fault returns a field as this package names it, and the message without it. */
function fault(field: string | null, message: string, takes: boolean): [string | null, string] {
  if (field === null) return [null, message];
  const reason = without(field, message);
  const [, list, n] = /^(\w+)\[(\d+)\]$/.exec(field) ?? [];
  if (list) return [takes ? `takes[${Number(n) - 1}].${members[list]}` : `${list}[${Number(n) - 1}]`, reason];
  return [{ limit_name: "limit", limit_names: "takes" }[field] ?? camel(field), reason];
}

/** camel returns the name of a setting as this package has it. */
export const camel = (field: string): string => field.replace(/_([a-z])/g, (_, c: string) => c.toUpperCase());

/** without returns a message without its field, and without what is before that. */
export function without(field: string, message: string): string {
  const at = message.indexOf(`${field}: `);
  return at < 0 ? message : message.slice(at + field.length + 2);
}
