package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

const page = "../docs/reference/redis.md"

// TestLeastPrivilege checks that a user with exactly the rights listed on the
// page for operators can do everything.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	grantRights(t, server)
	do(t, server, "config", "resetstat")
	asUser(t, as("dipwell", server.URL())+"/1")
	denied(t, server)
	used := fmt.Sprint(do(t, server, "info", "commandstats")) + "cmdstat_ping:" // of a subscription that was idle for 3 s
	for _, word := range strings.Fields(fmt.Sprint(do(t, server, "acl", "getuser", "dipwell"))) {
		if name, ok := strings.CutPrefix(strings.Trim(word, "[]"), "+"); ok && !strings.HasPrefix(name, "cluster|") && !strings.Contains(used, "cmdstat_"+name+":") {
			t.Errorf("%s allows %s, which nothing needs", page, name)
		}
	}
}

func TestLeastPrivilegeCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	grantRights(t, cluster.Nodes...)
	asUser(t, as("dipwell", cluster.URL()))
	denied(t, cluster.Nodes...)
}

func TestLeastPrivilegeSentinel(t *testing.T) {
	t.Parallel()
	trio := redistest.StartSentinel(t)
	grantRights(t, trio.Nodes...)
	for _, n := range trio.Sentinels {
		if err := n.Grant(page, "watcher"); err != nil {
			t.Fatal(err)
		}
		do(t, n, "acl", "setuser", "default", "-sentinel", "-subscribe") // the user's client asks the Sentinels as another user
	}
	asUser(t, as("dipwell", trio.URL())+"?sentinel_user=watcher&sentinel_password=PASSWORD")
	denied(t, append(trio.Nodes, trio.Sentinels...)...)
}

func grantRights(t *testing.T, nodes ...*redistest.Server) {
	t.Helper()
	for _, n := range nodes {
		if err := n.Grant(page, "dipwell"); err != nil {
			t.Fatal(err)
		}
	}
}

func as(user, url string) string { return strings.Replace(url, "://", "://"+user+":PASSWORD@", 1) }

func denied(t *testing.T, nodes ...*redistest.Server) {
	t.Helper()
	for _, n := range nodes {
		list, err := n.Denied()
		for _, entry := range list {
			t.Errorf("%s denied %s", n.Addr(), entry)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// asUser does everything that a store can do.
func asUser(t *testing.T, url string) {
	t.Helper()
	heard := func(err error) {
		if !errors.Is(err, context.DeadlineExceeded) { // of a look for changes, on a busy machine
			t.Errorf("reported: %v", err)
		}
	}
	// A debt of 50 tokens lasts five minutes.
	bucket := store.Limit{Name: "bucket", Rate: 10, Period: time.Minute, Burst: 100, MaxDebt: 100, ListKeys: true}
	window := store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"}
	s, l := openURL(t, url, redisstore.Config{OnError: heard}, bucket, window, store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 100})
	other, _ := openURL(t, url, redisstore.Config{OnError: heard})
	everyVerb(t, s, l)
	slow := bucket
	slow.Period = time.Hour
	if _, err := l.Define(t.Context(), slow, store.OwnerCode); err != nil {
		t.Errorf("define: %v", err)
	}
	retryUntil(t, testTimeout, func() error { // notified, and the expiry of its rows is lengthened
		if d := other.Registry().Lookup("bucket"); d == nil || d.Period != time.Hour {
			return errors.New("the change is not known")
		}
		return nil
	})
	everyVerb(t, s, l) // for rows of the previous version
	if list, err := s.Abilities().Keys(t.Context(), l.Limit("bucket"), "", "", 10); err != nil || len(list) == 0 {
		t.Errorf("keys: %v, %v", list, err)
	}
	can := store.AbilitiesOf(s)
	if m := can.Metrics()[0]; m.Name != "dipwell_keys" || m.Value == 0 {
		t.Errorf("metrics: %+v", m)
	}
	if err := can.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
	if _, err := s.Abilities().Now(t.Context()); err != nil {
		t.Errorf("now: %v", err)
	}
	if err := can.Audit.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "bucket"}); err != nil {
		t.Errorf("audit: %v", err)
	}
	if page, err := can.Audit.Audit(t.Context(), "", 10); err != nil || len(page) != 1 {
		t.Errorf("audit: %v, %v", page, err)
	}
	line := store.UsageLine{Limit: "bucket", Key: "k", Hour: time.Now().Truncate(time.Hour).UnixMicro(), Allowed: 1}
	if err := can.Usage.AddUsage(t.Context(), []store.UsageLine{line}); err != nil {
		t.Errorf("usage: %v", err)
	}
	if list, err := can.Usage.Usage(t.Context(), &store.Definition{Limit: store.Limit{Name: "bucket"}}, "k", 0, store.MaxInt); err != nil || len(list) != 1 || list[0] != line {
		t.Errorf("usage: %v, %v", list, err)
	}
	if err := can.TopKeys.Record(t.Context(), store.AuditEntry{Who: "here", What: "{}"}); err != nil {
		t.Errorf("top keys: %v", err)
	}
	db := connect(t, url)
	list, err := redisstore.Inspect(t.Context(), db)
	for _, c := range list {
		if c.Role != "master" || c.Policy != "noeviction" || c.AppendSync == "" || c.Version == "" {
			t.Errorf("inspect: %+v", c)
		}
	}
	if err != nil || len(list) == 0 {
		t.Errorf("inspect: %v, %v", list, err)
	}
	if err := l.Drop(t.Context(), "window", store.OwnerCode); err != nil {
		t.Errorf("drop: %v", err)
	}
}

