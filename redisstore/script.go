package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/background"
)

//go:embed *.lua
var files embed.FS

// lua returns the texts of files, one after the other.
func lua(names ...string) (text string) {
	for _, name := range names {
		b, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(err) // cannot happen with the names of files below
		}
		text += string(b) + "\n"
	}
	return text
}

// A script is called by its hash. If the server does not know it, because it
// was restarted, promoted or flushed, the call is repeated with the text.
type script struct{ text, sha any }

type scripts struct {
	takeOne, set, hold, settle                        *script
	read, write, define, lengthen, now, forget, count *script
}

var serverClockScripts, givenClockScripts = newScripts(lua("clock_server")), newScripts(lua("clock_given"))

func newScripts(clock string) *scripts {
	with := func(names ...string) *script {
		text := clock + lua("expiry") + lua(names...)
		sum := sha1.Sum([]byte(text))
		return &script{text: text, sha: hex.EncodeToString(sum[:])}
	}
	return &scripts{
		takeOne: with("take_one"), set: with("set"), hold: with("lows", "hold"), settle: with("lows", "settle"),
		read: with("snapshot", "read"), write: with("snapshot", "write"), define: with("define"), lengthen: with("lengthen"),
		now: with("now"), forget: with("forget"), count: with("count"),
	}
}

// A call is one run of a script. The client must not retry a call, because it
// may have charged.
type call struct {
	*redis.Cmd
	script    *script
	writes    bool
	divisible bool // if its slot is being migrated, its rows can be decided one by one
}

func (call) NoRetry() bool { return true }

// str returns the reply of a script that returns a string, which costs the server less than a
// list.
func (c call) str() string {
	text, _ := c.Text()
	return text
}

// These are commands, converted once to avoid allocations.
var evalsha, eval any = "evalsha", "eval"

// call returns a call with args: two places for the command and the script,
// the number of keys, the keys, the arguments. It appends the time of a test's clock.
func (s *Store) call(ctx context.Context, of *script, writes bool, args []any) call {
	if s.clock != nil {
		args = append(args, s.clock())
	}
	args[0], args[1] = evalsha, of.sha
	return call{redis.NewCmd(ctx, args...), of, writes, false}
}

// renew returns the call for another try, with the text of the script if withText.
func (c call) renew(ctx context.Context, withText bool) call {
	args := c.Args()
	if withText {
		args[0], args[1] = eval, c.script.text
	}
	return call{redis.NewCmd(ctx, args...), c.script, c.writes, c.divisible}
}

// A server that cannot decide at the moment has changed nothing, so the call is
// tried again, at most maxTries times in all, with a random pause from zero to
// a bound that doubles. A failover takes longer than the tries: the caller gets
// an error instead of waiting for it.
const (
	maxTries   = 6
	firstPause = 5 * time.Millisecond
)

// run runs one script and returns its integers.
func (s *Store) run(ctx context.Context, c call) ([]int64, error) {
	c, err := s.process(ctx, c)
	list, _ := c.Int64Slice()
	return list, err
}

// process runs one script and returns the call that has the reply.
func (s *Store) process(ctx context.Context, c call) (call, error) {
	err := s.db.Process(ctx, c)
	if err == nil {
		return c, nil
	}
	calls, errs := []call{c}, []error{err}
	s.retry(ctx, calls, errs)
	return calls[0], errs[0]
}

// runMany sends calls in one pipeline, and returns an error for each.
func (s *Store) runMany(ctx context.Context, calls []call) []error {
	errs := make([]error, len(calls))
	s.send(ctx, calls, errs)
	for _, err := range errs {
		if err != nil {
			s.retry(ctx, calls, errs)
			break
		}
	}
	return errs
}

func (s *Store) send(ctx context.Context, calls []call, errs []error) {
	if len(calls) == 1 {
		errs[0] = s.db.Process(ctx, calls[0])
		return
	}
	pipe := s.db.Pipeline()
	for i := range calls {
		_ = pipe.Process(ctx, calls[i]) // only queues
	}
	_, _ = pipe.Exec(ctx) // Exec's error is the error of one of the calls
	for i := range calls {
		errs[i] = calls[i].Err()
	}
}

// retry repeats the calls for which that is safe, and wraps the errors that remain.
func (s *Store) retry(ctx context.Context, calls []call, errs []error) {
	pause := firstPause
	for try := 1; try < maxTries; try++ {
		var at []int
		var next []call
		slow := false
		for i, err := range errs {
			if err == nil || !noScript(err) && !temporary(err) || calls[i].divisible && replied(err, "TRYAGAIN ") {
				continue
			}
			slow = slow || temporary(err)
			at, next = append(at, i), append(next, calls[i].renew(ctx, noScript(err)))
		}
		if len(at) == 0 || slow && background.Sleep(ctx, rand.N(pause)) != nil {
			break
		}
		if slow {
			pause *= 2
		}
		failed := make([]error, len(next))
		s.send(ctx, next, failed)
		for i, of := range at {
			calls[of], errs[of] = next[i], failed[i]
		}
	}
	s.reloadCluster(errs)
	for i, err := range errs {
		errs[i] = storeError(err, calls[i].writes)
	}
}

// reloadCluster makes a cluster client reload its map of slots after a node
// timed out or turned out to be a replica. The client does so only for commands
// that it may retry, and otherwise every ten seconds.
func (s *Store) reloadCluster(errs []error) {
	cluster, ok := s.db.(*redis.ClusterClient)
	if !ok {
		return
	}
	for _, err := range errs {
		var reply redis.Error
		unsent := err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // as in nothingDone
		if err != nil && !unsent && (!errors.As(err, &reply) || temporary(err)) {
			cluster.ReloadState(context.Background()) // ReloadState returns at once; one reload runs at a time
			return
		}
	}
}

func noScript(err error) bool { return replied(err, "NOSCRIPT") }

// temporary reports whether a server replied that it cannot decide at the moment.
func temporary(err error) bool {
	return replied(err, "LOADING ", "CLUSTERDOWN ", "TRYAGAIN ", "MASTERDOWN ", "READONLY ", "NOREPLICAS ", "MOVED ", "ASK ")
}

// replied reports whether err is an error reply that starts with one of words.
func replied(err error, words ...string) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	for _, w := range words {
		if strings.HasPrefix(reply.Error(), w) {
			return true
		}
	}
	return false
}
