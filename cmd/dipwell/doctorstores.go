package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
)

// Thresholds of findings in databases.
const (
	fewHot        = 0.9
	enoughUpdates = 1000            // with fewer updates there is no verdict
	manyDead      = 0.5             // ratio of dead to live rows
	deadEnough    = 10000           // with fewer dead rows there is no verdict
	longOpen      = 5 * time.Minute // age of a transaction, which keeps dead rows
	fullMemory    = 0.9
	fullClients   = 0.9
)

// file checks a store in a file without opening it as a store.
func (x *examination) file(url string) {
	path, every, err := filestore.ParseURL(url)
	if err != nil {
		x.problem("store", "", "%v", err)
		return
	}
	c, err := filestore.Inspect(path)
	switch {
	case err != nil:
		x.problem("store", "serve does not start with it; nothing was changed", "%v", err)
		return
	case c.Missing:
		x.warn("store", "serve creates it", "file %s does not exist yet", c.Path)
	case c.InUse:
		x.ok("store", "file %s is in use by process %d, %d bytes, last written %s", c.Path, c.PID, c.Bytes, c.Written.UTC().Format(time.DateTime+"Z"))
	default:
		x.ok("store", "file %s is not in use, %d bytes, last written %s", c.Path, c.Bytes, c.Written.UTC().Format(time.DateTime+"Z"))
	}
	if !c.Missing {
		advice := "run the dipwell that wrote it, or a newer one"
		x.judge(c.Schema != c.Wanted, verdictProblem, "schema", advice, "version %d, and this program knows %d", "version %d, as this program's %d", c.Schema, c.Wanted)
	}
	switch every {
	case filestore.Each:
		x.ok("durability", "each decision is on the disk before the call is answered")
	default:
		x.ok("durability", "a crash loses the decisions of the last %v; ?durability=each loses none", every)
	}
}

// postgres checks a database.
func (x *examination) postgres(ctx context.Context, url string) {
	config, err := pgstore.ParseURL(url)
	if err != nil {
		x.problem("store", "", "%v", err)
		return
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		x.down(url, timeoutError(err))
		return
	}
	defer closeConn(ctx, conn)
	c, err := pgstore.Inspect(ctx, conn)
	if err != nil {
		x.problem("store", "", "%v", timeoutError(err))
		return
	}
	server, _, _ := strings.Cut(c.Server, " (")
	server, _, _ = strings.Cut(server, ",")
	x.judge(c.ReadOnly, verdictProblem, "store", "it may be a standby: target_session_attrs=read-write finds the primary",
		"%s answers as %s, read-only: %s", "%s answers as %s: %s", redact(url), c.User, server)
	x.clock("the database's clock", c.ClockAhead, c.ClockError)
	if c.Hidden {
		x.postgresHidden(ctx, c, conn)
	} else {
		x.postgresSchema(c)
	}
	if c.Schema == pgstore.SchemaVersion && len(c.Untrusted) == 0 { // calls would run what is not trusted
		x.postgresDecisions(ctx, url, conn, c.Portable)
	}
	x.postgresEngine(c)
}

// postgresEngine checks what depends on the engine.
func (x *examination) postgresEngine(c *pgstore.Condition) {
	if c.Portable {
		x.ok("engine", "%s: a call of several keys is a transaction that locks rows and is retried on a conflict; a refusal of one key writes nothing; the service deletes full rows", c.Engine)
	}
	if c.Engine == "YugabyteDB" || c.Engine == "CockroachDB" {
		return
	}
	if c.Engine == "Citus" {
		x.ok("engine", "settings, roles and connections below are those of the coordinator; updates and dead rows on the workers were not examined")
	}
	x.postgresHealth(c)
}

func lookAtClock(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "select clock_timestamp()")
	return err
}

func (x *examination) postgresSchema(c *pgstore.Condition) {
	if c.Schema != pgstore.SchemaVersion {
		err := &pgstore.SchemaError{Have: c.Schema, Want: pgstore.SchemaVersion}
		x.problem("schema", "", "%v", err)
	} else {
		x.ok("schema", "version %d, as this program needs", c.Schema)
	}
}

