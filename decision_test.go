package dipwell_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestDecisionJSON checks the example of the documentation, byte for byte.
func TestDecisionJSON(t *testing.T) {
	d := dipwell.Decision{Allowed: true, Limit: "login", Key: "user:7", Cost: 1, Granted: 1, Capacity: 20, Remaining: 19, ResetAfter: 12 * time.Second}
	const want = `{"allowed":true,"limit":"login","key":"user:7","cost":1,"granted":1,"capacity":20,"remaining":19,` +
		`"retry_after_us":null,"reset_after_us":12000000,"delay_us":0,"shadow":false,"source":"store"}`
	got, err := json.Marshal(d)
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
}

// TestBlockedUntilJSON checks that a key which stays blocked after a temporary override is not
// said to be blocked until its end.
func TestBlockedUntilJSON(t *testing.T) {
	s, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := dipwell.New(s, dipwell.Limit{Name: "api", Rate: 5, Period: time.Hour, Plans: store.NewPlans(dipwell.Plan{Name: "banned", Mode: store.Blocked})})
	if err != nil {
		t.Fatal(err)
	}
	for key, overrides := range map[string][]dipwell.Override{
		"for an hour": {{Plan: "banned", Until: 1e15 + 3600e6}},
		"always":      {{Plan: "banned"}, {Burst: 30, Until: 1e15 + 3600e6}},
	} {
		for _, o := range overrides {
			o.Key = key
			if _, err = l.SetOverride(t.Context(), "api", o); err != nil {
				t.Fatal(err)
			}
		}
		d, err := l.Take(t.Context(), "api", key, 1)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := d.MarshalJSON()
		if ends := key != "always"; d.Allowed || d.Never == ends || strings.Contains(string(b), `"blocked_until_us":1000003600000000`) != ends {
			t.Errorf("%s: %s", key, b)
		}
	}
}

// TestShadowDecisionJSON checks that a shadow limit allows, with the retry time of a
// refusal.
func TestShadowDecisionJSON(t *testing.T) {
	for _, c := range []struct {
		d    dipwell.Decision
		want string
	}{
		{dipwell.Decision{Allowed: true, Shadow: true, RetryAfter: time.Second}, `"retry_after_us":1000000,`},
		{dipwell.Decision{Allowed: true, Shadow: true, Never: true}, `"retry_after_us":null,"reset_after_us":0,"delay_us":0,"never":true,"shadow":true,`},
		{dipwell.Decision{Allowed: true}, `"retry_after_us":null,"reset_after_us":0,"delay_us":0,"shadow":false,`},
		{dipwell.Decision{RetryAfter: time.Second}, `"retry_after_us":1000000,`},
	} {
		if got, err := json.Marshal(c.d); err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("%s lacks %s: %v", got, c.want, err)
		}
	}
}

func FuzzDecisionJSON(f *testing.F) {
	f.Add("login", "user:7", true, false, int64(12e6), uint8(0))
	f.Add("a\"b", "\\\x01\u2028<&>", false, false, int64(1), uint8(3))
	f.Add("", "\xff鍵", false, true, int64(0), uint8(5))
	f.Fuzz(func(t *testing.T, limit, key string, allowed, never bool, retry int64, source uint8) {
		if retry < 0 || retry > store.MaxInt/1000 {
			return
		}
		d := dipwell.Decision{Allowed: allowed, Never: never && !allowed, Limit: limit, Key: key, RetryAfter: time.Duration(retry) * time.Microsecond,
			Source: store.Source(source % 6), Limits: []dipwell.Decision{{Limit: limit, Key: key}}}
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Limit   string  `json:"limit"`
			Key     *string `json:"key"`
			Allowed bool    `json:"allowed"`
			Retry   *int64  `json:"retry_after_us"`
			Never   bool    `json:"never"`
			Source  string  `json:"source"`
			Limits  []struct{ Limit string }
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		clean := func(s string) string { return string([]rune(s)) }
		if got.Limit != clean(limit) || (key == "") != (got.Key == nil) || key != "" && *got.Key != clean(key) || got.Allowed != allowed ||
			got.Never != d.Never || got.Source != d.Source.String() || len(got.Limits) != 1 || got.Limits[0].Limit != clean(limit) {
			t.Fatalf("%+v is %s", d, b)
		}
		if (got.Retry == nil) != (d.Never || allowed) || got.Retry != nil && *got.Retry != retry {
			t.Fatalf("retry %d is %s", retry, b)
		}
		if !utf8.Valid(b) {
			t.Fatalf("not UTF-8: %q", b)
		}
	})
}

