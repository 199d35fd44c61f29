// Package dipwell is a rate limiter: token buckets, fixed windows, intervals and
// leaky buckets, kept as two integers per key in a store.
//
// A Limiter sends calls to a Store, which decides them with the rule of the limit
// at one time of its own clock. A refusal is a Decision; an error means that the
// call was not decided. Tokens are whole, time is counted in microseconds, and
// every number is below 2^53, so that Go, SQL and Redis give the same answers.
//
// # Limits
//
// A Limit has a name, and a rate: Rate tokens in each Period. Each key of it has a
// bucket of its own, which holds up to Burst tokens and is full at first. The store
// has the limits; a program that defines them passes them to New:
//
//	limiter, err := dipwell.New(s,
//		dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute, Burst: 20})
//
// Here s is a store: memstore.New in this process's memory, filestore.Open in a file,
// pgstore.Open on PostgreSQL, redisstore.Open on Redis. Limiters of other processes over
// the same store share the buckets. stack.New adds what dipwell's service puts around a
// store, such as one statement for the calls of many goroutines.
//
// To define a limit again with other numbers changes it for everybody, from the next
// call on. Tokens that are used stay used.
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
//	TakeUpTo  takes as many as there are, up to n
//	TakeAll   takes from several limits at one instant, or from none
//	Check     says what Take would answer, and changes nothing
//	Reserve   takes tokens ahead of time, and says how long to wait
//	Wait      reserves, and waits
//	Charge    takes tokens that were used already, however few there are
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
// would be allowed if nobody else took tokens; Decision.Never says that it would not be.
// Decision.Err makes an error of a refusal.
//
// An error means that the call was not decided. A *FieldError is invalid input, and
// names the field; nothing was changed. ErrUnknownLimit says that no limit has this name.
// ErrReservation, ErrUnknownHold and ErrHoldConflict concern what an id names.
// Any other error wraps ErrStore or is that of the context: it is then not known whether
// the tokens were taken, unless the error also wraps a class that says so. A limit can say
// with OnStoreError that a call is allowed, or decided from this process's memory, while
// the store fails; Decision.Source tells these answers apart.
//
// # Keys
//
// A key has 1 to 512 bytes of UTF-8 without NUL. Shared is the key of a bucket that all
// callers share. Key joins parts, and escapes them, so that what users send cannot reach
// the bucket of another.
//
// # Waiting
//
// A limit with MaxDebt may lend tokens. Reserve takes them at once, and Decision.Delay is
// how long the caller waits before it acts; Cancel gives them back before then. Wait does
// both. On a limit without debt Wait queues the callers of this process in order, and
// takes when the tokens are there.
//
// # Costs that are known afterwards
//
// Hold takes an estimate, and Settle the true cost: the difference is given back or
// charged, once. A hold that is not settled in time expires, and gives back all of it.
// Holding does both around a function, and extends the hold while it runs. A limit whose
// Algorithm is Concurrency has holds alone: at most Burst tokens are held at a time.
//
// # Different limits for different callers
//
// Limit.Plans are named variants of a limit, of which the caller names one: Take.Plan. An
// Override is a variant for one key, until a time that may be left open; it is kept in the
// store, beside the plan that callers name. TakeWith is for a limit whose numbers are the
// caller's own.
//
// A limit with a Parent takes from the parent too, up to four levels: "user" inside
// "tenant" inside "everybody". All of them are decided at one instant.
//
// # Transactions
//
// On PostgreSQL, With binds a Limiter to a transaction of the caller. What it takes is
// given back when the transaction rolls back:
//
//	in := limiter.With(s.With(tx))
//	d, err := in.Take(ctx, "orders", customer, 1)
//
// The row stays locked until the transaction ends, and others who take from it wait.
//
// # Where the methods come from
//
// A token bucket is the generic cell rate algorithm of ITU-T I.371, with the time that is
// owed counted in units of tokens: a row is how much is used, and when that was true. The
// verbs Wait, Reserve and Cancel are those of golang.org/x/time/rate.
package dipwell
