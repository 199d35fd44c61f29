// Package adaptive finds the fraction of a limit's rate that a process uses, so that what
// is behind the limit stays within a target of latency and errors.
//
// A fraction is a number of 1024ths of the rate. Config.Add is the controller: it has
// no clock and does no I/O. Limit holds the controller's state for the callers of a process.
package adaptive