// postgresHidden reports that the user may not read the schema.
func (x *examination) postgresHidden(ctx context.Context, c *pgstore.Condition, conn *pgx.Conn) {
	const rest = "; limits, their latency, tables and rows were not looked at"
	if c.Callable {
		x.warn("schema", "this is enough for callers in SQL; a service must connect as a member of dipwell_service, or of dipwell_admin if it defines limits", "%s may call the functions of the schema dipwell and not read its tables"+rest, c.User)
	} else {
		x.problem("schema", "grant dipwell_app to callers in SQL, dipwell_service to a service, dipwell_admin to one that defines limits", "%s may not use the schema dipwell"+rest, c.User)
	}
	x.latency(ctx, "looks at the clock", func(ctx context.Context) error { return lookAtClock(ctx, conn) })
}

func (x *examination) postgresDecisions(ctx context.Context, url string, conn *pgx.Conn, portable bool) {
	s, err := openStore(ctx, url, storeOptions{once: true})
	if err != nil {
		x.problem("store", "", "%v", timeoutError(err))
		return
	}
	defer func() { _ = s.Close() }()
	x.decisions(ctx, s.Store, func(ctx context.Context) error { return lookAtClock(ctx, conn) })
	if !portable {
		x.postgresHolds(ctx, conn)
	}
}

// postgresHealth checks what only PostgreSQL reports.
func (x *examination) postgresHealth(c *pgstore.Condition) {
	x.judge(!c.Fsync || !c.FullPages, verdictProblem, "durability", "set fsync and full_page_writes on: without them a crash may damage the whole database",
		"fsync or full_page_writes is off", "fsync and full_page_writes are on")
	if c.Schema > 0 {
		x.judge(c.Unlogged, verdictWarning, "durability", "unless this is intended: dipwell migrate up --logged",
			"the tables are unlogged: after a crash every bucket is full, and a standby has none", "the tables are logged")
	}
	if !c.Unlogged {
		x.judge(c.SyncCommit == "off", verdictWarning, "durability", "unless this is intended: alter role "+c.User+" set synchronous_commit = on",
			"synchronous_commit is %s: a crash loses the last decisions", "synchronous_commit is %s", c.SyncCommit)
	}
	x.judge(c.Encoding != "UTF8" && c.Encoding != "SQL_ASCII", verdictWarning, "encoding", "use a database in UTF8, if keys are not ASCII",
		"the database is in %s: a key that is not ASCII has one bucket for services and Go programs and another one for SQL", "the database is in %s", c.Encoding)
	x.postgresRoles(c)
	if c.Schema > 0 {
		x.judge(len(c.NoIdentity) > 0, verdictProblem, "replication", "give them a primary key, or: alter table NAME replica identity full",
			"while a publication has them, tables without a primary key or another replica identity cannot be updated: %s", "every table has a replica identity%s", strings.Join(c.NoIdentity, ", "))
		x.postgresRows(c)
	}
	x.judge(float64(c.Connections) > fullClients*float64(c.MaxConnections), verdictWarning, "connections", "raise max_connections, or use a connection pooler",
		"%d of %d are in use", "%d of %d are in use", c.Connections, c.MaxConnections)
}

// postgresTrust judges who owns and may use the schemas.
func (x *examination) postgresTrust(c *pgstore.Condition) {
	x.judge(len(c.Untrusted) > 0, verdictProblem, "owner", "find out what they have done; then drop what is not yours, give it to "+c.Owner+", or revoke the right",
		"others can run code with the rights of %s and of every caller: %s", "the schemas and everything in them belong to %s%s", c.Owner, strings.Join(c.Untrusted, "; "))
	x.judge(len(c.RoleLacks) > 0, verdictProblem, "rights", fmt.Sprintf("alter table NAME disable row level security; for rights run as %s: select dipwell_internal.grant_roles()", c.Owner),
		"services would fail: %s", "dipwell_service and dipwell_admin have what services need%s", strings.Join(c.RoleLacks, "; "))
	if len(c.Lacks) > 0 && !c.Super {
		x.warn("rights", "grant dipwell_service to it, if a service connects as it", "%s could not decide: %s", c.User, strings.Join(c.Lacks, "; "))
	}
}

