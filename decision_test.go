package dipwell_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
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
