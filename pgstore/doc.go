// Package pgstore is a store in PostgreSQL, and in databases that speak its
// protocol. Go programs, the SQL functions of schema dipwell, and the service
// use the same rows and give the same answers.
//
// # Statements
//
// A call is decided by the first of these statements that fits. If that
// statement does not charge the call, the next one that fits is used.
//
//	one call of one key
//	    Take, TakeUpTo, Reserve, Charge     one UPDATE that charges all or nothing (take)
//	    … no row, or not charged            one SELECT (readMany); if there is no row, one INSERT
//	                                        (takeMany)
//	    Check, and a cost of 0              one SELECT (readMany)
//	    Refund, and a partial TakeUpTo      set.sql
//	    under an override                   one UPDATE with its numbers (takeOverridden), or
//	                                        set.sql
//	a batch
//	    the same verbs, and Check           added up by key; one INSERT … ON CONFLICT for each
//	                                        limit (takeMany), then one SELECT of the rows that
//	                                        were not charged (readMany)
//	    … only some calls of a key fit      decided in Go and written by set.sql
//	several keys in a call                  set.sql
//	a hold of one key, and its settle       hold_one and settle_one
//	all else                                dipwell_internal.decide, give_back, hold_group or
//	                                        settle_group
//	the functions in a batch                one for each group, in one pipeline, up to 32 in a
//	                                        transaction that locks their rows first
//
// The functions decide one group under the locks of its rows. The functions cost the
// server several times as much as a statement above.
//
// In SQL a call is decided by
//
//	take, also with a plan or a floor      an UPDATE with the numbers of the limit or the plan;
//	                                       if nothing was charged, a SELECT that tells a
//	                                       refusal, or an INSERT. If the limit has shards, a
//	                                       SELECT first locks the better one of two rows
//	take of a limit with parents, take_all an UPDATE for each row (take_rows)
//	hold, settle                           hold_one and settle_one
//	all else                               dipwell_internal.decide, give_back, hold_group or
//	                                       settle_group
//
// CONTRIBUTING.md has a table of these ways, of all stores, with what each is worth.
//
// Unless [Config.Clock] is set, all statements use the server's clock. All statements
// lock rows in the order of limit id and key, except that a take locks rows of limits
// with shards before all others. Engines other than PostgreSQL are used by portable
// statements instead: a Take is one upsert; other calls, and a Take that the upsert does
// not charge, are a read, a decision in Go and, if something changes, a transaction.
//
// # Definitions
//
// A statement contains the numbers of one version of a limit. A statement charges a row
// only if the row, once it is locked, has the same version. Otherwise
// dipwell_internal.decide reads the definition under the lock and converts the row. So a
// row is never charged by numbers that were read before a wait for its lock. A plan has
// its own statements; dipwell_internal.decide also decides rows of another plan. The
// version of a row under an override is negative: the number of the override. A store
// remembers the overrides of the 32,768 keys with overrides that it met last, and passes
// their numbers and ends to one statement as parameters (takeOverridden, set.sql). A
// program notices a change or drop of a limit within [Config.Poll]; until then it charges
// rows that are still of the old version.
//
// # Locks
//
// Two statements that lock the same rows cannot deadlock, because both lock them in the
// same order. A transaction of the caller that takes from several keys in another order
// can deadlock. Lanes, which package stack opens, give up after lock_timeout.
package pgstore