func (x *examination) postgresRoles(c *pgstore.Condition) {
	own := "connect the service as a role of its own, and grant dipwell_service to it, or dipwell_admin when it defines limits"
	if c.Portable { // tables without roles
		own = "connect the service as a role of its own with rights on the tables of the schema dipwell"
	} else {
		x.judge(len(c.MissingRoles) > 0, verdictWarning, "roles", "create those that the server does not have, then run as the owner of the schema: select dipwell_internal.grant_roles()",
			"missing, or without rights on the schema: %s", "dipwell_app, dipwell_service and dipwell_admin are there%s", strings.Join(c.MissingRoles, ", "))
	}
	if c.Schema == pgstore.SchemaVersion && !c.Portable {
		x.postgresTrust(c)
	}
	if len(c.OpenSchemas) > 0 {
		x.warn("roles", fmt.Sprintf("revoke create on schema NAME from public, or: alter role %s set search_path = pg_catalog, pg_temp", c.User),
			"everybody may create functions and operators in a schema of the search path, where they may run with the rights of %s: %s", c.User, strings.Join(c.OpenSchemas, ", "))
	}
	x.judge(c.Super, verdictWarning, "roles", own, "%s is a superuser", "%s is not a superuser", c.User)
}

func (x *examination) postgresRows(c *pgstore.Condition) {
	if c.Engine != "Citus" {
		x.postgresCounters(c)
	}
	x.judge(!c.Autovacuum, verdictProblem, "rows", "set autovacuum = on: otherwise dead rows accumulate, and transaction ids run out", "autovacuum is off", "autovacuum is on")
	x.judge(c.OldestTransaction > longOpen, verdictWarning, "rows", "find it in pg_stat_activity; idle_in_transaction_session_timeout ends such transactions",
		"a transaction has been open for %v, and dead rows stay until it ends", "no transaction that this user sees has been open for long (the oldest %v)", c.OldestTransaction.Round(time.Millisecond))
	if c.Schema == pgstore.SchemaVersion && !c.Portable {
		x.postgresSwept(c)
	}
	switch {
	case c.Portable:
		x.ok("sweep", "only a running service deletes full rows")
	case c.SweepJob == "planned":
		x.ok("sweep", "pg_cron deletes full rows")
	case c.SweepJob == "missing":
		x.warn("sweep", "select cron.schedule('dipwell-sweep', '* * * * *', 'select dipwell.sweep(10000)')", "pg_cron is installed but does not delete full rows; only a running service does")
	case c.SweepJob == "hidden":
		x.ok("sweep", "pg_cron is installed, but this user may not see its jobs; a running service deletes full rows in any case")
	default:
		x.ok("sweep", "without pg_cron only a running service deletes full rows; if none runs, call dipwell.sweep() from time to time")
	}
}

// A table with more than manyRows gets a warning if its last sweep was longSince ago.
const (
	manyRows  = 100_000
	longSince = time.Hour
)

// postgresSwept judges when the table was last swept.
func (x *examination) postgresSwept(c *pgstore.Condition) {
	last := "the last complete sweep of them: never"
	if !c.Swept.IsZero() {
		last = fmt.Sprintf("the last complete sweep of them began %v ago", time.Since(c.Swept).Round(time.Second))
	}
	x.judge(c.LiveRows > manyRows && time.Since(c.Swept) > longSince, verdictWarning, "sweep", "run a service, or call dipwell.sweep(10000) while it returns 10000",
		"%d rows; %s", "%d rows; %s", c.LiveRows, last)
}

// postgresCounters judges the server's statistics of buckets.
func (x *examination) postgresCounters(c *pgstore.Condition) {
	if c.Updates >= enoughUpdates {
		share := float64(c.HotUpdates) / float64(c.Updates)
		x.judge(share < fewHot, verdictWarning, "updates", "give the table room: alter table dipwell.buckets set (fillfactor = 70), no index on used or ts, no long transactions",
			"%.1f %% of %d updates of buckets left the indexes alone", "%.1f %% of %d updates of buckets left the indexes alone", 100*share, c.Updates)
	} else {
		x.ok("updates", "%s of buckets so far, too few for a verdict", howMany(c.Updates, "update"))
	}
	vacuumed := "never"
	if !c.LastVacuum.IsZero() {
		vacuumed = c.LastVacuum.UTC().Format(time.DateTime + "Z")
	}
	x.judge(c.DeadRows > deadEnough && float64(c.DeadRows) > manyDead*float64(c.LiveRows), verdictWarning, "rows", "vacuum dipwell.buckets, and find out why autovacuum does not",
		"%d live, %d dead, last vacuumed %s", "%d live, %d dead, last vacuumed %s", c.LiveRows, c.DeadRows, vacuumed)
}

