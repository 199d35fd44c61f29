package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/pgstore"
)

type MigrateCmd struct {
	Up     MigrateUpCmd     `cmd:"" help:"Create or upgrade the schema, and choose how durable its tables are."`
	Down   MigrateDownCmd   `cmd:"" help:"Remove the schema with everything in it: limits and buckets."`
	Status MigrateStatusCmd `cmd:"" help:"Print the version of a database; status 1 if it is not this program's."`
	Print  MigratePrintCmd  `cmd:"" help:"Print the SQL of the whole schema, or of an upgrade, for another migration tool."`
}

const connectTimeout = 5 * time.Second // bounds the end of a connection

type database struct {
	Store string `placeholder:"URL" env:"DIPWELL_STORE" help:"The database: postgres://USER@HOST/DATABASE."`
}

func (d *database) on(e *env, f func(conn *pgx.Conn) error) error {
	if d.Store == "" {
		return errors.New("store: say which database: --store postgres://USER@HOST/DATABASE")
	}
	if scheme, _, _ := strings.Cut(d.Store, "://"); openers[scheme] == nil || strings.HasPrefix(scheme, "redis") {
		return fmt.Errorf("store: %q has no schema to migrate; it must be postgres://…", redact(d.Store))
	}
	config, err := pgstore.ParseURL(d.Store)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	c := config.ConnConfig
	conn, err := pgx.ConnectConfig(e.ctx, c)
	if err != nil {
		return fmt.Errorf("store postgres://%s:%d/%s: %w", c.Host, c.Port, c.Database, err)
	}
	defer closeConn(e.ctx, conn)
	if err = f(conn); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// closeConn ends a connection, also after ctx has ended.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

type tables struct {
	Unlogged bool `xor:"durability" help:"Faster; after a crash of the server all buckets are full again, and a standby has none. PostgreSQL without Citus only."`
	Logged   bool `xor:"durability" help:"A crash loses nothing that was answered (default for new tables)."`
	Citus    bool `help:"The database is Citus: distribute the buckets by key. YugabyteDB and CockroachDB are known by yugabyte:// and cockroach://."`
}

// options returns an error if the flags and the URL's scheme contradict each other.
func (t tables) options(url string) (pgstore.MigrateOptions, error) {
	o := pgstore.MigrateOptions{Engine: engineOf(url)}
	if t.Citus {
		if o.Engine != "" {
			return o, fmt.Errorf("--citus: the store is a %s", o.Engine)
		}
		o.Engine = "Citus"
	}
	switch {
	case t.Unlogged && o.Engine != "":
		return o, fmt.Errorf("--unlogged: unlogged tables are for PostgreSQL without Citus, not for %s", o.Engine)
	case t.Unlogged:
		o.Tables = "unlogged"
	case t.Logged:
		o.Tables = "logged"
	}
	return o, nil
}

// engineOf returns the engine that a URL names; for other schemes the server's answer tells it.
func engineOf(url string) string {
	switch scheme, _, _ := strings.Cut(url, "://"); scheme {
	case "yugabyte":
		return "YugabyteDB"
	case "cockroach":
		return "CockroachDB"
	}
	return ""
}

type MigrateUpCmd struct {
	database `embed:""`
	tables   `embed:""`
}

func (c *MigrateUpCmd) Run(e *env) error {
	o, err := c.options(c.Store)
	if err != nil {
		return err
	}
	told := ""
	o.Waiting = func(why string) {
		if why != told {
			fmt.Fprintf(e.stderr, "waiting for %s\n", why)
		}
		told = why
	}
	return c.on(e, func(conn *pgx.Conn) error {
		applied, err := pgstore.Migrate(e.ctx, conn, o)
		if err != nil {
			return err
		}
		for _, m := range applied {
			fmt.Fprintf(e.stdout, "applied %04d %s\n", m.Version, m.Name)
		}
		return printState(e, conn)
	})
}

type MigrateDownCmd struct {
	database `embed:""`
	Yes      bool `help:"Really remove it."`
}

func (c *MigrateDownCmd) Run(e *env) error {
	return c.on(e, func(conn *pgx.Conn) error {
		list, err := pgstore.MigrationStatus(e.ctx, conn)
		there := slices.ContainsFunc(list, func(m pgstore.Migration) bool { return !m.AppliedAt.IsZero() })
		if err == nil && there && !c.Yes {
			err = fmt.Errorf("down removes the schema dipwell of %s with all limits and buckets; if you mean that, add --yes", redact(c.Store))
		}
		if err == nil {
			err = pgstore.MigrateDown(e.ctx, conn)
		}
		if err != nil {
			return err
		}
		did := "the schema dipwell was removed"
		if !there {
			did = "there is no schema dipwell"
		}
		_, err = fmt.Fprintln(e.stdout, did)
		return err
	})
}

type MigrateStatusCmd struct {
	database `embed:""`
}

func (c *MigrateStatusCmd) Run(e *env) error {
	return c.on(e, func(conn *pgx.Conn) error {
		list, err := pgstore.MigrationStatus(e.ctx, conn)
		if err != nil {
			return err
		}
		have := 0
		for _, m := range list {
			if !m.AppliedAt.IsZero() {
				have = m.Version
			}
		}
		for _, m := range list {
			if state := stateOf(&m); !m.AppliedAt.IsZero() || m.Version > have { // engines without functions have a single migration
				fmt.Fprintf(e.stdout, "%04d %-12s %s\n", m.Version, m.Name, state)
			}
		}
		if have != pgstore.SchemaVersion {
			return errRefused
		}
		return printState(e, conn)
	})
}

func stateOf(m *pgstore.Migration) string {
	switch {
	case m.AppliedAt.IsZero():
		return "not applied"
	case m.Version > pgstore.SchemaVersion:
		return "applied " + m.AppliedAt.UTC().Format(time.DateTime) + " UTC, unknown to this program"
	}
	return "applied " + m.AppliedAt.UTC().Format(time.DateTime) + " UTC"
}

type MigratePrintCmd struct {
	tables `embed:""`
	For    string `placeholder:"TOOL" help:"Print a migration in the form that a tool reads: psql, goose, dbmate, flyway, alembic, django, prisma, rails, supabase or pg_tle. Default: the statements alone."`
	From   int    `placeholder:"N" help:"Print the upgrade from version N, not the whole schema. migrate status prints the version."`
	Store  string `placeholder:"URL" env:"DIPWELL_STORE" help:"Its scheme selects the SQL: yugabyte:// or cockroach://, else PostgreSQL. No database is opened."`
}

func (c *MigratePrintCmd) Run(e *env) error {
	o, err := c.options(c.Store)
	if err != nil {
		return err
	}
	if o.From = c.From; c.From < 0 || c.From > pgstore.SchemaVersion {
		return fmt.Errorf("from: %d is not a version from 0 to %d", c.From, pgstore.SchemaVersion)
	}
	if c.For != "" && !slices.Contains(migrationTools, c.For) {
		return fmt.Errorf("for: %q is none of %s", c.For, strings.Join(migrationTools, ", "))
	}
	if c.For != "" && o.Engine != "" {
		return fmt.Errorf("for: %s runs the SQL of PostgreSQL, not that of %s", c.For, o.Engine)
	}
	return printMigration(e.stdout, c.For, o)
}

// migrationTools are the values of --for. Tools without a template read the statements alone.
var migrationTools = []string{"psql", "goose", "dbmate", "flyway", "alembic", "django", "prisma", "rails", "supabase", "pg_tle"}

//go:embed migrations
var migrationFiles embed.FS

var migrationForms = template.Must(template.ParseFS(migrationFiles, "migrations/*.tmpl"))

func printMigration(w io.Writer, tool string, o pgstore.MigrateOptions) error {
	up := pgstore.MigrationSQL(o)
	form := migrationForms.Lookup(tool + ".tmpl")
	if form == nil {
		_, err := io.WriteString(w, up)
		return err
	}
	title, down := "dipwell: rate limits in PostgreSQL", "do $$ begin\n    raise exception 'an upgrade of dipwell cannot be undone';\nend $$;\n"
	if o.From > 0 {
		title = fmt.Sprintf("dipwell: from version %d to %d", o.From, pgstore.SchemaVersion)
	} else {
		o.Down = true
		down = pgstore.MigrationSQL(o)
	}
	return form.Execute(w, map[string]any{"Title": title, "Version": pgstore.SchemaVersion, "From": o.From, "Up": up, "Down": down})
}

func printState(e *env, conn *pgx.Conn) error {
	var unlogged bool
	err := conn.QueryRow(e.ctx, "select relpersistence = 'u' from pg_class where oid = 'dipwell.buckets'::regclass").Scan(&unlogged)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "schema version %d, tables %s\n", pgstore.SchemaVersion, durabilityOf(unlogged))
	return err
}

func durabilityOf(unlogged bool) string {
	if unlogged {
		return "unlogged: after a crash all buckets are full again"
	}
	return "logged: a crash loses nothing that was answered"
}
