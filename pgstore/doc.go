// Package pgstore keeps buckets in PostgreSQL. Programs in Go, SQL functions and
// the service share the same rows and give the same answers.
//
// # Statements
//
// A call goes by the first of these rows that fits, and by the next one where
// that does not charge it.
//
//	one call of one key
//	    Take, TakeUpTo, Reserve, Charge      one UPDATE that charges all or nothing (take);
//	                                         an INSERT for keys that are probably new (first)
//	    … of a key that is not there, or     one statement that inserts or reads why not (insert)
//	      was not charged
//	    … of a key that was refused lately   one SELECT before them (peek)
//	    Check, and a cost of 0               one SELECT (look)
//	    Refund, a TakeUpTo that gets less    set.sql
//	a batch
//	    the same verbs and Check             added up by key; an INSERT … ON CONFLICT for each
//	                                         limit, all in one trip (takeMany, takeWithoutLook,
//	                                         chargeMany), and a SELECT about those that were
//	                                         not charged (lookMany)
//	    … where some of a key fit            decided in Go and written by set.sql
//	several keys in a call                   for up to four that have rows, an UPDATE each in
//	                                         one statement, which charges all or none (takeAll)
//	    … that was not charged, or is not    set.sql for all of them; with set_first.sql where
//	      such a call; Refund; calendars,    keys are new
//	      leaky buckets
//	Reset                                    reset.sql for all of them
//	Cancel, a Reserve that has to wait,      alone dipwell_internal.decide or give_back; in a
//	rows with reservations                   batch one read for all of them, a decision in Go,
//	                                         and one statement that writes it (kept)
//	rows of another version                  dipwell_internal.decide, a statement each
//
// The function dipwell_internal.decide decides one group under the locks, and costs
// the server several times what a statement does. What still goes by it:
//
//   - A Cancel, a Reserve or a leaky bucket's Take that has to wait, and a call
//     about a row with lows, where fewer than four come in a batch: two statements
//     are not worth it for so few.
//   - Rows of an older version, which have to be stepped under each version since.
//   - Reset of a key with reservations, or whose row was changed while the Reset
//     waited for its lock; Reset beside other verbs about the same key in a batch.
//   - Limits in a zone of which the database knows other clocks than this program,
//     which could not say when to retry; and rows with lows of a calendar limit.
//   - Groups whose rows others have changed in each of several statements, and keys
//     with more than 250 reservations.
//
// In the caller's transaction the same statements are used, except set_first.sql,
// which takes each row that the transaction has written for one that it has made,
// and takeAll, which fails where a charge does not fit.
//
// [Config.Clock] aside, all of them go by the server's clock, and lock rows in the
// order of limit id and key. Engines other than PostgreSQL are asked by portable
// statements instead: a Take is one upsert; other calls, and a Take that this
// does not charge, are a read, a decision in Go, and a transaction where there is
// something to write.
//
// # Definitions
//
// A statement that has a definition's numbers in it names the version that they
// are of, and charges a row only if the row, once it is locked, names the same.
// Otherwise dipwell_internal.decide reads the definition when it has the lock, and
// converts the row. So a row is never counted by numbers that were read before a
// wait for its lock. A limit that was changed or dropped elsewhere is heard of
// within [Config.Poll]; until then a row of the old version is charged by it.
//
// # New keys
//
// A row is inserted with its first charge in it: one write a key. A store
// remembers which keys it has met, and for each limit how many of the others were
// new lately. Where they mostly are, it inserts without asking first.
//
// # Locks
//
// Two statements that lock the same rows cannot deadlock, because they keep one
// order; a transaction of the caller's that takes from several keys in another
// order can. See [Store.Lane] for statements that give up a lock.
package pgstore
