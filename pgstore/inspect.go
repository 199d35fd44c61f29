package pgstore

import (
	"context"
	"time"
)

// Condition is the state of a server and of the schema, as found by Inspect.
type Condition struct {
	// Server is the result of version() on the server.
	Server string
	// Engine is PostgreSQL, YugabyteDB, CockroachDB, Citus or Portable, as in
	// MigrateOptions.
	Engine string
	// Portable says that the tables are those for distributed engines, without the SQL
	// functions.
	Portable bool
	// Schema is the version of the schema, 0 if there is none; New needs SchemaVersion.
	Schema int
	// ReadOnly is set on a standby, or if default_transaction_read_only is on: no call
	// can be charged.
	ReadOnly bool
	// Hidden is set if User may not read the schema: Schema is 0 and nothing is known
	// about tables and rows.
	Hidden bool
	// Callable is set if Hidden is, but User may call the functions: SQL callers then
	// work, but a Store does not.
	Callable bool
	// User is the role that the connection has, current_user.
	User string
	// Super is set if User is a superuser, which a program that takes tokens need not be.
	Super bool

	// ClockAhead is by how much the server's clock is ahead of this machine's, and
	// ClockError the largest possible error of that: half of the shortest round trip.
	// The difference changes no decision, because the server's clock makes all of them.
	ClockAhead, ClockError time.Duration

	// The fields below are set only if the server is PostgreSQL, with the
	// tables of any engine. On Citus they describe the coordinator, and its
	// statistics do not include the rows on the workers.

	// Fsync and FullPages are the settings fsync and full_page_writes of the server: unless
	// both are on, a crash may damage the tables.
	Fsync, FullPages string
	// SyncCommit is synchronous_commit in the user's sessions. Unless it is off, a crash of
	// the server loses nothing that was answered, if the tables are logged.
	SyncCommit string
	// Encoding is the encoding of the database. If it is neither UTF8 nor SQL_ASCII, a key
	// that is not ASCII has one bucket for Go and another one for SQL.
	Encoding string
	// Unlogged says that the tables of buckets are empty after a crash of the server: see
	// MigrateOptions.Tables.
	Unlogged bool
	// MissingRoles are those of dipwell_app, dipwell_service and dipwell_admin that the
	// server does not have, or that may not use the schema, as after a restore without
	// privileges.
	MissingRoles []string
	// OpenSchemas are the schemas in User's search path in which everybody may create
	// objects, as in public before PostgreSQL 15. An operator or a function that somebody
	// creates there may run in statements of a Store, with the rights of User.
	OpenSchemas []string
	// Owner is the role that owns the schemas.
	Owner string
	// Untrusted lists what lets others than Owner run code with its rights, and with those
	// of whoever calls the functions: a schema or an object that belongs to another role, and
	// rights to create such. Migrate refuses schemas for which Untrusted has entries. If
	// there are entries, Inspect calls no function of the schemas.
	Untrusted []string
	// Lacks are the rights that User lacks to decide as a Store does, and the tables whose
	// row security is on for it. RoleLacks are the rights that dipwell_service and
	// dipwell_admin lack.
	Lacks, RoleLacks []string
	// SweepJob is pg_cron's job that deletes full rows: planned, missing, hidden (User
	// may not read the jobs), or empty (pg_cron is not installed in this database).
	SweepJob string
	// LiveRows is the server's estimate of the rows in buckets.
	LiveRows int64
	// Swept is the start of the last complete pass of a sweep; zero: never, or not
	// visible to User.
	Swept time.Time
}

// Inspect reads the state of a database and changes nothing. Inspect also works
// without the schema, and with another version of it. An error means that the database
// could not be read; a missing schema or privilege is reported in the Condition.
// Inspect reads the server's clock several times, which takes some round trips: it is
// for operators, not for each call.
func Inspect(ctx context.Context, db DB) (*Condition, error) {
	c := &Condition{}
	if err := db.QueryRow(ctx, "select version(), current_user::text, current_setting('transaction_read_only') = 'on'").Scan(&c.Server, &c.User, &c.ReadOnly); err != nil {
		return nil, err
	}
	err := c.readClock(ctx, db)
	if err != nil {
		return nil, err
	}
	c.Engine = engineOfVersion(c.Server)
	if c.Schema, err = schemaVersion(ctx, db); err != nil {
		if c.Hidden = denied(err); !c.Hidden {
			return nil, err
		}
	}
	if c.Schema > 0 {
		d, err := detect(ctx, db)
		if err != nil {
			return nil, err
		}
		if d != nil {
			c.Portable, c.Engine = true, d.engine
		}
	}
	if c.Engine == yugabyteDB || c.Engine == cockroachDB {
		return c, nil
	}
	if err = c.settings(ctx, db); err == nil && c.Schema == SchemaVersion && !c.Portable && len(c.Untrusted) == 0 {
		if err = c.sweepState(ctx, db); err == nil {
			err = c.rights(ctx, db)
		}
	}
	if err == nil && c.Hidden {
		err = db.QueryRow(ctx, `select coalesce(bool_or(has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute')), false)
			from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'dipwell' and p.proname = 'take'`).Scan(&c.Callable)
	}
	if err != nil {
		return nil, err
	}
	return c, c.sweeping(ctx, db)
}

