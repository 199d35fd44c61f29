package pgstore

import (
	"context"
	"time"
)

// Sweeping tells who deletes full rows, as far as the database knows.
type Sweeping int

const (
	SweepByService Sweeping = iota // pg_cron is not installed in this database
	SweepUnplanned                 // pg_cron is installed but has no active job that sweeps
	SweepByCron
	SweepUnknown // the user may not read pg_cron's jobs
)

// Condition is the state of a server and of the schema, as found by Inspect.
type Condition struct {
	Server   string // version() of the server
	Engine   Engine
	Portable bool // the tables are those for distributed engines
	Schema   int  // version of the schema, 0 if there is none; this program needs SchemaVersion
	ReadOnly bool // a standby, or default_transaction_read_only is on
	Hidden   bool // User may not read the schema: Schema is 0 and nothing is known about tables and rows
	Callable bool // Hidden is true, but User may call the functions
	User     string
	Super    bool // User is a superuser

	// The fields below are set only if Engine.IsPostgreSQL. On Citus they
	// describe the coordinator, and its statistics do not include the rows on
	// the workers.

	Fsync, FullPages, Autovacuum bool
	SyncCommit                   string // synchronous_commit in the user's sessions
	Unlogged                     bool   // the tables are empty after a crash of the server
	MissingRoles                 []string
	Sweep                        Sweeping
	Updates, HotUpdates          int64 // of buckets, since the statistics were reset
	LiveRows, DeadRows           int64
	LastVacuum                   time.Time     // zero: never
	Swept                        time.Time     // start of the last complete pass of a sweep; zero: never, or not visible to User
	OldestTransaction            time.Duration // age of the oldest open transaction, which keeps dead rows from being removed
	Connections, MaxConnections  int
}

// Inspect reads the state of a database and changes nothing. It also works
// without the schema. An error means that the database could not be read; a
// missing schema or privilege is reported in the Condition.
func Inspect(ctx context.Context, db DB) (*Condition, error) {
	c := &Condition{}
	if err := db.QueryRow(ctx, "select version(), current_user::text, current_setting('transaction_read_only') = 'on'").Scan(&c.Server, &c.User, &c.ReadOnly); err != nil {
		return nil, err
	}
	c.Engine = engineOfVersion(c.Server)
	var err error
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
	if !c.Engine.IsPostgreSQL() {
		return c, nil
	}
	if err = c.settings(ctx, db); err == nil && c.Schema > 0 {
		err = c.tables(ctx, db)
	}
	if err == nil && c.Schema == SchemaVersion && !c.Portable {
		err = c.sweepState(ctx, db)
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
func denied(err error) bool {
	return codeOf(err) == "42501" // insufficient_privilege
}

func (c *Condition) settings(ctx context.Context, db DB) error {
	var age *float64
	err := db.QueryRow(ctx, `select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on',
			current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', current_setting('autovacuum') = 'on', current_setting('synchronous_commit'),
			coalesce((select rolsuper from pg_roles where rolname = current_user), false),
			array(select r from unnest(array['dipwell_app', 'dipwell_service', 'dipwell_admin']) r where not exists (select from pg_roles where rolname = r)),
			(select extract(epoch from max(clock_timestamp() - xact_start))::float8 from pg_stat_activity
				where backend_type = 'client backend' and pid <> pg_backend_pid()),
			(select count(*)::int from pg_stat_activity where backend_type = 'client backend'), current_setting('max_connections')::int`).
		Scan(&c.ReadOnly, &c.Fsync, &c.FullPages, &c.Autovacuum, &c.SyncCommit, &c.Super, &c.MissingRoles, &age, &c.Connections, &c.MaxConnections)
	if age != nil {
		c.OldestTransaction = time.Duration(*age * float64(time.Second))
	}
	return err
}

func (c *Condition) tables(ctx context.Context, db DB) error {
	var vacuumed *time.Time
	err := db.QueryRow(ctx, `select c.relpersistence = 'u', coalesce(s.n_tup_upd, 0), coalesce(s.n_tup_hot_upd, 0), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
			greatest(s.last_vacuum, s.last_autovacuum)
		from pg_class c left join pg_stat_user_tables s on s.relid = c.oid where c.oid = to_regclass('dipwell.buckets')`).
		Scan(&c.Unlogged, &c.Updates, &c.HotUpdates, &c.LiveRows, &c.DeadRows, &vacuumed)
	if vacuumed != nil {
		c.LastVacuum = *vacuumed
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
	if c.Sweep = SweepUnknown; !may {
		return nil
	}
	var planned bool
	err = db.QueryRow(ctx, "select exists (select from cron.job where active and database = current_database() and command like '%dipwell.sweep%')").Scan(&planned)
	if c.Sweep = SweepUnplanned; planned {
		c.Sweep = SweepByCron
	}
	return err
}

// HotShare returns the share of updates of buckets that were HOT (changed no
// index), from 0 to 1. ok is false if there were fewer than 1000 updates.
func (c *Condition) HotShare() (share float64, ok bool) {
	const enough = 1000
	return float64(c.HotUpdates) / float64(max(c.Updates, 1)), c.Updates >= enough
}

// A Sample is one reading of a server's clock.
type Sample struct {
	Ahead time.Duration // server's clock minus this machine's clock
	Error time.Duration // largest possible error of Ahead: half the round trip
}

// ClockSample compares the server's clock with this machine's. It does not need
// the schema.
func ClockSample(ctx context.Context, db DB) (Sample, error) {
	var now int64
	start := time.Now()
	if err := db.QueryRow(ctx, "select "+readNow).Scan(&now); err != nil {
		return Sample{}, err
	}
	took := time.Since(start)
	return Sample{time.UnixMicro(now).Sub(start.Add(took / 2)), took/2 + time.Microsecond}, nil
}
