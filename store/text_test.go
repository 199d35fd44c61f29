package store_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

func TestLimitRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, _ := anyRule(t)
		l.OnChange = store.ChangePolicy(rapid.IntRange(0, 2).Draw(t, "change"))
		l.Mode = store.Mode(rapid.IntRange(0, 1).Draw(t, "mode"))
		l.Auth, l.ListKeys, l.Usage = rapid.Bool().Draw(t, "auth"), rapid.Bool().Draw(t, "keys"), rapid.Bool().Draw(t, "usage")
		l.RetryJitter = rapid.IntRange(0, 100).Draw(t, "jitter")
		l.OnStoreError = store.FailureMode(rapid.IntRange(0, 2).Draw(t, "failure"))
		l.Timeout = time.Duration(rapid.IntRange(0, 5000).Draw(t, "timeout")) * time.Millisecond
		got, err := dipwell.ParseLimit(l.String())
		if err != nil || got != l {
			t.Fatalf("%s:\n%+v\n%+v\n%v", l, l, got, err)
		}
	})
}

func TestParseLimitErrors(t *testing.T) {
	for s, want := range map[string]string{
		"login":                       "NAME=RATE/PER",
		"login=5":                     "NAME=RATE/PER",
		"login=x/1m":                  "rate",
		"login=0/1m":                  "rate",
		"login=5/1q":                  "per",
		"login=5/1m,brust=20":         "did you mean burst?",
		"login=5/1m,burst":            "SETTING=VALUE",
		"login=5/1m,burst=1,burst=2":  "twice",
		"login=5/1m,rate=7":           "twice",
		"login=5/1m,mode=shadwo":      "did you mean shadow?",
		"login=5/1m,on_change=kep":    "did you mean keep?",
		"login=5/1m,algorithm=bucket": "token_bucket",
		"login=5/1m,start=0s":         "start",
		"login=5/1m,burst=-1":         "burst",
		"login=5/1m,retry_jitter=10":  "percentage",
		"login=5/1mo":                 "per",
		"login=5/1m,ttl=0s":           "ttl: 0s is not between 1ms and 31d",

		"login=100/hour":                     `"100/hour" is not RATE/PER, such as 5/1m: write login=100/1h`,
		"login=5/1day":                       `"5/1day" is not RATE/PER, such as 5/1m: write login=5/1d`,
		"login=5/1min":                       "write login=5/1m",
		"login=5/60":                         "write login=5/1m",
		"login=0.5/1s":                       "write login=1/2s",
		"login=10k/1s":                       "write login=10000/1s",
		"login=10_000/1m,burst=9":            "write login=10000/1m",
		"login=5 per 15 minutes":             "write login=5/15m",
		"login=5rps":                         "write login=5/1s",
		"5/1m":                               "write NAME=5/1m",
		"login=5/1m,burst=10k":               "burst: \"10k\" is not a whole number from 0 to 2^53-1: write 10000",
		"login=5/1m,timeout=1 sec":           "timeout: \"1 sec\" is not a length of time such as 250ms, 1s, 1m, 1h, 1d or 1w: write 1s",
		"login=5/1m,algorithm=fixed-window":  "did you mean fixed_window?",
		"login=5/1m,algorithm=TokenBucket":   "did you mean token_bucket?",
		"login=5/1m,window=1m":               "window: unknown setting; did you mean per?",
		"login=99999999999999999/1s":         "rate: \"99999999999999999\" is not a whole number from 0 to 2^53-1",
		"jobs=5/hour,algorithm=concurrency":  "NAME=BURST,algorithm=concurrency",
		"login=5/1m,plans=a:rate=600/1m":     "plans: plan a: rate: \"600/1m\" is not a whole number from 0 to 2^53-1: write rate: 600 and per: 1m",
		"login=5/1m,plans=a:burst=3;burst=4": "plans: plan a: burst: is given twice",

		"jobs=5/1m,algorithm=concurrency":                    "NAME=BURST",
		"jobs=5,algorithm=concurrency,burst=5":               "twice",
		"jobs=5,algorithm=concurrency,rate=5":                "rate",
		"jobs=0,algorithm=concurrency":                       "burst",
		"jobs=5,algorithm=concurrency,start=0s":              "start",
		"jobs=5,algorithm=concurrency,max_debt=1":            "max_debt",
		"jobs=5,algorithm=concurrency,on_change=reset":       "on_change",
		"jobs=5,algorithm=concurrency,on_expire=keep":        "on_expire",
		"a=5/1m,plans=staff:mode=unlimited;rate=6":           "leave out rate",
		"jobs=5,algorithm=concurrency,plans=pro:rate=6":      "rate",
		"jobs=5,algorithm=concurrency,plans=pro:per=1s":      "per",
		"jobs=5,algorithm=concurrency,plans=pro:max_debt=5":  "max_debt",
		"jobs=5,algorithm=concurrency,plans=pro:burst=0":     "burst",
		"jobs=5,algorithm=concurrency,plans=pro:burst=5;x=1": "x",

		"a=100/1s,lease=9ms":                                    "lease: 9ms is not between 10ms and 1s",
		"a=100/1s,lease=1001ms":                                 "lease: 1001ms is not between 10ms and 1s",
		"a=100/1s,lease=1s":                                     "lease: 1s is too long for a burst of 100 at 100 per 1s; at most 500ms",
		"a=100/1s,lease=501ms":                                  "lease: 501ms is too long for a burst of 100 at 100 per 1s; at most 500ms",
		"a=5/1m,burst=1,lease=1s":                               "lease: 1s is too long for a burst of 1 at 5 per 1m, and so is any other",
		"a=1000/1s,burst=2,lease=10ms":                          "lease: 10ms is too long for a burst of 2 at 1000 per 1s, and so is any other",
		"a=9/1s,burst=2,lease=111ms":                            "lease: 111ms is too long for a burst of 2 at 9 per 1s; at most 110889us",
		"a=100/1s,lease=250ms,mode=shadow":                      "lease: is not for a limit in shadow mode",
		"a=100/1s,lease=250ms,parent=b":                         "lease: is not for a limit with a parent",
		"a=100/1s,lease=250ms,algorithm=interval":               "lease: is for token buckets",
		"a=100/1s,lease=250ms,algorithm=leaky_bucket":           "lease: is for token buckets",
		"jobs=5,algorithm=concurrency,lease=250ms":              "lease: is for token buckets",
		"a=999983/30d,burst=1000000000,lease=1s":                "lease: a bucket of this size counts in ticks of 1s; a lease needs ticks of at most 1ms",
		"a=100/1s,lease=250ms,plans=pro:burst=40":               "plans: plan pro: lease: 250ms is too long for a burst of 40 at 100 per 1s; at most 200ms",
		"a=100/1s,lease=250ms,plans=pro:burst=40|q:mode=shadow": "plans: plan pro: lease: 250ms is too long",
	} {
		if _, err := dipwell.ParseLimit(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want something about %q", s, err, want)
		}
	}
	if l, err := dipwell.ParseLimit("jobs=10,algorithm=concurrency,ttl=5m"); err != nil || l != (store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 10, TTL: 5 * time.Minute}) {
		t.Errorf("concurrency: %+v, %v", l, err)
	} else if text := l.String(); text != "jobs=10,algorithm=concurrency,ttl=5m" {
		t.Error(text)
	}
	if l, err := dipwell.ParseLimit("api=10/s"); err != nil || l.Period != time.Second {
		t.Errorf("10/s: %+v, %v", l, err)
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"login=5/1m,burst=20", "day=1000/1d,algorithm=fixed_window,start=0s", "jobs=3/7s,max_debt=30",
		"a=1/1mo,algorithm=interval,start=06:00 Europe/Rome", "=/,", "jobs=10,algorithm=concurrency,ttl=5m,plans=pro:burst=20", "x=1/s,start=,max_debt=unlimited"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := dipwell.ParseLimit(s)
		if err != nil {
			return
		}
		if again, err := dipwell.ParseLimit(l.String()); err != nil || again != l {
			t.Fatalf("%q is %+v, and %q is %+v, %v", s, l, l.String(), again, err)
		}
	})
}
