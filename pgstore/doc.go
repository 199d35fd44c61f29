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
//	      such a call; Refund                keys are new
//	Reset, Cancel, calendars, leaky          dipwell_internal.decide and give_back, a statement
//	buckets, a Reserve that has to wait,     each
//	rows with reservations or of another
//	version, and in the caller's
//	transaction what set.sql would decide
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
