//go:build clients

package migrations

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/pgtest"
)

// packages are those of npm. The Supabase CLI is a program in one of them. Prisma's own CLI
// downloads its schema engine from elsewhere; the same engine is also a package.
var packages = []string{"supabase@3.1.0", "pg@8", "@prisma/adapter-pg@7.10.1", "@prisma/driver-adapter-utils@7.10.1",
	"@prisma/schema-engine-wasm@8.1.0-2.59be4fda12412a79eeb9c2ae727b6aa723593323"}

// TestNPM applies the printed schema by the Supabase CLI and by Prisma's schema engine, twice.
func TestNPM(t *testing.T) {
	dir := t.TempDir()
	must(t, command(dir, "npm", append([]string{"install", "--silent", "--no-save", "--prefer-offline"}, packages...)...))
	t.Setenv("HOME", dir) // where the CLI keeps its settings
	t.Setenv("DO_NOT_TRACK", "1")
	for name, tool := range map[string]struct {
		file    string
		migrate func(dsn string) error
	}{
		"supabase": {"supabase/migrations/20260101000000_dipwell.sql", func(dsn string) error {
			return command(dir, "npx", "supabase", "db", "push", "--yes", "--remote", strings.Replace(dsn, "postgres://", "postgresql://", 1))
		}},
		"prisma": {"prisma/migrations/20260101000000_dipwell/migration.sql", func(dsn string) error {
			return command(dir, "node", "prisma.mjs", dsn)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, filepath.Join(dir, tool.file), run(t, dipwell, "migrate", "print", "--for", name))
			write(t, filepath.Join(dir, "prisma.mjs"), prisma)
			dsn := pgtest.Database(t, "empty", func(string) error { return nil })
			for range 2 {
				must(t, tool.migrate(dsn))
				if out := run(t, dipwell, "migrate", "status", "--store", dsn); !strings.Contains(out, "schema version 1") {
					t.Error(out)
				}
			}
		})
	}
}

// prisma is what `prisma migrate deploy` does with the engine, which sends each file as one
// query.
const prisma = `import fs from "node:fs";
import { PrismaPg } from "@prisma/adapter-pg";
import { bindMigrationAwareSqlAdapterFactory } from "@prisma/driver-adapter-utils";
import * as engine from "@prisma/schema-engine-wasm/schema_engine_bg";
const wasm = fs.readFileSync("node_modules/@prisma/schema-engine-wasm/schema_engine_bg.wasm");
const { instance } = await WebAssembly.instantiate(wasm, { "./schema_engine_bg.js": engine });
engine.__wbg_set_wasm(instance.exports);
instance.exports.__wbindgen_start();

const adapters = new PrismaPg({ connectionString: process.argv[2] });
const connect = adapters.connect.bind(adapters);
adapters.connect = async () => Object.assign(await connect(), { async executeScript(sql) { await this.client.query(sql); } });
const e = await engine.SchemaEngine.new({ datamodels: [["schema.prisma", 'datasource db { provider = "postgresql" }']] }, () => {},
  bindMigrationAwareSqlAdapterFactory(adapters));
const name = "20260101000000_dipwell";
const content = { tag: "ok", value: fs.readFileSync("prisma/migrations/" + name + "/migration.sql", "utf8") };
await e.applyMigrations({
  migrationsList: { baseDir: "prisma/migrations", lockfile: { path: "migration_lock.toml", content: 'provider = "postgresql"' }, shadowDbInitScript: "",
    migrationDirectories: [{ path: name, migrationFile: { path: "migration.sql", content } }] },
  filters: { externalTables: [], externalEnums: [] },
});
process.exit(0);
`

// TestExtension creates, updates and drops an extension with the scripts that are printed for
// pg_tle, on PostgreSQL 18, which finds extensions in any directory. It is not pg_tle, which
// neither Debian nor npm has.
func TestExtension(t *testing.T) {
	t.Setenv("DIPWELL_PGBIN", strings.TrimSpace(run(t, "../../scripts/postgres", "18")))
	server := pgtest.Start(t)
	extensions := filepath.Join(server.Dir, "extension")
	must(t, server.Own(extensions))
	script := func(name string, args ...string) {
		t.Helper()
		parts := strings.Split(run(t, dipwell, append([]string{"migrate", "print", "--for", "pg_tle"}, args...)...), "$_dipwell_$")
		if len(parts) != 3 {
			t.Fatalf("%d parts", len(parts))
		}
		write(t, filepath.Join(extensions, name), parts[1])
	}
	write(t, filepath.Join(extensions, "dipwell.control"), "default_version = '1'\nsuperuser = false\n")
	script("dipwell--1.sql")
	script("dipwell--1--2.sql", "--from", "1")
	db := connect(t, server.DSN("postgres"))
	for _, statement := range []string{
		"create role shop login", "grant create on database postgres to shop",
		"alter system set extension_control_path = '$system:" + server.Dir + "'", "select pg_reload_conf()",
	} {
		_, err := db.Exec(statement)
		must(t, err)
	}
	shop := connect(t, strings.Replace(server.DSN("postgres"), "postgres@", "shop@", 1))
	want := func(query, want string) {
		t.Helper()
		if got := scan(t, shop, query); got != want {
			t.Errorf("%s: %s; want %s", query, got, want)
		}
	}
	exec := func(statement string) {
		t.Helper()
		_, err := shop.Exec(statement)
		must(t, err)
	}
	exec("create extension dipwell")
	exec("select dipwell.define('login', 2, interval '1 hour')")
	want("select remaining from dipwell.take('login', 'k')", "1")
	want("select count(*) from pg_class where relnamespace = 'dipwell'::regnamespace and relkind in ('r', 'S') and oid <> all ((select extconfig from pg_extension where extname = 'dipwell')::oid[])", "0")
	exec("alter extension dipwell update to '2'")
	want("select remaining from dipwell.take('login', 'k')", "0")
	exec("drop extension dipwell")
	want("select count(*) from pg_namespace where nspname like 'dipwell%'", "0")
}
