package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

var bg = context.Background()

// A surface is the same limits through Go, HTTP, gRPC, the command line and SQL.
type surface struct {
	*testing.T
	l         *dipwell.Limiter
	url       string
	conn      *pgx.Conn // nil: memory
	verbs     *grpc.ClientConn
	grpcCalls int // that a table made through gRPC
}

// A badCall is one mistake through each surface: what is empty or nil is not offered there.
type badCall struct {
	name   string
	field  string // that each error names, in SQL without the index
	reason string // that each error has
	call   func(l *dipwell.Limiter) error
	http   string // METHOD PATH form; through gRPC too where it has such a call
	cli    string // without --server
	sql    string
	args   []any
}

var badLimits = []string{
	"api=5/1h,burst=20,keys=list,plans=pro:rate=600;burst=1000|staff:mode=unlimited;callable=false",
	"other=5/1h,plans=gold:rate=9", "slots=2,algorithm=concurrency,ttl=5m", "slide=5/1h,algorithm=sliding_window",
	"all=5/1h,shared=true", "top=9/1h,parts=1", "two=9/1h,parent=top", "three=9/1h,parent=two", "four=9/1h,parent=three",
}

func badCalls() []badCall {
	take := func(t dipwell.Take) func(*dipwell.Limiter) error {
		return func(l *dipwell.Limiter) error {
			var d dipwell.Decision
			return l.Do(bg, &d, store.VerbTake, t)
		}
	}
	override := func(o dipwell.Override) func(*dipwell.Limiter) error {
		return func(l *dipwell.Limiter) error { _, err := l.SetOverride(bg, "api", o); return err }
	}
	hold := func(ttl time.Duration, id string) func(*dipwell.Limiter) error {
		return func(l *dipwell.Limiter) error {
			_, err := l.Hold(bg, ttl, id, dipwell.Take{Limit: "api", Key: "k", Cost: 1})
			return err
		}
	}
	define := func(text string) func(*dipwell.Limiter) error {
		return func(l *dipwell.Limiter) error {
			limit, err := dipwell.ParseLimit(text)
			if err == nil {
				_, err = l.Define(bg, limit, store.OwnerCode)
			}
			return err
		}
	}
	// Over HTTP and SQL the id of a hold that is settled is called hold.
	asHold := func(call func(*dipwell.Limiter) error) func(*dipwell.Limiter) error {
		return func(l *dipwell.Limiter) error {
			err := call(l)
			var f *dipwell.FieldError
			if errors.As(err, &f) && f.Field == "id" {
				return &dipwell.FieldError{Field: "hold", Reason: f.Reason}
			}
			return err
		}
	}
	long, id := strings.Repeat("k", 513), strings.Repeat("x", 65)
	keys := func(name, key, reason string) badCall {
		return badCall{"a key with " + name, "key", reason, take(dipwell.Take{Limit: "two", Key: key, Cost: 1}),
			"POST /v1/take limit=two&key=" + url.QueryEscape(key), "take two " + key, "select dipwell.take('two', $1)", []any{key}}
	}
	return []badCall{
		{"an unknown plan", "plan", `limit api has no plan "nobody"`, take(dipwell.Take{Limit: "api", Key: "k", Cost: 1, Plan: "nobody"}),
			"POST /v1/take limit=api&key=k&plan=nobody", "take api k --plan nobody", "select dipwell.take('api', 'k', plan => 'nobody')", nil},
		{"a plan of another limit", "plan", `limit api has no plan "gold"`, take(dipwell.Take{Limit: "api", Key: "k", Cost: 1, Plan: "gold"}),
			"POST /v1/take limit=api&key=k&plan=gold", "take api k --plan gold", "select dipwell.take('api', 'k', plan => 'gold')", nil},
		{"an override of an unknown plan", "plan", `limit api has no plan "gold"`, override(dipwell.Override{Key: "k", Plan: "gold"}),
			"PUT /v1/limits/api/overrides key=k&plan=gold", "override set api k --plan gold", "select dipwell.override('api', 'k', plan => 'gold')", nil},
		{"an override in the past", "until", "is not in the future", override(dipwell.Override{Key: "k", Plan: "pro", Until: 1}),
			"PUT /v1/limits/api/overrides key=k&plan=pro&until=2001-01-01T00:00:00Z", "override set api k --plan pro --until 2001-01-01T00:00:00Z",
			"select dipwell.override('api', 'k', plan => 'pro', until => '2001-01-01')", nil},
		{"an override of a long key", "key", "has 513 bytes; at most 512", override(dipwell.Override{Key: long, Plan: "pro"}),
			"PUT /v1/limits/api/overrides plan=pro&key=" + long, "override set api " + long + " --plan pro", "select dipwell.override('api', $1, plan => 'pro')", []any{long}},
		{"a parent that is missing", "parent", "", define("new=1/1s,parent=nobody"),
			"PUT /v1/limits/new rate=1&per=1s&parent=nobody", "", "select dipwell.define('new', 1, '1 second', parent => 'nobody')", nil},
		{"a parent in a circle", "parent", "", define("top=9/1h,parent=four"),
			"PUT /v1/limits/upper rate=9&per=1h&parent=lower", "", "select dipwell.define('top', 9, '1 hour', parent => 'four')", nil},
		{"five levels", "parent", "", define("five=9/1h,parent=four"),
			"PUT /v1/limits/five rate=9&per=1h&parent=four", "", "select dipwell.define('five', 9, '1 hour', parent => 'four')", nil},
		keys("a part too many", "a/b/c", "has 3 parts; those of limit two have 2"),
		keys("a part too few", "a", "has 1 part"),
		keys("an empty part", "a/", "is empty"),
		{"a take without a key", "key", "; limit api has a bucket for each key", take(dipwell.Take{Limit: "api", Key: dipwell.Shared, Cost: 1}),
			"POST /v1/take limit=api", "take api", "select dipwell.take('api')", nil},
		{"a hold without a key", "key", "; limit api has a bucket for each key", func(l *dipwell.Limiter) error {
			_, err := l.Hold(bg, time.Minute, "h", dipwell.Take{Limit: "api", Key: dipwell.Shared, Cost: 1})
			return err
		}, "POST /v1/hold limit=api&ttl=1m&id=h", "hold api --ttl 1m --id h", "select dipwell.hold('api', $1, 1, ttl => interval '1 minute', id => 'h')", []any{nil}},
		{"an override without a key", "key", "; limit api has a bucket for each key", override(dipwell.Override{Key: dipwell.Shared, Plan: "pro"}),
			"PUT /v1/limits/api/overrides plan=pro", "override set api --plan pro", "select dipwell.override('api', $1, plan => 'pro')", []any{nil}},
		{"a path without a key", "key", "; limit two has a bucket for each key", take(dipwell.Take{Limit: "two", Key: dipwell.Shared, Cost: 1}),
			"POST /v1/take limit=two", "take two", "select dipwell.take('two', $1)", []any{nil}},
		{"a key of a shared limit", "key", "limit all is shared: its calls have no key", take(dipwell.Take{Limit: "all", Key: "k", Cost: 1}),
			"POST /v1/take limit=all&key=k", "take all k", "select dipwell.take('all', 'k')", nil},
		{"no parts", "parts", "0 is not between 1 and 16; a limit with one bucket for everybody is shared", define("new=1/1s,parts=0"),
			"PUT /v1/limits/new rate=1&per=1s&parts=0", "", "select dipwell.define('new', 1, '1 second', parts => 0)", nil},
		{"a shared limit with a parent", "shared", "is for a limit without a parent", define("new=1/1s,shared=true,parent=top"),
			"PUT /v1/limits/new rate=1&per=1s&shared=true&parent=upper", "", "select dipwell.define('new', 1, '1 second', shared => true, parent => 'top')", nil},
		{"ttl 0", "ttl", "is less than 1ms", hold(0, "h"),
			"POST /v1/hold limit=api&key=k&ttl=0s&id=h", "hold api k --ttl 0s --id h", "select dipwell.hold('api', 'k', 1, ttl => interval '0', id => 'h')", nil},
		{"ttl of a year", "ttl", "is longer than limit api lets a hold be", hold(365*24*time.Hour, "h"),
			"POST /v1/hold limit=api&key=k&ttl=365d&id=h", "hold api k --ttl 8760h --id h", "select dipwell.hold('api', 'k', 1, ttl => interval '365 days', id => 'h')", nil},
		{"a hold id of 65 bytes", "id", "has 65 bytes; at most 64", hold(time.Minute, id),
			"POST /v1/hold limit=api&key=k&ttl=1m&id=" + id, "hold api k --ttl 1m --id " + id, "select dipwell.hold('api', 'k', 1, ttl => interval '1 minute', id => $1)", []any{id}},
		{"a hold of two with an id of 65 bytes", "id", "has 65 bytes; at most 64", func(l *dipwell.Limiter) error {
			_, err := l.Hold(bg, time.Minute, id, dipwell.Take{Limit: "api", Key: "k", Cost: 1}, dipwell.Take{Limit: "other", Key: "k", Cost: 1})
			return err
		}, `POST /v1/hold {"takes":[{"limit":"api","key":"k"},{"limit":"other","key":"k"}],"ttl":"1m","id":"` + id + `"}`, "",
			"select dipwell.hold_all(array['api', 'other'], array['k', 'k'], ttl => interval '1 minute', id => $1)", []any{id}},
		{"a settle of 65 bytes", "hold", "has 65 bytes; at most 64", asHold(func(l *dipwell.Limiter) error { _, err := l.Settle(bg, id, 1); return err }),
			"POST /v1/settle hold=" + id, "settle " + id, "select dipwell.settle($1, 1)", []any{id}},
		{"a settle of all of 65 bytes", "hold", "has 65 bytes; at most 64", asHold(func(l *dipwell.Limiter) error { _, err := l.Settle(bg, id, 1, 2); return err }),
			`POST /v1/settle {"hold":"` + id + `","costs":[1,2]}`, "settle --cost 1 --cost 2 " + id, "select dipwell.settle_all($1, array[1, 2])", []any{id}},
		{"an extend of 65 bytes", "hold", "has 65 bytes; at most 64", asHold(func(l *dipwell.Limiter) error { _, err := l.Extend(bg, id, time.Minute); return err }),
			"POST /v1/extend ttl=1m&hold=" + id, "extend " + id + " --ttl 1m", "select dipwell.extend($1, interval '1 minute')", []any{id}},
		{"an extend by nothing", "ttl", "is less than 1ms", func(l *dipwell.Limiter) error { _, err := l.Extend(bg, "live", 0); return err },
			"POST /v1/extend hold=live&ttl=0s", "extend live --ttl 0s", "select dipwell.extend('live', interval '0')", nil},
		{"an extend by a year", "ttl", "is longer than limit api lets a hold be", func(l *dipwell.Limiter) error { _, err := l.Extend(bg, "live", 365*24*time.Hour); return err },
			"POST /v1/extend hold=live&ttl=365d", "extend live --ttl 8760h", "select dipwell.extend('live', interval '365 days')", nil},
		{"a hold that is longer than its limit's ttl", "ttl", "is longer than limit slots lets a hold be, 5m", func(l *dipwell.Limiter) error {
			_, err := l.Hold(bg, 5*time.Minute+time.Microsecond, "h", dipwell.Take{Limit: "slots", Key: "k", Cost: 1})
			return err
		}, "POST /v1/hold limit=slots&key=k&ttl=300000001us&id=h", "hold slots k --ttl 300000001us --id h", "select dipwell.hold('slots', 'k', 1, ttl => interval '300.000001 s', id => 'h')", nil},
		{"a limit whose holds have a ttl of 0", "ttl", "is not between 1ms and 31d", define("new=2,algorithm=concurrency,ttl=0s"),
			"PUT /v1/limits/new algorithm=concurrency&burst=2&ttl=0s", "", "select dipwell.define('new', burst => 2, algorithm => 'concurrency', ttl => interval '0')", nil},
		{"a limit whose holds have a ttl of a year", "ttl", "is not between 1ms and 31d", define("new=2,algorithm=concurrency,ttl=365d"),
			"PUT /v1/limits/new algorithm=concurrency&burst=2&ttl=365d", "", "select dipwell.define('new', burst => 2, algorithm => 'concurrency', ttl => interval '365 days')", nil},
		{"a sliding window of 2^26", "rate", "67108864 is not between 1 and 2^26-1", define("new=67108864/1s,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=67108864&per=1s", "", "select dipwell.define('new', 67108864, '1 second', algorithm => 'sliding_window')", nil},
		{"a sliding window of a month", "per", "is longer than 100d", define("new=5/1mo,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1mo", "", "select dipwell.define('new', 5, '1 month', algorithm => 'sliding_window')", nil},
		{"a sliding window with a burst", "burst", "is not for a sliding window", define("new=5/1s,burst=9,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1s&burst=9", "", "select dipwell.define('new', 5, '1 second', burst => 9, algorithm => 'sliding_window')", nil},
		{"a sliding window with debt", "max_debt", "is 0 for a sliding window", define("new=5/1s,max_debt=9,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1s&max_debt=9", "", "select dipwell.define('new', 5, '1 second', max_debt => 9, algorithm => 'sliding_window')", nil},
		{"a sliding window of a calendar", "start", "is an offset such as 0s", define("new=5/1d,start=00:00 UTC,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&start=00:00+UTC", "", "select dipwell.define('new', 5, '1 day', start => '00:00 UTC', algorithm => 'sliding_window')", nil},
		{"a sliding window that begins with a call", "start", "is an offset such as 0s", define("new=5/1d,start=first_call,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&start=first_call", "", "select dipwell.define('new', 5, '1 day', start => 'first_call', algorithm => 'sliding_window')", nil},
		{"a sliding window in a tree", "parts", "is not for a sliding window", define("new=5/1d,parts=1,algorithm=sliding_window"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&parts=1", "", "select dipwell.define('new', 5, '1 day', parts => 1, algorithm => 'sliding_window')", nil},
		{"a plan of a sliding window with a burst", "plans", "is not for a sliding window", define("new=5/1d,algorithm=sliding_window,plans=pro:burst=9"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&plans=pro:burst=9", "", "select dipwell.define('new', 5, '1 day', algorithm => 'sliding_window', plans => '{\"pro\": {\"burst\": 9}}')", nil},
		{"an override of a sliding window with a burst", "burst", "is not for a sliding window", func(l *dipwell.Limiter) error {
			_, err := l.SetOverride(bg, "slide", dipwell.Override{Key: "k", Burst: 9})
			return err
		}, "PUT /v1/limits/slide/overrides key=k&burst=9", "override set slide k --burst 9", "", nil},
		{"a hold of a sliding window", "limit", "has neither reservations nor holds", func(l *dipwell.Limiter) error {
			_, err := l.Hold(bg, time.Minute, "h", dipwell.Take{Limit: "slide", Key: "k", Cost: 1})
			return err
		}, "POST /v1/hold limit=slide&key=k&ttl=1m&id=h", "hold slide k --ttl 1m --id h", "", nil},
		{"a reservation of a sliding window", "limit", "has neither reservations nor holds", func(l *dipwell.Limiter) error { _, err := l.Reserve(bg, "slide", "k", 1); return err },
			"POST /v1/reserve limit=slide&key=k", "reserve slide k", "", nil},
		{"a floor of a sliding window", "floor", "is a sliding window, which has none", take(dipwell.Take{Limit: "slide", Key: "k", Cost: 1, Floor: 1}),
			"POST /v1/take limit=slide&key=k&floor=1", "take slide k --floor 1", "select dipwell.take('slide', 'k', floor => 1)", nil},
		{"a ttl of a leaky bucket", "ttl", "is not for a leaky bucket, which has no holds", define("new=5/1d,algorithm=leaky_bucket,ttl=1m"),
			"PUT /v1/limits/new algorithm=leaky_bucket&rate=5&per=1d&ttl=1m", "", "select dipwell.define('new', 5, '1 day', algorithm => 'leaky_bucket', ttl => interval '1 minute')", nil},
		{"a ttl of a sliding window", "ttl", "is not for a sliding window, which has no holds", define("new=5/1d,algorithm=sliding_window,ttl=1m"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&ttl=1m", "", "select dipwell.define('new', 5, '1 day', algorithm => 'sliding_window', ttl => interval '1 minute')", nil},
		{"a ttl of shards", "ttl", "is not for a limit with shards, which has no holds", define("new=8/1d,shards=4,ttl=1m"),
			"PUT /v1/limits/new rate=8&per=1d&shards=4&ttl=1m", "", "select dipwell.define('new', 8, '1 day', shards => 4, ttl => interval '1 minute')", nil},
		{"a ttl of an adaptive limit", "ttl", "is not for an adaptive limit, which has no holds", define("new=8/1d,adaptive=floor=1;errors=2%,ttl=1m"),
			`PUT /v1/limits/new {"rate":8,"per":"1d","adaptive":{"floor":1,"errors":"2%"},"ttl":"1m"}`, "", "", nil},
		{"expired holds of a leaky bucket", "on_expire", "is not for a leaky bucket, which has no holds", define("new=5/1d,algorithm=leaky_bucket,on_expire=keep"),
			"PUT /v1/limits/new algorithm=leaky_bucket&rate=5&per=1d&on_expire=keep", "", "select dipwell.define('new', 5, '1 day', algorithm => 'leaky_bucket', on_expire => 'keep')", nil},
		{"expired holds of a sliding window", "on_expire", "is not for a sliding window, which has no holds", define("new=5/1d,algorithm=sliding_window,on_expire=keep"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&on_expire=keep", "", "select dipwell.define('new', 5, '1 day', algorithm => 'sliding_window', on_expire => 'keep')", nil},
		{"expired holds of shards", "on_expire", "is not for a limit with shards, which has no holds", define("new=8/1d,shards=4,on_expire=keep"),
			"PUT /v1/limits/new rate=8&per=1d&shards=4&on_expire=keep", "", "select dipwell.define('new', 8, '1 day', shards => 4, on_expire => 'keep')", nil},
		{"a sliding window's plan for children", "plans", "plan pro: callable: children is not for a sliding window, which is no parent", define("new=5/1d,algorithm=sliding_window,plans=pro:rate=9;callable=children"),
			"PUT /v1/limits/new algorithm=sliding_window&rate=5&per=1d&plans=pro:rate=9;callable=children", "", "select dipwell.define('new', 5, '1 day', algorithm => 'sliding_window', plans => '{\"pro\": {\"rate\": 9, \"callable\": \"children\"}}')", nil},
		{"a plan of shards for children", "plans", "plan pro: callable: is false in a limit with shards", define("new=8/1d,shards=4,plans=pro:rate=9;callable=children"),
			"PUT /v1/limits/new rate=8&per=1d&shards=4&plans=pro:rate=9;callable=children", "", "select dipwell.define('new', 8, '1 day', shards => 4, plans => '{\"pro\": {\"rate\": 9, \"callable\": \"children\"}}')", nil},
		{"a limit's name of 129 bytes", "name", "has 129 bytes; at most 128", define(strings.Repeat("n", 129) + "=1/1s"),
			"PUT /v1/limits/" + strings.Repeat("n", 129) + " rate=1&per=1s", "", "select dipwell.define($1, 1, '1 second')", []any{strings.Repeat("n", 129)}},
		{"a key of 513 bytes", "key", "has 513 bytes; at most 512", take(dipwell.Take{Limit: "api", Key: long, Cost: 1}),
			"POST /v1/take limit=api&key=" + long, "take api " + long, "select dipwell.take('api', $1)", []any{long}},
		{"a plan's name of 65 bytes", "plans", "has 65 bytes; at most 64", define("new=1/1s,plans=" + id + ":rate=2"),
			"PUT /v1/limits/new rate=1&per=1s&plans=" + id + ":rate=2", "", "", nil},
		{"a note of 1025 bytes", "note", "has 1025 bytes; at most 1024", override(dipwell.Override{Key: "k", Plan: "pro", Note: strings.Repeat("n", 1025)}),
			"PUT /v1/limits/api/overrides key=k&plan=pro&note=" + strings.Repeat("n", 1025), "override set api k --plan pro --note " + strings.Repeat("n", 1025),
			"select dipwell.override('api', 'k', plan => 'pro', note => $1)", []any{strings.Repeat("n", 1025)}},
		// A script's empty variable must not make an override without an end.
		{"an override for no time", "for", "must be longer than 0", nil, "PUT /v1/limits/api/overrides key=k&plan=pro&for=0s", "override set api k --plan pro --for 0s", "", nil},
		{"an override that ended before 1970", "until", "is not in the future", override(dipwell.Override{Key: "k", Plan: "pro", Until: -1}),
			"PUT /v1/limits/api/overrides key=k&plan=pro&until=1969-07-20T20:17:00Z", "override set api k --plan pro --until 1969-07-20T20:17:00Z",
			"select dipwell.override('api', 'k', plan => 'pro', until => '1969-07-20')", nil},
		{"an override that ends too late", "until", "is not between now and the year 2255", override(dipwell.Override{Key: "k", Plan: "pro", Until: 1 << 53}),
			"PUT /v1/limits/api/overrides key=k&plan=pro&until=2300-01-01T00:00:00Z", "override set api k --plan pro --until 2300-01-01T00:00:00Z",
			"select dipwell.override('api', 'k', plan => 'pro', until => '2300-01-01')", nil},
		{"an override for 285 years", "for", "year", nil,
			"PUT /v1/limits/api/overrides key=k&plan=pro&for=2500000h", "override set api k --plan pro --for 2500000h", "", nil},
		{"an override until nothing", "until", "must be a time", nil, "PUT /v1/limits/api/overrides key=k&plan=pro&until=", "override set api k --plan pro --until=", "", nil},
		{"an override of an empty plan", "plan", "is empty", nil, "PUT /v1/limits/api/overrides key=k&rate=6&plan=", "override set api k --rate 6 --plan=", "", nil},
		{"an override of an empty rate", "rate", "", nil, "PUT /v1/limits/api/overrides key=k&plan=pro&rate=", "override set api k --plan pro --rate=", "", nil},
		{"a start of a bucket's override", "start", "is for windows and intervals", override(dipwell.Override{Key: "k", Start: "0s"}),
			"PUT /v1/limits/api/overrides key=k&start=0s", "override set api k --start 0s", "select dipwell.override('api', 'k', start => '0s')", nil},
		{"a start of an override that ends", "start", "stands only in an override without an end", override(dipwell.Override{Key: "k", Start: "0s", Until: 9e15}),
			"PUT /v1/limits/api/overrides key=k&start=0s&until=2255-01-01T00:00:00Z", "override set api k --start 0s --until 2255-01-01T00:00:00Z",
			"select dipwell.override('api', 'k', start => '0s', until => '2255-01-01')", nil},
		{"an override of an empty start", "start", "is empty", nil, "PUT /v1/limits/api/overrides key=k&rate=6&start=", "override set api k --rate 6 --start=",
			"select dipwell.override('api', 'k', rate => 6, start => '')", nil},
		{"windows of a month that begin with a call", "start", "first_call needs a per of a fixed length such as 30d, not 1mo", define("new=5/1mo,algorithm=fixed_window,start=first_call"),
			"PUT /v1/limits/new rate=5&per=1mo&algorithm=fixed_window&start=first_call", "", "select dipwell.define('new', 5, interval '1 month', algorithm => 'fixed_window', start => 'first_call')", nil},
		{"an override per nothing", "per", "", nil, "PUT /v1/limits/api/overrides key=k&rate=6&per=", "override set api k --rate 6/", "", nil},
		{"an owner of 257 bytes", "owner", "has 257 bytes; at most 256", func(l *dipwell.Limiter) error {
			_, err := l.Define(bg, dipwell.Limit{Name: "new", Rate: 1, Period: time.Second}, strings.Repeat("o", 257))
			return err
		}, "", "", "", nil},
		{"a take of an empty plan", "plan", "is empty", nil, "POST /v1/take limit=api&key=k&plan=", "take api k --plan=", "", nil},
		{"a hold of an empty id", "id", "is empty", nil, "POST /v1/hold limit=api&key=k&ttl=1m&id=", "hold api k --ttl 1m --id=", "", nil},
		{"a settle of another shape", "costs", "", func(l *dipwell.Limiter) error { _, err := l.Settle(bg, "live", 1, 2); return err },
			"POST /v1/settle hold=live&costs=1,2", "settle live --cost 1 --cost 2", "select dipwell.settle_all('live', array[1, 2])", nil},
		{"an extend of an ended hold", "hold", "ended", func(l *dipwell.Limiter) error { _, err := l.Extend(bg, "ended", time.Minute); return err },
			"POST /v1/extend hold=ended&ttl=1m", "extend ended --ttl 1m", "select dipwell.extend('ended', interval '1 minute')", nil},
		{"a drop of a parent", "parent", "it is the parent of limit ", func(l *dipwell.Limiter) error { return l.Drop(bg, "top", store.OwnerCode) },
			"DELETE /v1/limits/upper", "", "select dipwell.drop('above')", nil},
	}
}

// TestBadInput makes each mistake through Go, HTTP, gRPC, the command line and SQL, on each
// store with the layers of the service: each error names the field and has the reason, and
// nothing has changed. Then it puts texts that no store keeps into every text that a user
// gives.
func TestBadInput(t *testing.T) {
	for name, urlOf := range map[string]func(*testing.T) string{
		"memory":  func(*testing.T) string { return "memory:" },
		"file":    func(t *testing.T) string { return "file:" + filepath.Join(t.TempDir(), "data") },
		"redis":   func(t *testing.T) string { return redistest.Start(t).URL() },
		"cluster": func(t *testing.T) string { return redistest.StartCluster(t).URL() },
		"portable": func(t *testing.T) string {
			return databaseFor(t, "portable", pgstore.MigrateOptions{Engine: "Portable"})
		},
		"postgres": migratedDatabase,
	} {
		t.Run(name, func(t *testing.T) {
			url := urlOf(t)
			st, err := openStore(t.Context(), url, storeOptions{report: func(err error) { t.Error(err) }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			var conn *pgx.Conn
			if name == "postgres" {
				conn = connectTo(t, url)
			}
			limits, err := parseLimits(badLimits)
			if err != nil {
				t.Fatal(err)
			}
			l, err := dipwell.New(st.Store, limits...)
			if err != nil {
				t.Fatal(err)
			}
			service := server.New(l, server.Config{})
			srv := httptest.NewServer(service.API(server.Site{Loopback: true}))
			t.Cleanup(srv.Close)
			s := &surface{T: t, l: l, url: srv.URL, conn: conn, verbs: serveVerbs(t, service, nil)}
			for _, id := range []string{"live", "ended"} {
				if _, err = l.Hold(bg, time.Hour, id, dipwell.Take{Limit: "api", Key: "held", Cost: 1}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err = l.Settle(bg, "ended", 1); err != nil {
				t.Fatal(err)
			}
			for _, call := range []string{"PUT /v1/limits/upper rate=9&per=1h&parts=1", "PUT /v1/limits/lower rate=9&per=1h&parent=upper"} {
				if code, body := s.ask(call); code >= 300 {
					t.Fatal(code, body)
				}
			}
			if conn != nil {
				if _, err = conn.Exec(bg, "select dipwell.define('above', 9, '1 hour', parts => 1), dipwell.define('below', 9, '1 hour', parent => 'above')"); err != nil {
					t.Fatal(err)
				}
				eventually(t, func() error { // the program learns of them
					if l.Limit("below") == nil {
						return errors.New("limit below is not known")
					}
					return nil
				})
			}
			before := s.state()
			for _, c := range badCalls() {
				s.make(&c)
			}
			if s.grpcCalls < 20 {
				t.Errorf("%d calls have been made through gRPC", s.grpcCalls)
			}
			s.texts()
			if after := s.state(); after != before {
				t.Errorf("errors have changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// make makes a mistake through all surfaces.
func (s *surface) make(c *badCall) {
	check := func(where, text string, fields ...string) {
		named := false
		for _, f := range fields {
			named = named || f == c.field
		}
		if !named || !strings.Contains(text, c.reason) {
			s.Errorf("%s by %s: field %q; want %s and %q: %s", c.name, where, fields, c.field, c.reason, text)
		}
	}
	var err error
	if c.call != nil {
		err = c.call(s.l)
	}
	noPlan := strings.Contains(c.reason, "has no plan")
	if c.call != nil && noPlan != errors.Is(err, store.ErrUnknownPlan) {
		s.Errorf("%s by Go is or is not ErrUnknownPlan: %v", c.name, err)
	}
	var field *dipwell.FieldError
	switch {
	case c.call == nil:
	case errors.Is(err, dipwell.ErrStore):
		s.Errorf("%s by Go is a failure of the store: %v", c.name, err)
	case errors.As(err, &field):
		check("Go", err.Error(), field.Field)
	case errors.Is(err, store.ErrHoldConflict):
		check("Go", err.Error(), "hold")
	default:
		s.Errorf("%s by Go: %v", c.name, err)
	}
	if c.http != "" {
		code, body := s.ask(c.http)
		if code < 400 || code > 409 || code == 403 || noPlan != (code == 404) || !strings.Contains(body, `"field":"`+c.field+`"`) {
			s.Errorf("%s by HTTP: %d %s", c.name, code, body)
		}
		check("HTTP", strings.ReplaceAll(body, `\"`, `"`), c.field)
		s.makeGRPC(c, err)
	}
	if c.cli != "" {
		code, out, errs := program(s.T, append(strings.Fields(c.cli), "--server", s.url)...)
		if code != 2 {
			s.Errorf("%s by the command line: exit %d, %s%s", c.name, code, out, errs)
		}
		check("the command line", errs, c.field)
		if !strings.Contains(errs, c.field) {
			s.Errorf("%s by the command line does not name %s: %s", c.name, c.field, errs)
		}
	}
	if s.conn != nil && c.sql != "" {
		s.query(c.name, c.field, c.reason, c.sql, c.args...)
	}
}

// query runs SQL that must be an error of bad input.
func (s *surface) query(name, field, reason, sql string, args ...any) {
	_, err := s.conn.Exec(bg, sql, args...)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		s.Errorf("%s by SQL: %v", name, err)
		return
	}
	if pg.ConstraintName != field || !strings.Contains(pg.Message, reason) || strings.HasPrefix(pg.Code, "XX") {
		s.Errorf("%s by SQL: %s %q; want %s: %s", name, pg.Code, pg.ConstraintName, field, pg.Message)
	}
	if reason != "" && strings.Contains(reason, "has no plan") != (pg.Code == "42704") { // undefined_object
		s.Errorf("%s by SQL: %s %s", name, pg.Code, pg.Message)
	}
}

// ask sends "METHOD PATH form" and returns the status and the body.
func (s *surface) ask(call string) (int, string) {
	method, rest, _ := strings.Cut(call, " ")
	path, form, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(bg, method, s.url+path, strings.NewReader(form))
	if err != nil {
		s.Fatal(err)
	}
	if form != "" && form[0] != '{' {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// texts puts NUL, invalid UTF-8 and a byte too many into every text that a user gives.
func (s *surface) texts() {
	for what, bad := range map[string]string{"NUL": "a\x00b", "no UTF-8": "a\xff", "too long": strings.Repeat("x", 5000)} {
		q := url.QueryEscape(bad)
		for field, call := range map[string]string{
			"limit":  "POST /v1/take key=k&limit=" + q,
			"key":    "POST /v1/take limit=api&key=" + q,
			"plan":   "POST /v1/take limit=api&key=k&plan=" + q,
			"id":     "POST /v1/hold limit=api&key=k&ttl=1m&id=" + q,
			"hold":   "POST /v1/settle hold=" + q,
			"note":   "PUT /v1/limits/api/overrides key=k&plan=pro&note=" + q,
			"parent": "PUT /v1/limits/new rate=1&per=1s&parent=" + q,
			"name":   "PUT /v1/limits/" + url.PathEscape(bad) + " rate=1&per=1s",
		} {
			code, body := s.ask(call)
			unknown := code == 404 && (field == "limit" || field == "plan" || field == "hold") // a name that nothing has
			if !unknown && code != 400 || !strings.Contains(body, `"field":"`) {
				s.Errorf("%s with %s by HTTP: %d %.300s", field, what, code, body)
			}
			if args := textArgs(field, bad); what != "NUL" && args != nil { // no argument of a program has it
				code, out, errs := program(s.T, append(args, "--server", s.url)...)
				if code != 2 || !strings.Contains(errs, field) && !strings.Contains(errs, "is not UTF-8") {
					s.Errorf("%s with %s by the command line: exit %d, %.300s%.300s", field, what, code, out, errs)
				}
			}
			if what == "no UTF-8" { // no message has it
				continue
			}
			err, ok := s.throughGRPC(call)
			if g := status.Code(err); ok && g != codes.InvalidArgument && (!unknown || g != codes.NotFound) || ok && !strings.Contains(err.Error(), field) {
				s.Errorf("%s with %s by gRPC: %.300v", field, what, err)
			}
		}
		if code, body := s.ask("DELETE /v1/limits/" + url.PathEscape(bad)); code != 404 || !strings.Contains(body, `"field":"limit"`) {
			s.Errorf("a drop with %s by HTTP: %d %.300s", what, code, body)
		}
		for _, list := range []string{"keys", "overrides"} {
			for _, field := range []string{"prefix", "after", "key"} {
				code, body := s.ask("GET /v1/limits/api/" + list + "?" + field + "=" + q)
				if code != 400 || !strings.Contains(body, `"field":"`+field+`"`) {
					s.Errorf("%s of %s with %s by HTTP: %d %.300s", field, list, what, code, body)
				}
			}
		}
		pro := dipwell.Override{Key: "k", Plan: "pro"}
		for field, call := range map[string]func() error{
			"limit": func() error { _, err := s.l.Take(bg, bad, "k", 1); return err },
			"key":   func() error { _, err := s.l.Take(bg, "api", bad, 1); return err },
			"plan": func() error {
				var d dipwell.Decision
				return s.l.Do(bg, &d, store.VerbTake, dipwell.Take{Limit: "api", Key: "k", Cost: 1, Plan: bad})
			},
			"id": func() error {
				_, err := s.l.Hold(bg, time.Minute, bad, dipwell.Take{Limit: "api", Key: "k", Cost: 1})
				return err
			},
			"hold":         func() error { _, err := s.l.Settle(bg, bad); return err },
			"override key": func() error { o := pro; o.Key = bad; _, err := s.l.SetOverride(bg, "api", o); return err },
			"override":     func() error { o := pro; o.Plan = bad; _, err := s.l.SetOverride(bg, "api", o); return err },
			"note":         func() error { o := pro; o.Note = bad; _, err := s.l.SetOverride(bg, "api", o); return err },
			"owner": func() error {
				_, err := s.l.Define(bg, dipwell.Limit{Name: "new", Rate: 1, Period: time.Second}, bad)
				return err
			},
			"drop":           func() error { return s.l.Drop(bg, "api", bad) },
			"name of a drop": func() error { return s.l.Drop(bg, bad, store.OwnerCode) },
			"name": func() error {
				_, err := s.l.Define(bg, dipwell.Limit{Name: bad, Rate: 1, Period: time.Second}, store.OwnerCode)
				return err
			},
			"parent": func() error {
				_, err := s.l.Define(bg, dipwell.Limit{Name: "new", Rate: 1, Period: time.Second, Parent: bad}, store.OwnerCode)
				return err
			},
			"end of an override": func() error { _, err := s.l.EndOverride(bg, "api", bad, dipwell.AnyOverride); return err },
			"holds":              func() error { _, err := s.l.Holds(bg, "api", bad); return err },
			"keys":               func() error { _, err := s.l.Keys(bg, "api", bad, "", 1); return err },
			"overrides":          func() error { _, err := s.l.Overrides(bg, "api", "", bad, 1); return err },
		} {
			if err := call(); err == nil || errors.Is(err, dipwell.ErrStore) {
				s.Errorf("%s with %s by Go: %v", field, what, err)
			}
		}
		if s.conn == nil {
			continue
		}
		for sql, field := range map[string]string{
			"select dipwell.take('api', $1)": "key", "select dipwell.take($1, 'k')": "limit_name", "select dipwell.take('api', 'k', plan => $1)": "plan",
			"select dipwell.hold('api', 'k', 1, ttl => interval '1 minute', id => $1)": "id", "select dipwell.settle($1)": "hold",
			"select dipwell.override('api', 'k', plan => 'pro', note => $1)": "note", "select dipwell.define($1, 1, interval '1 second')": "name",
		} {
			if what == "too long" {
				s.query(sql, field, "", sql, bad)
			} else { // the server refuses it before a function sees it
				_, err := s.conn.Exec(bg, sql, bad)
				if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "22021" { // character_not_in_repertoire
					s.Errorf("%s with %s by SQL: %v", sql, what, err)
				}
			}
		}
	}
}

// textArgs are arguments of the command line with a text in a field, or nil.
func textArgs(field, text string) []string {
	return map[string][]string{
		"limit": {"take", text, "k"},
		"key":   {"take", "api", text},
		"plan":  {"take", "api", "k", "--plan", text},
		"id":    {"hold", "api", "k", "--ttl", "1m", "--id", text},
		"hold":  {"settle", text},
		"note":  {"override", "set", "api", "k", "--plan", "pro", "--note", text},
	}[field]
}

// passing is what changes as time passes.
var passing = regexp.MustCompile(`"reset_after_us":\d+`)

// state returns what the calls might have changed.
func (s *surface) state() string {
	var b strings.Builder
	for _, path := range []string{"/v1/limits", "/v1/limits/api/overrides", "/v1/limits/api/keys", "/v1/limits/api/holds?key=held"} {
		code, body := s.ask("GET " + path)
		fmt.Fprintln(&b, path, code, passing.ReplaceAllString(body, ""))
	}
	return b.String()
}
