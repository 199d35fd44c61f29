package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/await"
)

var (
	//go:embed clock_server.lua
	clockServer string
	//go:embed clock_given.lua
	clockGiven string
	//go:embed reserve_server.lua
	reserveServer string
	//go:embed reserve_given.lua
	reserveGiven string
	//go:embed take_all.lua
	takeAllLua string
	//go:embed take_many.lua
	takeManyLua string
	//go:embed set.lua
	setLua string
	//go:embed take_one.lua
	takeOneLua string
	//go:embed lows.lua
	lowsLua string
	//go:embed decide.lua
	decideLua string
	//go:embed cancel.lua
	cancelLua string
	//go:embed swap.lua
	swapLua string
	//go:embed define.lua
	defineLua string
	//go:embed lengthen.lua
	lengthenLua string
	//go:embed now.lua
	nowLua string
)

// A script is asked for by its hash. A server that does not have it, because it
// was restarted, promoted or told to forget, gets the text with the same call.
type script struct {
	text, sha any
	words     bool // answers in one string, which costs the server less than a list
}

type scripts struct{ takeOne, takeAll, takeMany, set, decide, cancel, swap, define, lengthen, now *script }

var byServer, byCaller = newScripts(clockServer, reserveServer), newScripts(clockGiven, reserveGiven)

func newScripts(clock, reserve string) *scripts {
	with := func(text string) *script {
		text = clock + "\n" + text
		sum := sha1.Sum([]byte(text))
		return &script{text: text, sha: hex.EncodeToString(sum[:])}
	}
	one, all, many, set := with(takeOneLua), with(takeAllLua), with(takeManyLua), with(setLua)
	one.words, all.words, many.words, set.words = true, true, true, true
	return &scripts{
		takeOne: one, takeAll: all, takeMany: many, set: set, decide: with(reserve + "\n" + lowsLua + decideLua), cancel: with(lowsLua + cancelLua),
		swap: with(swapLua), define: with(defineLua), lengthen: with(lengthenLua), now: with(nowLua),
	}
}

func (s *script) command(ctx context.Context, args []any) redis.Cmder {
	if s.words {
		return redis.NewStringCmd(ctx, args...)
	}
	return redis.NewIntSliceCmd(ctx, args...)
}

// A call is one run of a script. The client must not repeat it by itself: it
// may have charged.
type call struct {
	redis.Cmder
	script *script
	writes bool
	split  bool // its rows can be asked one by one, and are where their slot is moving
}

func (call) NoRetry() bool { return true }

// ints is the answer in integers; words, of a script that has it, the one in a string.
func (c call) ints() []int64 { return c.Cmder.(*redis.IntSliceCmd).Val() }
func (c call) words() string { return c.Cmder.(*redis.StringCmd).Val() }

// Words before the keys of a call.
var evalsha, eval any = "evalsha", "eval"

// newCall makes a call of args: two places for the script, the number of keys,
// the keys, the arguments.
func newCall(ctx context.Context, s *script, writes bool, args []any) call {
	args[0], args[1] = evalsha, s.sha
	return call{s.command(ctx, args), s, writes, false}
}

// again makes the call anew, with the script's text.
func (c call) again(ctx context.Context, withText bool) call {
	args := c.Args()
	if withText {
		args[0], args[1] = eval, c.script.text
	}
	return call{c.script.command(ctx, args), c.script, c.writes, c.split}
}

// A server that says that it cannot decide now has done nothing, and may be
// asked again: so often, with a pause drawn from zero to one that doubles. A
// failover takes longer; a caller is told rather than kept.
const (
	maxTries   = 6
	firstPause = 5 * time.Millisecond
)

// run runs one script and returns its integers.
func (s *Store) run(ctx context.Context, c call) ([]int64, error) {
	c, err := s.answered(ctx, c)
	return c.ints(), err
}

// answered runs one script and returns the call that has its answer.
func (s *Store) answered(ctx context.Context, c call) (call, error) {
	err := s.db.Process(ctx, c)
	if err == nil {
		return c, nil
	}
	calls, errs := []call{c}, []error{err}
	s.repeat(ctx, calls, errs)
	return calls[0], errs[0]
}

// runMany sends calls in one pipeline. Each has its own answer or error in place.
func (s *Store) runMany(ctx context.Context, calls []call) []error {
	errs := make([]error, len(calls))
	s.send(ctx, calls, errs)
	for _, err := range errs {
		if err != nil {
			s.repeat(ctx, calls, errs)
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
		_ = pipe.Process(ctx, calls[i]) // it only queues
	}
	_, _ = pipe.Exec(ctx) // the error is that of a call
	for i := range calls {
		errs[i] = calls[i].Err()
	}
}

// repeat asks again where that is safe, and says of the other errors what is known.
func (s *Store) repeat(ctx context.Context, calls []call, errs []error) {
	pause := firstPause
	for try := 1; try < maxTries; try++ {
		var at []int
		var next []call
		slow := false
		for i, err := range errs {
			if err == nil || !missing(err) && !passing(err) || calls[i].split && replied(err, "TRYAGAIN ") {
				continue
			}
			slow = slow || passing(err)
			at, next = append(at, i), append(next, calls[i].again(ctx, missing(err)))
		}
		if len(at) == 0 || slow && await.Sleep(ctx, rand.N(pause)) != nil {
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
	s.lookAgain(errs)
	for i, err := range errs {
		errs[i] = storeError(err, calls[i].writes)
	}
}

// lookAgain makes a cluster's client reload its map of slots after a node timed
// out or turned out to be a replica. The client itself does so only for commands
// that it may repeat, and otherwise every ten seconds.
func (s *Store) lookAgain(errs []error) {
	cluster, ok := s.db.(*redis.ClusterClient)
	if !ok {
		return
	}
	for _, err := range errs {
		var reply redis.Error
		unsent := err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // as in nothingDone
		if err != nil && !unsent && (!errors.As(err, &reply) || passing(err)) {
			cluster.ReloadState(context.Background()) // it returns at once, and makes one inquiry at a time
			return
		}
	}
}

func missing(err error) bool { return replied(err, "NOSCRIPT") }

// passing reports whether a server said that it could not decide just now.
func passing(err error) bool {
	return replied(err, "LOADING ", "CLUSTERDOWN ", "TRYAGAIN ", "MASTERDOWN ", "READONLY ", "NOREPLICAS ", "MOVED ", "ASK ")
}

// replied reports whether err is a server's reply that begins so.
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
