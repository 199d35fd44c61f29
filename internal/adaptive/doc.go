// Package adaptive moves the rate of a limit between a floor and a ceiling, so that what
// is behind the limit stays within a target of latency and errors.
//
// A rate is a level: a number of 1/1024 of the ceiling. A History has the changes of the
// level, and from them the ticks of a Rule: at a level of n there are n ticks in a
// microsecond. So a row is stepped by the difference of two look-ups, however often the
// rate changed between them. All stored numbers are whole.
//
// State.Add is the controller. It has no clock and does no I/O.
package adaptive
