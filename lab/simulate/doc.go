// Command simulate plays histories of a cluster: processes that call limits of one store,
// their clocks, the network between them, and faults. Everything happens in virtual time
// in one thread, and all randomness comes from one seed, so that the same seed plays the
// same history again.
//
// In some histories there are two regions, each with a store of its own, and processes
// that call both.
//
// The store decides with the algebra of package store over a table in memory. Between a
// process and the store are the service's own decorators: a call runs as a coroutine,
// which is suspended while it waits for an answer. A decorator fits the simulation if it
// lets the simulation start its goroutines and timers, and holds no lock while it waits.
//
// A history is a list of steps made from the seed: bursts of calls, and faults. Checks
// examine the grants, every answer, and the rows. If a check fails, Shrink drops steps
// of the history while the same check still fails.
package main
