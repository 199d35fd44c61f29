package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/pgstore"
)

// MigrateCmd holds the commands on the schema of a database.
type MigrateCmd struct {
	Up     MigrateUpCmd     `cmd:"" help:"Create or upgrade the schema, and choose how durable its tables are."`
	Down   MigrateDownCmd   `cmd:"" help:"Remove the schema with everything in it: limits and buckets."`
	Status MigrateStatusCmd `cmd:"" help:"Say which version a database has; status 1 when it is not this program's."`
	Print  MigratePrintCmd  `cmd:"" help:"Print the SQL of the whole schema, or of an upgrade, for a migration tool of your own."`
}

// database is where a schema is.
type database struct {
	Store string `placeholder:"URL" env:"DIPWELL_STORE" help:"The database: postgres://USER@HOST/DATABASE."`
}

// open connects to the database; close ends the connection.
func (d *database) open(ctx context.Context) (conn *pgx.Conn, closeConn func(), err error) {
	if d.Store == "" {
		return nil, nil, errors.New("store: say which database: --store postgres://USER@HOST/DATABASE")
	}
	if scheme, _, _ := strings.Cut(d.Store, "://"); openers[scheme] == nil || strings.HasPrefix(scheme, "redis") {
		return nil, nil, fmt.Errorf("store: %q has no schema to migrate; it must be postgres://…", redact(d.Store))
	}
	config, err := poolConfig(d.Store)
	if err != nil {
		return nil, nil, err
	}
	if conn, err = pgx.ConnectConfig(ctx, config.ConnConfig); err != nil {
		return nil, nil, storeAt(config, err)
	}
	return conn, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}, nil
}

// tables say what a crash of the server may do to the buckets.
type tables struct {
	Unlogged bool `xor:"durability" help:"Faster; after a crash of the server all buckets are full again, and a standby has none."`
	Logged   bool `xor:"durability" help:"A crash loses nothing that was answered (default for new tables)."`
	Citus    bool `help:"The database is Citus: distribute the buckets by key. YugabyteDB and CockroachDB are known by yugabyte:// and cockroach://."`
}

// options are what the flags and the URL's scheme ask for.
func (t tables) options(url string) pgstore.MigrateOptions {
	o := pgstore.MigrateOptions{Engine: pgstore.EngineOf(url)}
	if t.Citus {
		o.Engine = pgstore.Citus
	}
	switch {
	case t.Unlogged:
		o.Tables = pgstore.Unlogged
	case t.Logged:
		o.Tables = pgstore.Logged
	}
	return o
}

// MigrateUpCmd brings the schema to this program's version.
type MigrateUpCmd struct {
	database `embed:""`
	tables   `embed:""`
}

func (MigrateUpCmd) Help() string {
	return `Example: dipwell migrate up --store postgres://postgres@db/shop

All of it happens in one transaction, and programs that start together may all
run it. Run it again with --logged or --unlogged to change the tables, which
PostgreSQL then writes anew, and with neither to leave them as they are.`
}

func (c *MigrateUpCmd) Run(e *env) error {
	conn, closeConn, err := c.open(e.ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	applied, err := pgstore.Migrate(e.ctx, conn, c.options(c.Store))
	if err != nil {
		return migrateError(err)
	}
	for _, m := range applied {
		fmt.Fprintf(e.stdout, "applied %04d %s\n", m.Version, m.Name)
	}
	return printState(e, conn)
}

// MigrateDownCmd removes the schema.
type MigrateDownCmd struct {
	database `embed:""`
}

func (MigrateDownCmd) Help() string {
	return "Example: dipwell migrate down --store postgres://postgres@db/shop\nLimits and buckets are gone afterwards. The roles dipwell_app, dipwell_service and dipwell_admin stay: other databases may use them."
}

func (c *MigrateDownCmd) Run(e *env) error {
	conn, closeConn, err := c.open(e.ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	if err = pgstore.MigrateDown(e.ctx, conn); err != nil {
		return migrateError(err)
	}
	_, err = fmt.Fprintln(e.stdout, "the schema dipwell is gone")
	return err
}

// MigrateStatusCmd says what a database has.
type MigrateStatusCmd struct {
	database `embed:""`
}

func (MigrateStatusCmd) Help() string {
	return "Example: dipwell migrate status --store postgres://dipwell@db/shop\nIt ends with status 1 when the schema is missing, older or newer than this program's."
}

func (c *MigrateStatusCmd) Run(e *env) error {
	conn, closeConn, err := c.open(e.ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	list, err := pgstore.MigrationStatus(e.ctx, conn)
	if err != nil {
		return migrateError(err)
	}
	have := 0
	for _, m := range list {
		if !m.AppliedAt.IsZero() {
			have = m.Version
		}
	}
	for _, m := range list {
		if state := stateOf(&m); !m.AppliedAt.IsZero() || m.Version > have { // engines without functions have one for all
			fmt.Fprintf(e.stdout, "%04d %-12s %s\n", m.Version, m.Name, state)
		}
	}
	if have != pgstore.SchemaVersion {
		return errRefused
	}
	return printState(e, conn)
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

// MigratePrintCmd prints the schema.
type MigratePrintCmd struct {
	tables `embed:""`
	From   int    `placeholder:"N" help:"Print what a database of version N lacks, not the whole schema; migrate status says its version."`
	Store  string `placeholder:"URL" env:"DIPWELL_STORE" help:"Its scheme says whose SQL: yugabyte:// or cockroach://, else PostgreSQL's. No database is asked."`
}

func (MigratePrintCmd) Help() string {
	return "Example: dipwell migrate print --unlogged > db/migrations/20260101_dipwell.sql"
}

func (c *MigratePrintCmd) Run(e *env) error {
	o := c.options(c.Store)
	if o.From = c.From; c.From < 0 || c.From > pgstore.SchemaVersion {
		return fmt.Errorf("from: %d is not a version from 0 to %d", c.From, pgstore.SchemaVersion)
	}
	_, err := fmt.Fprint(e.stdout, pgstore.MigrationSQL(o))
	return err
}

// printState says in a line how the schema is now.
func printState(e *env, conn *pgx.Conn) error {
	var unlogged bool
	err := conn.QueryRow(e.ctx, "select relpersistence = 'u' from pg_class where oid = 'dipwell.buckets'::regclass").Scan(&unlogged)
	if err != nil {
		return migrateError(err)
	}
	kind := "logged: a crash loses nothing that was answered"
	if unlogged {
		kind = "unlogged: after a crash all buckets are full again"
	}
	_, err = fmt.Fprintf(e.stdout, "schema version %d, tables %s\n", pgstore.SchemaVersion, kind)
	return err
}

func migrateError(err error) error { return fmt.Errorf("migrate: %w", err) }
