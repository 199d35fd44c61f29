package storetest

import (
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dipwell/dipwell/store"
)

// usageCases test the usage of keys. A store without the ability Usage passes these cases.
var usageCases = []testCase{
	{"usage", onUsage(usageAddsUp)},
	{"usage-race", onUsage(usageRace)},
	{"usage-age", onUsage(usageAge)},
	{"usage-drop", onUsage(usageDrop)},
}

const (
	hour      = day / 24
	firstHour = epoch / hour * hour
)

// odd are unusual keys, which a store may write wrongly.
var odd = []string{"k", "", "a", "r", "0", `<b>"it's"</b> \ 日本 ` + "\x01\n", "k}:{*", "k/1"}

func onUsage(run func(*env, store.UsageKeeper)) func(*env) {
	return func(e *env) {
		if u := store.AbilitiesOf(e.store).Usage; u != nil {
			run(e, u)
		}
	}
}

func counted(name string) store.Limit {
	return store.Limit{Name: name, Rate: 1, Period: time.Second, Usage: true}
}

func addUsage(e *env, u store.UsageKeeper, lines ...store.UsageLine) {
	e.Helper()
	if err := u.AddUsage(e.ctx, lines); err != nil {
		e.Fatal(err)
	}
}

func usageOf(e *env, u store.UsageKeeper, d *store.Definition, key string, from, to int64) []store.UsageLine {
	e.Helper()
	list, err := u.Usage(e.ctx, d, key, from, to)
	if err != nil {
		e.Fatal(err)
	}
	return list
}

// usageAddsUp adds usage of several limits, keys and hours, twice, and checks the sums.
func usageAddsUp(e *env, u store.UsageKeeper) {
	var all []store.UsageLine
	defs := []*store.Definition{e.define(counted("u")), e.define(counted("a:b{c}%"))}
	for _, d := range defs {
		for _, key := range odd {
			for h := range int64(3) {
				n := int64(len(all))
				all = append(all, store.UsageLine{Limit: d.Name, Key: key, Hour: firstHour + h*hour, Allowed: n, Refused: n % 3, Tokens: store.MaxInt/4 - n})
			}
		}
	}
	unknown := store.UsageLine{Limit: "unknown", Key: "k", Hour: firstHour, Allowed: 1}
	addUsage(e, u, append(slices.Clone(all), unknown)...)
	slices.Reverse(all)
	addUsage(e, u, all...)
	slices.Reverse(all)
	e.clock.Store(firstHour + 2*hour)
	for _, d := range defs {
		for _, key := range odd {
			want := slices.Clone(all[:3])
			all = all[3:]
			for i := range want {
				want[i].Add(&want[i])
			}
			if got := usageOf(e, u, d, key, 0, firstHour+3*hour); !reflect.DeepEqual(got, want) {
				e.Errorf("limit %s, key %q: %+v, want %+v", d.Name, key, got, want)
			}
			if got := usageOf(e, u, d, key, firstHour+1, firstHour+2*hour); !reflect.DeepEqual(got, want[1:2]) {
				e.Errorf("limit %s, key %q, one hour: %+v, want %+v", d.Name, key, got, want[1:2])
			}
		}
	}
	if got := usageOf(e, u, defs[0], "other", 0, firstHour+3*hour); len(got) != 0 {
		e.Errorf("a key that was not used: %+v", got)
	}
}

// usageRace adds usage of the same keys concurrently, as several services do.
func usageRace(e *env, u store.UsageKeeper) {
	d := e.define(counted("u"))
	const callers, times, keys = 8, 10, 20
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			lines := make([]store.UsageLine, keys)
			for i := range lines {
				at := (i + c) % keys // each goroutine in another order
				lines[i] = store.UsageLine{Limit: "u", Key: strconv.Itoa(at), Hour: firstHour, Allowed: 1, Refused: 2, Tokens: int64(at)}
			}
			for range times {
				if err := u.AddUsage(e.ctx, lines); err != nil {
					e.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range int64(keys) {
		key := strconv.FormatInt(i, 10)
		want := []store.UsageLine{{Limit: "u", Key: key, Hour: firstHour, Allowed: callers * times, Refused: 2 * callers * times, Tokens: i * callers * times}}
		if got := usageOf(e, u, d, key, 0, firstHour+hour); !reflect.DeepEqual(got, want) {
			e.Errorf("key %s: %+v, want %+v", key, got, want)
		}
	}
}

// usageAge checks that usage is kept for 31 days.
func usageAge(e *env, u store.UsageKeeper) {
	d := e.define(counted("u"))
	line := func(days int64) store.UsageLine {
		return store.UsageLine{Limit: "u", Key: "k", Hour: firstHour + days*day, Allowed: days + 1}
	}
	for _, days := range []int64{0, 2, 32} {
		e.clock.Store(firstHour + days*day)
		addUsage(e, u, line(days))
	}
	want := []store.UsageLine{line(2), line(32)}
	if got := usageOf(e, u, d, "k", 0, firstHour+33*day); !reflect.DeepEqual(got, want) {
		e.Errorf("32 days later: %+v, want %+v", got, want)
	}
	if sweep := store.AbilitiesOf(e.store).Sweep; sweep != nil {
		if _, err := sweep(e.ctx, 1000); err != nil {
			e.Fatal(err)
		}
		if got := usageOf(e, u, d, "k", 0, firstHour+33*day); !reflect.DeepEqual(got, want) {
			e.Errorf("after a sweep: %+v, want %+v", got, want)
		}
	}
}

// usageDrop checks usage after a limit is dropped, and its name defined anew.
func usageDrop(e *env, u store.UsageKeeper) {
	e.define(counted("u"))
	kept := e.define(counted("u:"))
	line := store.UsageLine{Limit: "u", Key: "k", Hour: firstHour, Allowed: 1}
	other := line
	other.Limit = "u:"
	addUsage(e, u, line, other)
	e.drop("u")
	addUsage(e, u, line)
	if got := usageOf(e, u, e.define(counted("u")), "k", 0, firstHour+hour); len(got) != 0 {
		e.Errorf("after the drop: %+v", got)
	}
	if got := usageOf(e, u, kept, "k", 0, firstHour+hour); !reflect.DeepEqual(got, []store.UsageLine{other}) {
		e.Errorf("of another limit: %+v", got)
	}
}