// redis checks every primary.
func (x *examination) redis(ctx context.Context, url string) {
	db, config, err := redisstore.Client(url, redisstore.Config{})
	if err != nil {
		x.problem("store", "", "%v", err)
		return
	}
	defer func() { _ = db.Close() }()
	list, err := redisstore.Inspect(ctx, db)
	if err != nil {
		x.down(url, timeoutError(err))
		return
	}
	for i := range list {
		x.redisNode(&list[i], config.AllowEviction)
	}
	config.Poll, config.AllowEviction = -1, true // redisNode has given a verdict on it
	store, err := redisstore.New(ctx, db, config)
	if err != nil {
		x.problem("store", "", "%v", timeoutError(err))
		return
	}
	defer func() { _ = store.Close() }()
	x.decisions(ctx, store, func(ctx context.Context) error { _, err := store.Abilities().Now(ctx); return err })
	if _, cluster := db.(*goredis.ClusterClient); cluster && config.HashTag != "all" {
		x.ok("cluster", "hash_tag=key: a call may take from several limits with one key; calls with several keys need hash_tag=all")
	}
}

func (x *examination) redisNode(c *redisstore.Condition, evictionAllowed bool) {
	at := func(s string) string { return s + " " + c.Addr }
	x.judge(c.Role != "master" && c.Role != "unknown", verdictProblem, "store", "give the Sentinels or the cluster instead; they know the primary",
		"%s answers: Redis %s, a %s, %s", "%s answers: Redis %s, a %s, %s", c.Addr, c.Version, c.Role, howMany(c.Keys, "key"))
	if c.ClusterState != "" {
		x.judge(c.ClusterState != "ok", verdictProblem, "cluster", "see cluster info and cluster nodes there", at("cluster_state is %s at"), at("cluster_state is %s at"), c.ClusterState)
	}
	x.clock("the clock of "+c.Addr, c.Ahead, c.Error)
	switch {
	case c.Policy == "":
		x.warn("eviction", "make sure that it is noeviction: an evicted bucket counts as full", "maxmemory-policy of %s may not be read", c.Addr)
	case c.Policy != "noeviction" && evictionAllowed:
		x.warn("eviction", "eviction=allow accepts this: an evicted bucket counts as full", "maxmemory-policy of %s is %s, %s evicted", c.Addr, c.Policy, howMany(c.Evicted, "key"))
	default:
		x.judge(c.Policy != "noeviction", verdictProblem, "eviction", "config set maxmemory-policy noeviction, or accept it with eviction=allow: an evicted bucket counts as full",
			"maxmemory-policy of %s is %s, %s evicted", "maxmemory-policy of %s is %s, %s evicted", c.Addr, c.Policy, howMany(c.Evicted, "key"))
	}
	memory := fmt.Sprintf("%.1f MB in use", float64(c.UsedMemory)/1e6)
	if c.MaxMemory > 0 {
		memory += fmt.Sprintf(" of %.1f MB", float64(c.MaxMemory)/1e6)
	} else {
		memory += ", without a bound of its own"
	}
	x.judge(c.MaxMemory > 0 && float64(c.UsedMemory) > fullMemory*float64(c.MaxMemory), verdictWarning, "memory", "raise maxmemory: when it is full, calls of new keys fail",
		"%s: %s", "%s: %s", c.Addr, memory)
	x.redisDurability(c)
}

func (x *examination) redisDurability(c *redisstore.Condition) {
	if c.SaveFailed {
		x.problem("durability", "see its log: the disk may be full", "%s could not write its last snapshot or append-only file", c.Addr)
	}
	switch {
	case c.AppendOnly:
		x.ok("durability", "%s appends each change (appendfsync %s)", c.Addr, c.AppendSync)
	case c.Snapshots:
		x.warn("durability", "set appendonly yes if a crash must not lose more than a second", "%s only writes snapshots: a crash loses everything after the last one", c.Addr)
	default:
		x.warn("durability", "unless this is intended: config set appendonly yes", "%s stores nothing on disk: after a restart every bucket is full, and limits must be defined again", c.Addr)
	}
}