func TestDecisionErr(t *testing.T) {
	if err := (&dipwell.Decision{Allowed: true}).Err(); err != nil {
		t.Error(err)
	}
	if err := (&dipwell.Decision{Limit: "login", Source: store.SourceFallbackClosed}).Err(); err == nil || err.Error() != "rate limited by login: the store cannot answer" {
		t.Error(err)
	}
	err := (&dipwell.Decision{Limit: "login", RetryAfter: time.Second}).Err()
	var refused *dipwell.RefusedError
	if !errors.As(err, &refused) || refused.Decision.RetryAfter != time.Second {
		t.Errorf("%v", err)
	}
}

func TestReservationText(t *testing.T) {
	const s = "0198c2f3-5b6e-7cc1-9d1a-3f0a5b7c9d11"
	var r dipwell.Reservation
	if err := r.UnmarshalText([]byte(s)); err != nil || r.String() != s {
		t.Errorf("%v, %v", r, err)
	}
	for _, bad := range []string{"", s[1:], s + "0", "0198c2f3x5b6e-7cc1-9d1a-3f0a5b7c9d11", "g198c2f3-5b6e-7cc1-9d1a-3f0a5b7c9d11"} {
		if err := r.UnmarshalText([]byte(bad)); err == nil || r != (dipwell.Reservation{}) {
			t.Errorf("%q was read as %v", bad, r)
		}
	}
}

// failingStore fails every call with err.
type failingStore struct{ err error }

func (s failingStore) Apply(context.Context, *store.Batch) error { return s.err }

// TestFailureModes checks that a limit that fails open allows a call that the store
// failed to decide, but not one with invalid input.
func TestFailureModes(t *testing.T) {
	away, wrong := errors.New("away"), &store.FieldError{Field: "takes", Reason: "cannot be asked together"}
	dropped := fmt.Errorf("%w %q", store.ErrUnknownLimit, "l")
	for _, c := range []struct {
		mode    store.FailureMode
		err     error
		allowed bool
	}{
		{store.FailOpen, away, true},
		{store.FailOpen, wrong, false},
		{store.FailClosed, away, false},
		{store.FailClosed, wrong, false},
		{store.FailOpen, dropped, false},
		{store.FailClosed, dropped, false},
	} {
		l, err := dipwell.New(failingStore{c.err}, store.Limit{Name: "l", Rate: 1, Period: time.Hour, OnStoreError: c.mode})
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Take(t.Context(), "l", "k", 1)
		if d.Allowed != c.allowed || (err == nil) != c.allowed || d.Granted != 0 || errors.Is(err, store.ErrStore) != (!c.allowed && errors.Is(c.err, away)) {
			t.Errorf("%v on %v: %+v, %v", c.mode, c.err, d, err)
		}
	}
}

