package redisstore_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(nullLogger{})
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most tests wait for servers and do not compute
	os.Exit(redistest.Main(m))
}

// nullLogger drops the client's log lines about connections that the tests cut.
type nullLogger struct{}

func (nullLogger) Printf(context.Context, string, ...any) {}

// TestStore runs the suite, in its short form unless DIPWELL_LONG=1: TestGolden plays all
// vectors, TestAgreesWithTable more histories. Each case has its own prefix, and most of its
// time is waiting.
func TestStore(t *testing.T) {
	t.Parallel()
	db := client(t)
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return newStore(t, db, redisstore.Config{Clock: now, Poll: -1})
	}, storetest.Options{Parallel: true, Quick: !long()})
}

// client returns a connection to the server of these tests.
func client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return connect(t, redistest.Shared(t).URL())
}

func connect(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	db, _, err := redisstore.Client(patient(url), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// patient makes a client wait a minute for a connection and an answer, unless the URL has
// a timeout: a busy machine may need longer than the few seconds of a service.
func patient(url string) string {
	switch {
	case strings.Contains(url, "timeout="):
		return url
	case strings.Contains(url, "?"):
		return url + "&timeout=1m&dial_timeout=1m"
	}
	return url + "?timeout=1m&dial_timeout=1m"
}

var prefixes atomic.Int64

// newStore returns a store with a new prefix.
func newStore(t testing.TB, db redis.UniversalClient, c redisstore.Config) *redisstore.Store {
	t.Helper()
	if c.Prefix == "" {
		c.Prefix = fmt.Sprint("test", prefixes.Add(1))
	}
	s, err := redisstore.New(context.Background(), db, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestClientOfReplicas(t *testing.T) {
	db := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, RouteByLatency: true})
	defer db.Close()
	if _, err := redisstore.New(t.Context(), db, redisstore.Config{}); err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Error(err)
	}
}
