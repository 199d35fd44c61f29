package filestore

import (
	"bytes"
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// TestDiskFull limits the number of pages in the SQLite file.
func TestDiskFull(t *testing.T) {
	path := fresh(t)
	var heard []error
	s := open(t, path, Config{Every: Each, OnError: func(err error) { heard = append(heard, err) }})
	open1, here := slow, slow
	open1.Name, open1.OnStoreError = "open", store.FailOpen
	here.Name, here.OnStoreError = "here", store.FailLocal
	l, err := dipwell.New(s, slow, open1, here)
	if err != nil {
		t.Fatal(err)
	}
	if err = s.disk.exec("pragma max_page_count = 40"); err != nil {
		t.Fatal(err)
	}
	granted := 0
	for ; err == nil && granted < 10_000; granted++ {
		_, err = l.Take(ctx, "slow", fmt.Sprintf("%0400d", granted), 1)
	}
	granted--
	if !errors.Is(err, store.ErrOutcomeUnknown) || errors.Is(err, store.ErrNoSpace) || !strings.Contains(err.Error(), path) {
		t.Fatalf("after %d keys: %v", granted, err)
	}
	if d, err := l.Take(ctx, "slow", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed {
		t.Errorf("closed: %+v, %v", d, err)
	}
	if d, err := l.Take(ctx, "open", "k", 1); err != nil || !d.Allowed || d.Source != store.SourceFallbackOpen {
		t.Errorf("open: %+v, %v", d, err)
	}
	for i := range int64(3) {
		d, err := l.Take(ctx, "here", "k", 1)
		if err != nil || !d.Allowed || d.Source != store.SourceFallbackLocal || d.Remaining != slow.Burst-i-1 {
			t.Errorf("local: %+v, %v", d, err)
		}
	}
	for i := 0; i == 0 || err == nil && i < 10_000; i++ {
		_, err = l.Define(ctx, store.Limit{Name: fmt.Sprintf("%0128d", i), Rate: 1, Period: time.Hour}, store.OwnerCode)
	}
	if !errors.Is(err, store.ErrNoSpace) || !strings.Contains(err.Error(), path) {
		t.Errorf("a limit: %v", err)
	}
	if s.writer.failures.Load() == 0 || store.AbilitiesOf(s).Ready(ctx) == nil || len(heard) == 0 {
		t.Errorf("%+v, heard %v", s.metrics(), heard)
	}
	if err = s.disk.exec("pragma max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	if err = s.writer.flush(); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "here", "k", 1); err != nil || d.Source != store.SourceStore || d.Remaining != slow.Burst-4 {
		t.Errorf("healed: %+v, %v", d, err)
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Config{})
	if l, err = dipwell.New(s); err != nil {
		t.Fatal(err)
	}
	for i := range granted {
		if n := used(t, l, fmt.Sprintf("%0400d", i)); n != 1 {
			t.Fatalf("key %d: %d used", i, n)
		}
	}
}

// TestErrorsOfLocalDecisions checks that an error of a decision made in memory, while
// the disk fails, reaches the caller.
func TestErrorsOfLocalDecisions(t *testing.T) {
	s := open(t, fresh(t), Config{MaxKeys: 1})
	local := slow
	local.OnStoreError = store.FailLocal
	l, err := dipwell.New(s, local)
	if err != nil {
		t.Fatal(err)
	}
	s.state.Or(stateFailed)
	for i := 0; err == nil && i < 1000; i++ {
		var d dipwell.Decision
		if d, err = l.Take(ctx, local.Name, fmt.Sprint(i), 1); err == nil && !d.Allowed {
			t.Fatalf("key %d: refused without an error: %+v", i, d)
		}
	}
	if !errors.Is(err, store.ErrFull) {
		t.Errorf("error is %v, want ErrFull", err)
	}
}

// TestFullStoreIsCounted checks that a call that failed because the store was full is in
// its metrics.
func TestFullStoreIsCounted(t *testing.T) {
	s := open(t, fresh(t), Config{MaxKeys: 1})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; err == nil && i < 1000; i++ {
		_, err = l.Take(ctx, slow.Name, fmt.Sprint(i), 1)
	}
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("error is %v, want ErrFull", err)
	}
	for _, m := range store.AbilitiesOf(s).Metrics() {
		if m.Name == "dipwell_store_full_total" && m.Value == 1 {
			return
		}
	}
	t.Errorf("metrics are %+v", store.AbilitiesOf(s).Metrics())
}

// TestDamagedFiles checks that damaged files are reported and not changed.
func TestDamagedFiles(t *testing.T) {
	good := fresh(t)
	s := open(t, good, Config{})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		if _, err = l.Take(ctx, "slow", fmt.Sprint("key ", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	zeroed := bytes.Clone(whole)
	for page := 10; page < 14; page++ {
		clear(zeroed[page*4096 : (page+1)*4096])
	}
	noise := bytes.Clone(whole)
	for i := 4096 * 9; i < 4096*20; i++ {
		noise[i] ^= byte(i*7919>>3) | 1
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":         {nil, "is empty, or belongs to another program"},
		"cut header":    {whole[:50], "malformed"},
		"cut":           {whole[:len(whole)/2], "malformed"},
		"cut by 1 KB":   {whole[:len(whole)-1024], "cannot be read"},
		"foreign":       {[]byte(strings.Repeat("#!/bin/sh\n", 500)), "is not a database"},
		"zeroed pages":  {zeroed, "malformed"},
		"noise":         {noise, "malformed"},
		"other's":       {otherDatabase(t), "another program"},
		"newer":         {pragma(t, whole, "user_version = 99"), "has version 99"},
		"odd row":       {pragma(t, whole, "user_version = 1; update buckets set used = -5 where key = 'key 17'"), "cannot be"},
		"odd key":       {pragma(t, whole, "user_version = 1; update buckets set key = 'key' || char(0) || '17' where key = 'key 17'"), "invalid key"},
		"odd version":   {pragma(t, whole, "user_version = 1; update buckets set version = 7 where key = 'key 17'"), "version 7"},
		"odd limit":     {pragma(t, whole, "user_version = 1; update limits set definition = '{}'"), "limit slow"},
		"no version":    {pragma(t, whole, "user_version = 1; update limits set definition = json_remove(definition, '$.present')"), "present version is not there"},
		"other version": {pragma(t, whole, "user_version = 1; update limits set definition = json_set(definition, '$.present.number', 2)"), "version 1 is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			path := fresh(t)
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(path, Config{})
			if err == nil {
				t.Fatal("it was opened", s.Close())
			}
			t.Log(err)
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v; want %s", err, c.want)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, c.file) {
				t.Errorf("the file was changed, %v", err)
			}
		})
	}
	t.Run("lost", func(t *testing.T) {
		path := fresh(t)
		if err := os.WriteFile(path+"-wal", []byte("something"), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(path, Config{}); err == nil || !strings.Contains(err.Error(), "is missing") {
			t.Fatal(s, err)
		}
	})
	for _, path := range []string{"", "a?b", t.TempDir(), filepath.Join(t.TempDir(), "no", "such", "directory")} {
		if s, err := Open(path, Config{}); err == nil {
			t.Errorf("%q was opened, %v", path, s.Close())
		}
	}
}

func otherDatabase(t *testing.T) []byte {
	path := fresh(t)
	return execOn(t, path, "create table t (x); insert into t values (1)")
}

func pragma(t *testing.T, file []byte, set string) []byte {
	path := fresh(t)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return execOn(t, path, "pragma "+set)
}

func execOn(t *testing.T, path, query string) []byte {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.Exec(query)
		err = errors.Join(err, db.Close())
	}
	b, rerr := os.ReadFile(path)
	if err = errors.Join(err, rerr); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRestart checks that limits with past versions, rows of several versions,
// reservations and the clock are loaded as they were.
func TestRestart(t *testing.T) {
	path := fresh(t)
	var now atomic.Int64
	now.Store(1767225600e6)
	c := Config{Clock: now.Load}
	s := open(t, path, c)
	limits := []store.Limit{
		{Name: "bucket", Rate: 999_983, Period: 30 * 24 * time.Hour, Burst: 7, OnChange: store.Proportional, Mode: store.Enforce, Auth: true, RetryJitter: 10,
			OnStoreError: store.FailOpen, Timeout: 50 * time.Millisecond, ListKeys: true, MaxDebt: 5, MaxCharge: 9},
		{Name: "window=,\"é", Algorithm: store.FixedWindow, Rate: 5, Period: store.Month},
		{Name: "rome", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome", Burst: 9},
		{Name: "grid", Algorithm: store.Interval, Rate: 5, Period: 10 * time.Second, Burst: 20, Start: "0s", Mode: store.Shadow},
		{Name: "jobs", Algorithm: store.LeakyBucket, Rate: 3, Period: 7 * time.Hour, MaxDebt: 30},
		{Name: "spaced", Rate: 1, Period: time.Minute, Burst: store.NoBurst, MaxDebt: store.UnlimitedDebt, OnChange: store.StartOver},
		{Name: "all", Algorithm: store.LeakyBucket, Rate: 3, Period: 7 * time.Hour, MaxDebt: 30, Shared: true},
	}
	limits[1].Name = "window=,\"x"
	l, err := dipwell.New(s, limits...)
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ limit, key string }
	keys := []row{}
	for round := range 3 {
		for i := range limits {
			key := fmt.Sprint("k", round)
			if limits[i].Shared {
				key = dipwell.Shared
			}
			keys = append(keys, row{limits[i].Name, key})
			if _, err = l.Charge(ctx, limits[i].Name, key, 1); err != nil {
				t.Fatal(err)
			}
			limits[i].Rate += 2
			limits[i].Auth = !limits[i].Auth
			if _, err = l.Define(ctx, limits[i], store.OwnerCode); err != nil {
				t.Fatal(err)
			}
		}
		now.Add(1e6)
	}
	shared, err := l.Take(ctx, "all", dipwell.Shared, 1)
	if err != nil {
		t.Fatal(err)
	}
	var held dipwell.Decision
	err = l.DoAll(ctx, &held, store.VerbReserve, []dipwell.Take{{Limit: "jobs", Key: "r", Cost: 4}, {Limit: "bucket", Key: "r", Cost: 3}})
	if err != nil || held.Delay == 0 {
		t.Fatal(held, err)
	}
	if _, err = l.Define(ctx, store.Limit{Name: "gone", Rate: 1, Period: time.Hour}, terms.OwnerAPI); err != nil {
		t.Fatal(err)
	}
	if _, err = l.Take(ctx, "gone", "k", 1); err != nil {
		t.Fatal(err)
	}
	if err = l.Drop(ctx, "gone", terms.OwnerAPI); err != nil {
		t.Fatal(err)
	}
	ask := func() (out []string) {
		for _, k := range append(keys, row{"all", dipwell.Shared}, row{"jobs", "r"}, row{"bucket", "r"}) {
			d, err := l.Check(ctx, k.limit, k.key, 1)
			if err != nil {
				t.Fatal(err)
			}
			b, err := d.MarshalJSON()
			if out = append(out, string(b)); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	defs, answers := l.Limits(), fmt.Sprint(ask())
	reopen := func() {
		if err = s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path, c)
		if l, err = dipwell.New(s, limits...); err != nil {
			t.Fatal(err)
		}
	}
	reopen()
	for i, d := range l.Limits() {
		if numbers(d) != numbers(defs[i]) {
			t.Errorf("was %s\nis  %s", numbers(defs[i]), numbers(d))
		}
	}
	if again := fmt.Sprint(ask()); again != answers || len(l.Limits()) != len(defs) {
		t.Errorf("answers:\n  were %s\n  are  %s", answers, again)
	}
	if _, err = l.Define(ctx, store.Limit{Name: "gone", Rate: 1, Period: time.Hour}, terms.OwnerAPI); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "gone", "k", 1); err != nil || !d.Allowed {
		t.Errorf("a limit that was dropped and defined again: %+v, %v", d, err)
	}
	if err = l.Cancel(ctx, held.Reservation); err != nil {
		t.Errorf("a reservation of the last run: %v", err)
	}
	if d, err := l.Check(ctx, "jobs", "r", 0); err != nil || d.ResetAfter != 0 {
		t.Errorf("cancelled: %+v, %v", d, err)
	}
	reopen()
	if err = l.Cancel(ctx, held.Reservation); !errors.Is(err, store.ErrReservation) {
		t.Errorf("cancelled twice: %v", err)
	}
	if _, err = l.Reset(ctx, "all", dipwell.Shared); err != nil {
		t.Fatal(err)
	}
	reopen()
	if d, err := l.Check(ctx, "all", dipwell.Shared, 0); err != nil || d.ResetAfter != 0 {
		t.Errorf("reset, after %+v: %+v, %v", shared, d, err)
	}
	answers = fmt.Sprint(ask())
	if _, err := s.sweep(ctx, 1000); err != nil {
		t.Fatal(err)
	}
	if swept := fmt.Sprint(ask()); swept != answers {
		t.Errorf("a sweep changed answers:\n  were %s\n  are  %s", answers, swept)
	}
	now.Add(1e15)
	if _, err := s.sweep(ctx, 1000); err != nil {
		t.Fatal(err)
	}
	var left int
	if err = s.disk.conn.QueryRowContext(ctx, "select count(*) from buckets").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows after a sweep of full ones, %v", left, err)
	}
}

// numbers are the parts of a definition that decide.
func numbers(d *store.Definition) string {
	return fmt.Sprintf("%+v %s\n%s", d.Limit, d.Warning, catalog.Stored(d))
}

// TestClockGoesOn checks that the store's clock does not step back with the machine's.
func TestClockGoesOn(t *testing.T) {
	path := fresh(t)
	s := open(t, path, Config{})
	ahead := time.Now().Add(time.Hour).UnixMicro()
	if err := errors.Join(s.disk.exec("update clock set now = ?", ahead), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Config{})
	if now := s.now(); now < ahead || now > ahead+1e9 {
		t.Errorf("the clock is at %d, was at %d", now, ahead)
	}
}

// TestOverrideOnFullDisk checks what a caller is told of an override that memory has and
// the disk has not yet.
func TestOverrideOnFullDisk(t *testing.T) {
	path := fresh(t)
	s := open(t, path, Config{})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	if err = s.disk.exec("pragma max_page_count = 40"); err != nil {
		t.Fatal(err)
	}
	raise, raised := s.Abilities().Overrides, 0
	for ; err == nil && raised < 10_000; raised++ {
		_, err = raise.SetOverride(ctx, l.Limit("slow"), store.Override{Key: fmt.Sprintf("%0400d", raised), Burst: 9000})
	}
	if !errors.Is(err, store.ErrOutcomeUnknown) || errors.Is(err, store.ErrNoSpace) || !strings.Contains(err.Error(), path) {
		t.Fatalf("override %d: %v", raised, err)
	}
	if err = s.disk.exec("pragma max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Config{})
	if l, err = dipwell.New(s); err != nil {
		t.Fatal(err)
	}
	last := fmt.Sprintf("%0400d", raised-1)
	if o, err := l.Overrides(ctx, "slow", last, "", 2); err != nil || len(o) != 1 || o[0].Burst != 9000 {
		t.Errorf("the last override after the disk had space again: %+v, %v", o, err)
	}
}

// TestLateCallOfDroppedLimit calls a limit by a definition from before it was dropped.
func TestLateCallOfDroppedLimit(t *testing.T) {
	s := open(t, fresh(t), Config{})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		late := l.Limit("slow")
		if err = l.Drop(ctx, "slow", store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		var b store.Batch
		g, op := b.Single()
		op.Def, op.Key, op.Cost = late, "k", 1
		if err = s.Apply(ctx, &b); !errors.Is(cmp.Or(err, g.Err), store.ErrUnknownLimit) || l.Limit("slow") != nil {
			t.Errorf("%v, %v; the limit is %v", err, g.Err, l.Limit("slow"))
		}
		if _, err = l.Define(ctx, slow, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(ctx, "slow", "k", 1); err != nil || d.Remaining != slow.Burst-1 {
			t.Error(d, err)
		}
	}
}

// TestStatus reads the view of the rows in tokens, of which one is of an older version.
func TestStatus(t *testing.T) {
	s := open(t, fresh(t), Config{})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	for i, limit := range []store.Limit{slow, {Name: slow.Name, Rate: slow.Rate, Period: time.Minute, Burst: 20, MaxCharge: 1}} {
		if _, err = l.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(ctx, "slow", fmt.Sprint("key ", i), 3); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if err = s.writer.flush(); err != nil {
		t.Fatal(err)
	}
	var got []string
	err = s.disk.each(ctx, func(rows *sql.Rows) error {
		var limit, key string
		var used float64
		var burst int64
		err := rows.Scan(&limit, &key, &used, &burst)
		got = append(got, fmt.Sprint(limit, " ", key, " ", math.Round(used), " ", burst))
		return err
	}, `select "limit", key, used_tokens, burst from status order by key`)
	want := []string{fmt.Sprint("slow key 0 3 ", slow.Burst), "slow key 1 3 20"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// TestManyVersions changes a limit more often than a definition can have versions.
func TestManyVersions(t *testing.T) {
	path := fresh(t)
	s := open(t, path, Config{})
	limit := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5000}
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Abilities().Overrides.SetOverride(ctx, l.Limit("api"), store.Override{Key: "raised", Burst: 9000}); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "api", "raised", 8000); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	for i := range 1200 {
		limit.Rate = int64(1 + i%2)
		if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(i, err)
		}
		if d, err := l.Take(ctx, "api", "k", 1); err != nil || d.Remaining != 4999-int64(i) {
			t.Fatalf("after %d changes: %+v, %v", i, d, err)
		}
	}
	if n := len(l.Limit("api").Past); n > maxPast {
		t.Errorf("%d versions are remembered", n)
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Config{})
	if l, err = dipwell.New(s); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Check(ctx, "api", "k", 1); err != nil || d.Remaining != 3800 {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Check(ctx, "api", "raised", 1); err != nil || d.Remaining != 1000 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestParseURL(t *testing.T) {
	for text, want := range map[string]struct {
		path  string
		every time.Duration
	}{
		"file:a/b.db": {"a/b.db", defaultEvery}, "file:///x": {"/x", defaultEvery}, "file:/x?durability=each": {"/x", Each}, "file:x?durability=250ms": {"x", 250 * time.Millisecond},
	} {
		if path, every, err := ParseURL(text); err != nil || path != want.path || every != want.every {
			t.Errorf("%s: %s, %v, %v", text, path, every, err)
		}
	}
	for _, text := range []string{"file:", "file:?durability=each", "file://host/x", "x", "file:x?durabilty=each", "file:x?durability=1us", "file:x?durability=", "file:x?durability=each&durability=1s", "file:x?%"} {
		if _, _, err := ParseURL(text); err == nil {
			t.Errorf("%s is taken", text)
		} else {
			t.Log(err)
		}
	}
}

// A file with the most overrides of people, and a block, can be opened again.
func TestReopenedWithBlock(t *testing.T) {
	path := fresh(t)
	c := Config{MaxOverrides: 3}
	s := open(t, path, c)
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Define(ctx, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Block: time.Hour}, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	d := l.Limit("api")
	for i := range 3 {
		if _, err := s.Abilities().Overrides.SetOverride(ctx, d, store.Override{Key: fmt.Sprint("a", i), Rate: 5, Period: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := l.Take(ctx, "api", "zed", 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path, c)
}