// denied reports whether the user lacks a privilege.
func denied(err error) bool { return codeOf(err) == codeDenied }

// settings reads the settings of the server and of the tables, and finds out who can replace
// what runs in the schemas.
func (c *Condition) settings(ctx context.Context, db DB) error {
	return db.QueryRow(ctx, `select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on',
			current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('server_encoding'),
			coalesce((select rolsuper from pg_roles where rolname = current_user), false),
			array(select r from unnest(array['dipwell_app', 'dipwell_service', 'dipwell_admin']) r where not exists (select from pg_roles where rolname = r
				and coalesce(has_schema_privilege(oid, to_regnamespace('dipwell')::oid, 'usage'), true))),
			array(select n.nspname::text from pg_namespace n where n.nspname = any (current_schemas(false)) and has_schema_privilege('public', n.oid, 'create') order by 1),
			coalesce((select b.relpersistence = 'u' from pg_class b join pg_namespace n on n.oid = b.relnamespace where $1::boolean and n.nspname = 'dipwell' and b.relname = 'buckets'), false),
			coalesce((select s.n_live_tup from pg_stat_user_tables s where $1::boolean and s.schemaname = 'dipwell' and s.relname = 'buckets'), 0),
			coalesce((select pg_get_userbyid(n.nspowner)::text from pg_namespace n where n.nspname = 'dipwell'), ''),
			array(select u.what from (`+untrustedSQL+`) u where u.always)`, c.Schema > 0).
		Scan(&c.ReadOnly, &c.Fsync, &c.FullPages, &c.SyncCommit, &c.Encoding, &c.Super, &c.MissingRoles, &c.OpenSchemas,
			&c.Unlogged, &c.LiveRows, &c.Owner, &c.Untrusted)
}

// rights finds out which rights logins lack to decide calls.
func (c *Condition) rights(ctx context.Context, db DB) error {
	err := db.QueryRow(ctx, `select dipwell_internal.lacks(), array(select r.rolname || ': ' || x from pg_roles r, unnest(dipwell_internal.lacks(r.rolname)) x
		where r.rolname in ('dipwell_service', 'dipwell_admin') and has_schema_privilege(r.oid, 'dipwell', 'usage') order by 1)`).Scan(&c.Lacks, &c.RoleLacks)
	if denied(err) {
		c.Lacks, err = []string{"usage on schema dipwell_internal, or execute on its functions"}, nil
	}
	return err
}

func (c *Condition) sweepState(ctx context.Context, db DB) error {
	var at int64
	err := db.QueryRow(ctx, "select passed - took from dipwell.sweep_state").Scan(&at)
	if denied(err) {
		return nil
	}
	if at > 0 {
		c.Swept = time.UnixMicro(at)
	}
	return err
}

// sweeping reads pg_cron's jobs, which a server keeps in one of its databases.
func (c *Condition) sweeping(ctx context.Context, db DB) error {
	var there, may bool
	err := db.QueryRow(ctx, `select exists (select from pg_extension where extname = 'pg_cron'), coalesce((select has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
		from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'cron' and c.relname = 'job'), false)`).Scan(&there, &may)
	if err != nil || !there {
		return err
	}
	if c.SweepJob = "hidden"; !may {
		return nil
	}
	var planned bool
	err = db.QueryRow(ctx, "select exists (select from cron.job where active and database = current_database() and command like '%dipwell.sweep%')").Scan(&planned)
	if c.SweepJob = "missing"; planned {
		c.SweepJob = "planned"
	}
	return err
}

// clockSamples is how often Inspect reads the server's clock.
const clockSamples = 8

// readClock compares the server's clock with this machine's, several times, and
// keeps the reading with the smallest possible error: half its round trip.
func (c *Condition) readClock(ctx context.Context, db DB) error {
	for i := range clockSamples {
		var now int64
		start := time.Now()
		if err := db.QueryRow(ctx, "select "+readNow).Scan(&now); err != nil {
			return err
		}
		took := time.Since(start)
		if bound := took/2 + time.Microsecond; i == 0 || bound < c.ClockError {
			c.ClockAhead, c.ClockError = time.UnixMicro(now).Sub(start.Add(took/2)), bound
		}
	}
	return nil
}