// TestFailureModesOfSeveral checks that one limit that fails closed refuses a call of
// several.
func TestFailureModesOfSeveral(t *testing.T) {
	l, err := dipwell.New(failingStore{errors.New("away")},
		store.Limit{Name: "open", Rate: 1, Period: time.Hour, OnStoreError: store.FailOpen},
		store.Limit{Name: "closed", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	open, closed := dipwell.Take{Limit: "open", Key: "k", Cost: 1}, dipwell.Take{Limit: "closed", Key: "k", Cost: 1}
	for _, takes := range [][]dipwell.Take{{open, closed}, {closed, open}} { // the decision is of the limit that refused
		if d, err := l.TakeAll(t.Context(), takes...); !errors.Is(err, store.ErrStore) || d.Allowed || d.Limit != "closed" || d.Source != store.SourceFallbackClosed {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if d, err := l.TakeAll(t.Context(), open, open); err != nil || !d.Allowed || d.Source != store.SourceFallbackOpen {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestFailureOfShadow checks that a limit in shadow mode refuses nothing while the store
// fails either, and says that it would have.
func TestFailureOfShadow(t *testing.T) {
	l, err := dipwell.New(failingStore{errors.New("away")},
		store.Limit{Name: "shadow", Rate: 1, Period: time.Hour, Mode: store.Shadow},
		store.Limit{Name: "local", Rate: 1, Period: time.Hour, Mode: store.Shadow, OnStoreError: store.FailLocal}, // nothing here decides locally
		store.Limit{Name: "open", Rate: 1, Period: time.Hour, OnStoreError: store.FailOpen},
		store.Limit{Name: "closed", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	shadow, open, closed := dipwell.Take{Limit: "shadow", Key: "k", Cost: 1}, dipwell.Take{Limit: "open", Key: "k", Cost: 1}, dipwell.Take{Limit: "closed", Key: "k", Cost: 1}
	for _, takes := range [][]dipwell.Take{{shadow}, {{Limit: "local", Key: "k", Cost: 1}}, {shadow, open}} {
		if d, err := l.TakeAll(t.Context(), takes...); err != nil || !d.Allowed || !d.Shadow || d.Granted != 0 || d.Source != store.SourceFallbackOpen {
			t.Errorf("%v: %+v, %v", takes, d, err)
		}
	}
	if d, err := l.TakeAll(t.Context(), shadow, closed); !errors.Is(err, store.ErrStore) || d.Allowed || d.Limit != "closed" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Charge(t.Context(), "shadow", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed {
		t.Errorf("a charge that was not made: %+v, %v", d, err)
	}
}

// partial answers the op of a call and not its group.
type partial struct{}

func (partial) Apply(_ context.Context, b *store.Batch) error {
	b.Groups[0].Ops[0].Allowed = true
	return nil
}

// TestChargeRefusedByNone checks that no error is made up for a charge of which no limit
// says that it is too large.
func TestChargeRefusedByNone(t *testing.T) {
	l, err := dipwell.New(partial{}, store.Limit{Name: "l", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Charge(t.Context(), "l", "k", 1); err != nil || d.Source != store.SourceStore {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestReusedDecision checks that calls into a Decision that was used before leave
// nothing of what it had.
func TestReusedDecision(t *testing.T) {
	s, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := dipwell.New(s,
		dipwell.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 9, Plans: dipwell.NewPlans(dipwell.Plan{Name: "pro", Burst: 20})},
		dipwell.Limit{Name: "all", Rate: 1, Period: time.Second, Burst: 9, Shared: true},
		dipwell.Limit{Name: "child", Rate: 1, Period: time.Second, Burst: 9, Parent: "all"})
	if err != nil {
		t.Fatal(err)
	}
	used := dipwell.Decision{Never: true, Shadow: true, Source: store.SourceFallbackOpen, Plan: "pro", Granted: 1, Delay: 1, Reservation: dipwell.Reservation{1},
		Limits: []dipwell.Decision{{}}, Hold: "h", Expires: time.Now(), Repeated: true, RetryIsBound: true}
	for name, call := range map[string]func(d *dipwell.Decision) error{
		"check": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: "k", Cost: 1})
		},
		"charge": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCharge, dipwell.Take{Limit: "a", Key: "k", Cost: 0})
		},
		"shared": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "all", Key: dipwell.Shared, Cost: 1})
		},
		"plan": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: "k", Plan: "pro"})
		},
		"floor": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "a", Key: "k", Floor: 1})
		},
		"parent": func(d *dipwell.Decision) error {
			return l.Do(t.Context(), d, store.VerbCheck, dipwell.Take{Limit: "child", Key: "k"})
		},
		"wait": func(d *dipwell.Decision) error {
			return l.DoWait(t.Context(), d, []dipwell.Take{{Limit: "a", Key: "k"}}, 0)
		},
	} {
		var fresh dipwell.Decision
		again := used
		if err := call(&fresh); err != nil {
			t.Fatal(name, err)
		}
		if err := call(&again); err != nil {
			t.Fatal(name, err)
		}
		a, _ := fresh.MarshalJSON()
		if b, _ := again.MarshalJSON(); string(a) != string(b) {
			t.Errorf("%s:\n%s into a Decision that was used\n%s into a new one", name, b, a)
		}
	}
}
