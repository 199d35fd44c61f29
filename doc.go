// Package dipwell is a rate limiter: token buckets, fixed windows, intervals and
// leaky buckets, kept as two integers per key in a store.
//
// A Limiter sends calls to a Store, which decides each by the rule of its limit at one
// time of the store's clock. A refusal is a Decision; an error means that the call was
// not decided. Tokens are whole, time is counted in microseconds, and every number is
// below 2^53, so that Go, SQL and Redis give the same answers.
//
// # Limits
//
// A Limit has a name, and a rate: Rate tokens in each Period. Each key of a limit has its
// own bucket, which holds up to Burst tokens and is full at first. The store keeps the
// limits; a program that defines them passes them to New:
//
//	limiter, err := dipwell.New(s,
//		dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute, Burst: 20})
//
// Here s is a store: memstore.New in this process's memory, filestore.Open in a file,
// pgstore.Open on PostgreSQL, redisstore.Open on Redis. Limiters of other processes over
// the same store share the buckets. stack.New wraps a store as dipwell's service does:
// for example, it sends the calls of many goroutines in one statement.
//
// Defining a limit again with other numbers changes it for all programs, from the next
// call on. Used tokens stay used.
//
// # Calls
//
// Take takes tokens now or refuses:
//
//	d, err := limiter.Take(ctx, "login", dipwell.Key("user", id), 1)
//	if err != nil {
//		return err // not decided
//	}
//	if !d.Allowed {
//		return tooManyRequests(d.RetryAfter)
//	}
//
//	Take      takes n tokens, or none
//	TakeUpTo  takes as many as are free, up to n
//	TakeAll   takes from several limits at one instant, or from none
//	Check     says what Take would answer, and changes nothing
//	Reserve   takes tokens ahead of time, and says how long to wait
//	Wait      reserves, and waits
//	Charge    takes n tokens, even if fewer are free
//	Refund    gives tokens back
//	Hold      takes tokens until Settle says how many were used
//	Reset     makes the bucket full
//
// Do and DoAll are the same with the verb as an argument, for a program that reuses a
// Decision or passes a plan and a floor.
//
// # Refusals and errors
//
// A refusal is not an error. Decision.RetryAfter is the time after which the same call
// would be allowed if nobody else took tokens; Decision.Never is set if it never would
// be. Decision.Err turns a refusal into an error.
//
// An error means that the call was not decided. A *FieldError is invalid input, and names the
// field; nothing was changed. ErrUnknownLimit, ErrReservation, ErrUnknownHold and
// ErrHoldConflict are about what a name or an id stands for. Any other error wraps ErrStore
// or the context's error: it is then not known whether the tokens were taken, unless the
// error also wraps a class that says so. By its OnStoreError a limit can allow calls, or
// decide them from this process's memory, while the store fails; Decision.Source says how the
// answer was made.
//
// # Waiting
//
// On a limit with MaxDebt, Reserve takes tokens that have not come back yet, which Cancel
// gives back; Wait reserves and sleeps. On a limit without debt, Wait queues the callers of
// this process in order, and takes the tokens when they are free.
//
// # Costs that are known afterwards
//
// Hold takes an estimate, and Settle the true cost. A hold that is not settled in time
// expires, and gives everything back. Holding does both around a function. A limit whose
// Algorithm is Concurrency has only holds: at most Burst tokens are held at a time.
//
// # Different limits for different callers
//
// Limit.Plans are named variants of a limit, one of which a caller may name: Take.Plan.
// An Override is a variant for one key, with or without an end. The store keeps it, and
// it takes precedence over the plan that callers name. TakeWith defines the limit with
// its first call.
//
// A limit with a Parent takes from the parent too, up to four levels: "user" inside
// "tenant" inside "everybody". All of them are decided at one instant.
//
// # Transactions
//
// On PostgreSQL, With binds a Limiter to a transaction of the caller. If the transaction
// rolls back, the tokens are given back:
//
//	in := limiter.With(s.With(tx))
//	d, err := in.Take(ctx, "orders", customer, 1)
//
// The row of the key stays locked until the transaction ends, and other calls of the key
// wait.
//
// # Where the methods come from
//
// A token bucket is the generic cell rate algorithm of ITU-T I.371. Instead of a
// theoretical arrival time, a row has the units that are used and the time at which they
// were. The verbs Wait, Reserve and Cancel are those of golang.org/x/time/rate.
package dipwell
