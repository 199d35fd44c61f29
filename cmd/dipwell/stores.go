package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

type closer interface {
	store.Store
	Close() error
}

var openers = map[string]func(ctx context.Context, url string, o *storeOptions) (closer, error){
	"memory":     openMemory,
	"file":       openFile,
	"postgres":   openPostgres,
	"postgresql": openPostgres,
	"yugabyte":   openPostgres,
	"cockroach":  openPostgres,

	"redis":           openRedis,
	"rediss":          openRedis,
	"redis+cluster":   openRedis,
	"rediss+cluster":  openRedis,
	"redis+sentinel":  openRedis,
	"rediss+sentinel": openRedis,
}

// Some of the storeOptions apply only to stores outside this process.
type storeOptions struct {
	once bool // for a single command: the store gets no layers, and its server must answer

	wait bool // wait for a role or a database that the server rejects
	// Bounds for a store in this process; 0: the store's default.
	maxKeys, maxHolds, maxOverrides int
	maxKeyBytes                     int64
	denyMaxAge                      time.Duration
	keySecret                       []byte // nil: keys are stored as text
	shadow                          bool
	outer                           func(store.Store) store.Store
	tally                           *tally       // counts batches; may be nil
	report                          func(error)  // called with errors of background work
	note                            func(string) // called when background work has recovered; may be nil
}

type opened struct {
	*stack.Stack
	base closer
}

func (o *opened) Close() error { return errors.Join(o.Stack.Close(), o.base.Close()) }

// openStore opens the store of a URL with the layers around it. A store in this process
// or in a file gets no breaker, deny cache or fallback, because it decides from memory.
func openStore(ctx context.Context, url string, o storeOptions) (*opened, error) {
	if err := knownStore(url); err != nil {
		return nil, err
	}
	scheme, _, _ := strings.Cut(url, ":")
	base, err := openers[scheme](ctx, url, &o)
	if err != nil {
		return nil, err
	}
	s, err := stack.New(ctx, base, o.stack(scheme))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", redact(url), err), base.Close())
	}
	return &opened{s, base}, nil
}

const defaultDenyMaxAge = time.Second // how long a refusal is remembered

func (o *storeOptions) stack(scheme string) stack.Options {
	s := stack.Options{Lanes: -1, KeySecret: o.keySecret, Shadow: o.shadow, Outer: o.outer}
	if o.once || scheme == "memory" || scheme == "file" {
		return s
	}
	s.Lanes, s.Breaker, s.Leases, s.Fallback, s.FallbackKeys = 0, true, true, true, o.maxKeys
	if o.denyMaxAge >= 0 {
		s.DenyMaxAge = cmp.Or(o.denyMaxAge, defaultDenyMaxAge)
	}
	if o.tally != nil {
		s.OnBatch = o.tally.count
	}
	s.OnBreaker = func(why error) {
		switch {
		case why != nil:
			o.report(why)
		case o.note != nil:
			o.note("it answers again")
		}
	}
	return s
}

func openMemory(_ context.Context, url string, o *storeOptions) (closer, error) {
	if err := checkMemory(url); err != nil {
		return nil, err
	}
	return memstore.New(memstore.Config{MaxKeys: o.maxKeys, MaxKeyBytes: o.maxKeyBytes, MaxHolds: o.maxHolds, MaxOverrides: o.maxOverrides})
}

// sideConns is the number of a service's connections to PostgreSQL for everything but
// decisions: changes of limits, pages of keys, sweeps, /readyz.
const sideConns = 2

func openPostgres(ctx context.Context, url string, o *storeOptions) (closer, error) {
	c := pgstore.Config{Lazy: true, WaitForAccess: o.wait, MaxConns: sideConns, Sweep: true, OnError: o.report}
	if o.once {
		c = pgstore.Config{Poll: -1, MaxConns: 1, OnError: o.report}
	}
	s, err := pgstore.Open(ctx, url, c)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", redact(url), err)
	}
	return s, nil
}

func openRedis(ctx context.Context, url string, o *storeOptions) (closer, error) {
	c := redisstore.Config{Lazy: true, WaitForAccess: o.wait, OnError: o.report}
	if o.once {
		c = redisstore.Config{Poll: -1, OnError: o.report}
	}
	s, err := redisstore.Open(ctx, url, c)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", redact(url), err)
	}
	return s, nil
}

// silent drops log lines about lost connections, because errors report what matters.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { goredis.SetLogger(silent{}) }

func knownStore(url string) error {
	scheme, _, ok := strings.Cut(url, ":")
	if !ok || openers[scheme] == nil {
		return fmt.Errorf("store: %q is not a store that this program can open; it knows %s", redact(url), storeList())
	}
	return nil
}

// checkStore returns what is wrong with a store's URL, without opening the store.
func checkStore(url string) error {
	err := knownStore(url)
	if err != nil {
		return err
	}
	switch scheme, _, _ := strings.Cut(url, ":"); {
	case scheme == "memory":
		err = checkMemory(url)
	case scheme == "file":
		_, _, err = filestore.ParseURL(url)
	case strings.HasPrefix(scheme, "redis"):
		db, _, bad := redisstore.Client(url, redisstore.Config{})
		if bad != nil {
			return fmt.Errorf("store %s: %w", redact(url), errors.Unwrap(bad)) // without the words that Client adds, because the URL says redis already
		}
		err = db.Close()
	default:
		if _, err = pgstore.ParseURL(url); err != nil {
			err = fmt.Errorf("store: %w", err)
		}
	}
	return err
}

func checkMemory(url string) error {
	if url != "memory:" {
		return fmt.Errorf("store: %q: nothing may follow \"memory:\"", url)
	}
	return nil
}

func storeList() string {
	names := slices.Sorted(maps.Keys(openers))
	for i, n := range names {
		if names[i] += ":"; n != "memory" && n != "file" {
			names[i] += "//"
		}
	}
	return strings.Join(names, ", ")
}

// redact removes what may be a password from a URL: its user and its settings. If it is
// unclear which part is the password, it keeps only the scheme.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		if !strings.HasPrefix(url, "file:") && strings.ContainsAny(url, "@=") { // such as host=db password=...
			return "..."
		}
		return url
	}
	at, settings := strings.LastIndexByte(rest, '@'), strings.IndexByte(rest, '?')
	switch {
	case settings >= 0 && at > settings: // the ? may be part of the user's password, or the @ part of a setting
		return scheme + "://..."
	case settings >= 0:
		rest = rest[:settings] + "?..."
	}
	if at >= 0 {
		rest = "..." + rest[at:]
	}
	return scheme + "://" + rest
}

const dataFile = "dipwell.db" // the file that --data keeps in its directory

// openFile opens a store for a service, or for a client while no service has it.
func openFile(_ context.Context, url string, o *storeOptions) (closer, error) {
	path, every, err := filestore.ParseURL(url)
	if err != nil {
		return nil, err
	}
	if o.once {
		every = filestore.Each // so that the answer is printed only when it is on the disk
	}
	s, err := filestore.Open(path, filestore.Config{Every: every, MaxKeys: o.maxKeys, MaxKeyBytes: o.maxKeyBytes, MaxHolds: o.maxHolds, MaxOverrides: o.maxOverrides, OnError: o.report})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return s, nil
}
