import { DipwellError } from "./errors.js";
import { sql, version } from "./schema.js";
import type { Installed } from "./types.js";

type Rows = (text: string, params: unknown[]) => Promise<Record<string, unknown>[]>;

// One statement, so that it is one transaction over every driver, and works in the caller's.
// The lock is that of `dipwell migrate`. Whether another process has installed it meanwhile is
// read from the catalog, because to_regclass may answer from before the lock. The path keeps
// views from using what others have created in a schema of the caller's.
const script = `do $dipwell_install$
declare
    path text := current_setting('search_path');
begin
    perform pg_advisory_xact_lock(x'64697077656c6c'::bit(64)::bigint);
    if not exists (select from pg_catalog.pg_class c where c.relname = 'migrations' and c.relnamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = 'dipwell')) then
        perform set_config('search_path', 'pg_catalog, pg_temp', true);
        begin
            execute $dipwell_schema$${sql}$dipwell_schema$;
        exception when others then
            raise exception using errcode = sqlstate, message = sqlerrm; -- without the whole schema as its context
        end;
        perform set_config('search_path', path, true);
    end if;
end $dipwell_install$`;

const missingRoles = `select r as role from unnest('{dipwell_app,dipwell_service,dipwell_admin}'::text[]) r where to_regrole(r) is null`;

/** install creates the schema where there is none. */
export async function install(query: Rows): Promise<Installed> {
  const [found] = await query("select to_regclass('dipwell.migrations') is not null as there", []);
  const installed = found!["there"] !== true;
  if (installed) await query(script, []);
  const [may] = await query("select has_table_privilege('dipwell.migrations', 'select') as may", []);
  if (may!["may"] !== true) return { version: null, installed, lacks: [] }; // a role that only takes
  const [row] = await query("select max(version) as version from dipwell.migrations", []);
  const has = Number(row!["version"]);
  if (has !== version) {
    throw new DipwellError("schema", `has version ${has}, and this package is for ${version}; upgrade with \`dipwell migrate up\``);
  }
  return { version: has, installed, lacks: await lacks(query) };
}

async function lacks(query: Rows): Promise<string[]> {
  const list = (await query(missingRoles, [])).map((r) => `role ${r["role"]}: is missing, and this role may not create it; grant to your own roles instead`);
  const [cron] = await query("select exists (select from pg_extension where extname = 'pg_cron') as there", []);
  if (cron!["there"] !== true) {
    list.push("pg_cron: is not installed, so nothing deletes rows of keys that are full again; call `select dipwell.sweep()` every minute, or run `dipwell serve` on this database");
  }
  return list;
}
