// Package pgstore is a store in PostgreSQL, and in databases that speak its
// protocol. Go programs, the SQL functions of schema dipwell, and the service
// use the same rows and give the same answers.
//
// # Statements
//
// A call is decided by the first of these statements that fits. If that does not
// charge the call, the next one that fits is used.
//
//	one call of one key
//	    Take, TakeUpTo, Reserve, Charge     one UPDATE that charges all or nothing (take), or an
//	                                        INSERT if the key is probably new (upsert, insertNew)
//	    … no row, or not charged            one statement that inserts the row, or reads why it
//	                                        was not charged (insertOrRead)
//	    … refused recently                  one SELECT before these (readExisting)
//	    Check, and a cost of 0              one SELECT (read)
//	    Refund, and a partial TakeUpTo      set.sql
//	a batch
//	    the same verbs, and Check           added up by key; one INSERT … ON CONFLICT for each
//	                                        limit, all in one round trip (takeMany,
//	                                        takeManyUnchecked, chargeMany), then one SELECT of
//	                                        the rows that were not charged (readMany)
//	    … only some calls of a key fit      decided in Go and written by set.sql
//	several keys in a call                  up to four existing rows: one statement with an
//	                                        UPDATE for each, which charges all or none (takeAll)
//	    … not charged; Refund; calendar     set.sql for all of them, with set_first.sql for
//	      limits; leaky buckets             new keys
//	Reset                                   reset.sql for all of them
//	Cancel, a Reserve that has to wait,     one group: dipwell_internal.decide or give_back;
//	rows with reservations                  a batch: one read, a decision in Go and one write
//	                                        (snapshot_read.sql, snapshot_write.sql)
//	rows of another version                 dipwell_internal.decide, once for each group
//
// The function dipwell_internal.decide decides one group under the locks of its
// rows. It costs the server several times as much as a statement above, and is
// used for:
//
//   - Cancel, a Reserve or a Take of a leaky bucket that has to wait, and calls of
//     rows with lows, if a batch has fewer than four of them.
//   - Rows of an older version, which have to be stepped under each version since.
//   - Reset of a key that has reservations, whose row was changed while the Reset
//     waited for its lock, or that other verbs of the batch also use.
//   - Limits in a time zone for which the database and this program have different
//     rules, so that the program could not compute retry times; and rows with lows
//     of a calendar limit.
//   - Groups whose rows were changed by others in each of several statements, and
//     keys with more than 250 reservations.
//
// In a transaction of the caller's the same statements are used, except for
// set_first.sql, which cannot tell rows that the transaction has written from
// rows that it has inserted, and takeAll, which ends with an error if a charge
// does not fit.
//
// Unless [Config.Clock] is set, all statements use the server's clock. All lock
// rows in the order of limit id and key. Engines other than PostgreSQL are used
// by portable statements instead: a Take is one upsert; other calls, and a Take
// that the upsert does not charge, are a read, a decision in Go and, if something
// changes, a transaction.
//
// # Definitions
//
// A statement contains the numbers of one version of a limit. It charges a row only if
// the row, once it is locked, has the same version. Otherwise dipwell_internal.decide
// reads the definition under the lock and converts the row. So a row is never charged by
// numbers that were read before a wait for its lock. A plan has its own statements;
// dipwell_internal.decide also decides rows of another plan. The version of a row under
// an override is negative: the number of the override. A store remembers the overrides of
// up to 32,768 keys that it met last, and passes their numbers and ends to one statement
// as parameters (takeOverridden, setOverriddenSQL). A program notices a change or drop of
// a limit within [Config.Poll]; until then it charges rows that are still of the old
// version.
//
// # New keys
//
// A row is inserted with its first charge, so a new key is written once. A store
// remembers which keys it has seen, and for each limit how many of the unseen
// keys were new recently. If most of them were, it inserts first.
//
// # Locks
//
// Two statements that lock the same rows cannot deadlock, because both lock them in the
// same order. A transaction of the caller that takes from several keys in another order
// can deadlock. Lanes, which package stack opens, give up after lock_timeout.
package pgstore
