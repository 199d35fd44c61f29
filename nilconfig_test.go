package dipwell_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
	"github.com/dipwell/dipwell/httpclient"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// What a program has forgotten or mistaken is an error where it is given, not a panic or
// an error of each request.
func TestForgotten(t *testing.T) {
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	l, err := dipwell.New(mem, dipwell.Limit{Name: "a", Rate: 5, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	onServer := func(l *dipwell.Limiter, limit httplimit.Limit, ttl time.Duration) error {
		_, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{limit}, TTL: ttl})
		return err
	}
	onGRPC := func(l *dipwell.Limiter, limit grpclimit.Limit, ttl time.Duration) error {
		_, err := grpclimit.New(l, grpclimit.Config{Limits: []grpclimit.Limit{limit}, TTL: ttl})
		return err
	}
	onClient := func(l *dipwell.Limiter, limit httplimit.Limit) error {
		_, err := httpclient.New(httpclient.Config{Limiter: l, Limits: []httpclient.Limit{limit}})
		return err
	}
	_, noStore := dipwell.New(nil)
	_, noDatabase := pgstore.New(t.Context(), nil, pgstore.Config{})
	_, noClient := redisstore.New(t.Context(), nil, redisstore.Config{})
	_, noOuter := stack.New(t.Context(), mem, stack.Options{Outer: func(store.Store) store.Store { return nil }})
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a limiter without a store":  {noStore, "the store is nil"},
		"a store without a database": {noDatabase, "the database is nil"},
		"a store without a client":   {noClient, "the client is nil"},
		"an outer store":             {noOuter, "nil"},
		"httplimit: a limiter":       {onServer(nil, httplimit.Limit{Name: "a"}, 0), "without a limiter"},
		"httplimit: a name":          {onServer(l, httplimit.Limit{}, 0), "neither Name nor Choose"},
		"httplimit: a floor":         {onServer(l, httplimit.Limit{Name: "a", Floor: -1}, 0), "is negative"},
		"httplimit: a TTL":           {onServer(l, httplimit.Limit{Name: "a"}, time.Nanosecond), "TTL: 1ns is less than 1ms"},
		"grpclimit: a limiter":       {onGRPC(nil, grpclimit.Limit{Name: "a"}, 0), "without a limiter"},
		"grpclimit: a name":          {onGRPC(l, grpclimit.Limit{}, 0), "neither Name nor Choose"},
		"grpclimit: a floor":         {onGRPC(l, grpclimit.Limit{Name: "a", Floor: -1}, 0), "is negative"},
		"grpclimit: a TTL":           {onGRPC(l, grpclimit.Limit{Name: "a"}, -time.Second), "TTL: -1s is less than 1ms"},
		"httpclient: a limiter":      {onClient(nil, httplimit.Limit{Name: "a"}), "without a limiter"},
		"httpclient: a name":         {onClient(l, httplimit.Limit{}), "neither Name nor Choose"},
		"httpclient: a floor":        {onClient(l, httplimit.Limit{Name: "a", Floor: -1}), "is negative"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, c.err, c.want)
		}
	}
}