// everyVerb calls each verb, alone, with several keys and in a batch.
func everyVerb(t *testing.T, s *redisstore.Store, l *dipwell.Limiter) {
	t.Helper()
	for _, limit := range []string{"bucket", "window"} {
		for verb := store.VerbTake; verb <= store.VerbReset; verb++ {
			var d dipwell.Decision
			for range 3 {
				if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: limit, Key: "k", Cost: 4}); err != nil {
					t.Errorf("%v of %s: %v", verb, limit, err)
				}
			}
			var b store.Batch
			for i := range 9 {
				b.Groups = append(b.Groups, store.Group{ID: store.Reservation{byte(i), byte(verb), limit[0], byte(time.Now().UnixNano())}, Ops: []store.Op{{Def: l.Limit(limit), Key: fmt.Sprint("k", i), Verb: verb, Cost: 1}}})
			}
			if err := s.Apply(t.Context(), &b); err != nil {
				t.Error(err)
			}
			for i := range b.Groups {
				if err := b.Groups[i].Err; err != nil {
					t.Errorf("%v in a batch: %v", verb, err)
				}
			}
		}
	}
	var holds []string
	for slots, key := range []string{"free", "held", "held"} { // no slot, one, which expires last, and two
		d, err := l.Hold(t.Context(), time.Minute/time.Duration(1+slots), "", dipwell.Take{Limit: "bucket", Key: key, Cost: 1}, dipwell.Take{Limit: "jobs", Key: key, Cost: int64(slots)})
		if err != nil {
			t.Fatalf("hold: %v", err)
		}
		holds = append(holds, d.Hold)
	}
	for _, id := range holds {
		if _, err := l.Settle(t.Context(), id); err != nil {
			t.Errorf("settle: %v", err)
		}
	}
	takes := []dipwell.Take{{Limit: "bucket", Key: "{a}1", Cost: 1}, {Limit: "window", Key: "{a}2", Cost: 1}}
	if _, err := l.TakeAll(t.Context(), takes...); err != nil {
		t.Errorf("take all: %v", err)
	}
	if _, err := l.Reset(t.Context(), "bucket", "debt"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Charge(t.Context(), "bucket", "debt", 150); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, err := l.Reserve(t.Context(), "bucket", "debt", 1)
		if err != nil || d.Delay == 0 {
			t.Fatalf("reserve: %+v, %v", d, err)
		}
		if err = l.Cancel(t.Context(), d.Reservation); err != nil {
			t.Errorf("cancel: %v", err)
		}
	}
}

// TestNoRightToChannel checks that a change fails and is not stored if the user has no
// right to tell others of it.
func TestNoRightToChannel(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	grantRights(t, server)
	do(t, server, "acl", "setuser", "dipwell", "resetchannels")
	s, err := redisstore.Open(t.Context(), patient(as("dipwell", server.URL())), redisstore.Config{Poll: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err = s.Define(t.Context(), drained("a", 5), store.OwnerCode); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("defined: %v", err)
	}
	if n := do(t, server, "hlen", "dipwell.limits"); n != int64(0) {
		t.Errorf("%v limits are stored", n)
	}
}

// TestNoRightToKeys checks that a user whose rights are for another prefix is told where
// those are that it needs.
func TestNoRightToKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	grantRights(t, server)
	s, err := redisstore.Open(t.Context(), patient(as("dipwell", server.URL())+"?prefix=shop"), redisstore.Config{Poll: -1})
	if err == nil || !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), page[len("../"):]) {
		t.Errorf("%v, %v", s, err)
	}
}
