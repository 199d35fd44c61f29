package lease

import "math"

// A demand is an exponential moving average of tokens and calls per ns: what was t ago
// has the weight e^(-t/span). It begins at zero, for which rate corrects. Until half a
// lease has passed there is no average, and everything so far counts as the demand of a
// whole lease.
type demand struct {
	began, last   int64   // ns
	tokens, calls float64 // per ns, averaged up to last
	more          int64   // tokens used since last
	moreCalls     float64
}

func (m *demand) add(tokens int64, calls float64) {
	m.more += tokens
	m.moreCalls += calls
}

// beginning reports whether there is no average yet.
func (m *demand) beginning() bool { return m.last == m.began }

// update brings the averages up to now if at least an eighth of a lease has passed, or
// half of one at the beginning. span is five leases.
func (m *demand) update(now int64, span float64) {
	passed := float64(now - m.last)
	if passed < span/40 || m.beginning() && passed < span/10 {
		return
	}
	weight := 1 - math.Exp(-passed/span)
	m.tokens += (float64(m.more)/passed - m.tokens) * weight
	m.calls += (m.moreCalls/passed - m.calls) * weight
	m.last, m.more, m.moreCalls = now, 0, 0
}

// rate returns tokens and calls per ns.
func (m *demand) rate(span float64) (tokens, calls float64) {
	if m.beginning() {
		return float64(m.more) / (span / 10), m.moreCalls / (span / 10)
	}
	part := 1 - math.Exp(-float64(m.last-m.began)/span)
	return m.tokens / part, m.calls / part
}
