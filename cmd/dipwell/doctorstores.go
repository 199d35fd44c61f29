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

// file does not open the file as a store.
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
		x.ok("store", "file %s is in use by process %d", c.Path, c.PID)
	default:
		x.ok("store", "file %s is not in use", c.Path)
	}
	if !c.Missing {
		x.judge(c.Schema != c.Wanted, verdictProblem, "schema", "run the dipwell that wrote it, or a newer one", "version %d, and this program needs %d", c.Schema, c.Wanted)
	}
	if every == filestore.Each {
		x.ok("durability", "each decision is on the disk before the call is answered")
	} else {
		x.ok("durability", "a crash loses the decisions of the last %v; ?durability=each loses none", every)
	}
}

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
	x.ok("store", "%s answers as %s: %s", redact(url), c.User, server)
	if c.ReadOnly {
		x.problem("store", "it may be a standby: target_session_attrs=read-write finds the primary", "it is read-only")
	}
	x.clock("the database's clock", c.ClockAhead, c.ClockError)
	x.postgresSchema(c)
	if c.Schema == pgstore.SchemaVersion && len(c.Untrusted) == 0 { // reading the tables would run code that is not trusted
		x.postgresLimits(ctx, url)
	}
	x.postgresEngine(c)
}

func (x *examination) postgresSchema(c *pgstore.Condition) {
	const rest = "; limits and tables were not looked at"
	switch {
	case c.Callable:
		x.warn("schema", "this is enough for callers in SQL; a service must connect as a member of dipwell_service, or of dipwell_admin if it defines limits", "%s may call the functions of the schema dipwell and not read its tables"+rest, c.User)
	case c.Hidden:
		x.problem("schema", "grant dipwell_app to callers in SQL, dipwell_service to a service, dipwell_admin to one that defines limits", "%s may not use the schema dipwell"+rest, c.User)
	case c.Schema != pgstore.SchemaVersion:
		x.problem("schema", "", "%v", &pgstore.SchemaError{Have: c.Schema, Want: pgstore.SchemaVersion})
	default:
		x.ok("schema", "version %d, as this program needs", c.Schema)
	}
}

func (x *examination) postgresLimits(ctx context.Context, url string) {
	s, err := openStore(ctx, url, storeOptions{once: true})
	if err != nil {
		x.problem("store", "", "%v", timeoutError(err))
		return
	}
	defer func() { _ = s.Close() }()
	x.limits(s.Store)
}

func (x *examination) postgresEngine(c *pgstore.Condition) {
	if c.Engine == "YugabyteDB" || c.Engine == "CockroachDB" {
		return
	}
	x.judge(c.Fsync != "on" || c.FullPages != "on", verdictProblem, "durability", "set both on: without them a crash may damage the whole database",
		"fsync is %s, full_page_writes is %s", c.Fsync, c.FullPages)
	if c.Schema > 0 {
		x.judge(c.Unlogged, verdictWarning, "durability", "unless this is intended: dipwell migrate up --logged", "the tables are %s", durabilityOf(c.Unlogged))
	}
	if !c.Unlogged {
		x.judge(c.SyncCommit == "off", verdictWarning, "durability", "if a crash must not lose the last decisions: alter role "+c.User+" set synchronous_commit = on",
			"synchronous_commit is %s", c.SyncCommit)
	}
	x.judge(c.Encoding != "UTF8" && c.Encoding != "SQL_ASCII", verdictWarning, "encoding", "use a database in UTF8: otherwise a key that is not ASCII has one bucket for services and Go programs and another one for SQL",
		"the database is in %s", c.Encoding)
	x.postgresRoles(c)
	if c.Schema == pgstore.SchemaVersion {
		x.postgresSweep(c)
	}
}

func (x *examination) postgresRoles(c *pgstore.Condition) {
	own := "connect the service as a role of its own, and grant dipwell_service to it, or dipwell_admin when it defines limits"
	if c.Portable { // these tables come without roles
		own = "connect the service as a role of its own with rights on the tables of the schema dipwell"
	} else {
		x.judgeList(c.MissingRoles, verdictWarning, "roles", "create those that the server does not have, then run as the owner of the schema: select dipwell_internal.grant_roles()",
			"missing, or without rights on the schema", "dipwell_app, dipwell_service and dipwell_admin are there")
	}
	if c.Schema == pgstore.SchemaVersion && !c.Portable {
		x.postgresTrust(c)
	}
	if len(c.OpenSchemas) > 0 {
		x.warn("roles", fmt.Sprintf("revoke create on schema NAME from public, or: alter role %s set search_path = pg_catalog, pg_temp", c.User),
			"everybody may create functions and operators in a schema of the search path, where they may run with the rights of %s: %s", c.User, names(c.OpenSchemas, ", "))
	}
	if c.Super {
		x.warn("roles", own, "%s is a superuser", c.User)
	}
}

// postgresTrust judges who owns and may use the schemas.
func (x *examination) postgresTrust(c *pgstore.Condition) {
	x.judgeList(c.Untrusted, verdictProblem, "owner", "find out what they have done; then drop what is not yours, give it to "+c.Owner+", or revoke the right",
		"others can run code with the rights of "+c.Owner+" and of every caller", "the schemas and everything in them belong to "+c.Owner)
	x.judgeList(c.RoleLacks, verdictProblem, "rights", "alter table NAME disable row level security; for rights run as "+c.Owner+": select dipwell_internal.grant_roles()",
		"services would fail", "dipwell_service and dipwell_admin have what services need")
	if len(c.Lacks) > 0 && !c.Super {
		x.warn("rights", "grant dipwell_service to it, if a service connects as it", "%s could not decide: %s", c.User, names(c.Lacks, "; "))
	}
}

// A table with more than manyRows rows gets a warning if its last sweep was longSince ago.
const (
	manyRows  = 100_000
	longSince = time.Hour
)

// postgresSweep judges who deletes full rows, and when that was last done.
func (x *examination) postgresSweep(c *pgstore.Condition) {
	if c.Portable {
		x.ok("sweep", "only a running service deletes full rows")
		return
	}
	last := "never"
	if !c.Swept.IsZero() {
		last = time.Since(c.Swept).Round(time.Second).String() + " ago"
	}
	x.judge(c.LiveRows > manyRows && time.Since(c.Swept) > longSince, verdictWarning, "sweep", "run a service, or call dipwell.sweep(10000) while it returns 10000",
		"%d rows; the last complete sweep of them began: %s", c.LiveRows, last)
	switch c.SweepJob {
	case "planned":
		x.ok("sweep", "pg_cron deletes full rows")
	case "missing":
		x.warn("sweep", "select cron.schedule('dipwell-sweep', '* * * * *', 'select dipwell.sweep(10000)')", "pg_cron is installed but does not delete full rows; only a running service does")
	default:
		x.ok("sweep", "a running service deletes full rows; if none runs, call dipwell.sweep() from time to time")
	}
}

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
	config.Poll, config.AllowEviction = -1, true // redisNode has given a verdict on eviction already
	store, err := redisstore.New(ctx, db, config)
	if err != nil {
		x.problem("store", "", "%v", timeoutError(err))
		return
	}
	defer func() { _ = store.Close() }()
	x.limits(store)
	if _, cluster := db.(*goredis.ClusterClient); cluster && config.HashTag != "all" {
		x.ok("cluster", "hash_tag=key: a call may take from several limits with one key; calls with several keys need hash_tag=all")
	}
}

func (x *examination) redisNode(c *redisstore.Condition, evictionAllowed bool) {
	x.judge(c.Role != "master" && c.Role != "unknown", verdictProblem, "store", "give the Sentinels or the cluster instead; they know the primary",
		"%s answers: Redis %s, a %s", c.Addr, c.Version, c.Role)
	if c.ClusterState != "" {
		x.judge(c.ClusterState != "ok", verdictProblem, "cluster", "see cluster info and cluster nodes there", "cluster_state is %s at %s", c.ClusterState, c.Addr)
	}
	x.clock("the clock of "+c.Addr, c.Ahead, c.Error)
	verdict, advice := verdictProblem, "config set maxmemory-policy noeviction, or accept it with eviction=allow: an evicted bucket counts as full"
	if evictionAllowed {
		verdict, advice = verdictWarning, "eviction=allow accepts this: an evicted bucket counts as full"
	}
	if c.Policy == "" {
		x.warn("eviction", "make sure that it is noeviction: an evicted bucket counts as full", "maxmemory-policy of %s may not be read", c.Addr)
	} else {
		x.judge(c.Policy != "noeviction", verdict, "eviction", advice, "maxmemory-policy of %s is %s", c.Addr, c.Policy)
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
