package model

import (
	"crypto/sha256"
	"encoding/binary"
	"math/big"
)

const maxInt = 1<<53 - 1

// Settings that are not written.
const (
	absent    = -1
	limitless = -2 // of max_debt: as much as can be counted
)

type algorithm int

const (
	tokenBucket algorithm = iota
	fixedWindow
	interval
	leakyBucket
	concurrency
	slidingWindow
)

type mode int

const (
	enforce mode = iota
	shadow
	unlimited
	blocked
)

type policy int

const (
	keep policy = iota
	proportional
	reset
)

type callable int

const (
	yes callable = iota
	no
	children
)

// numbers are the settings that a plan or an override may change, as they are written.
type numbers struct {
	rate   int64 // 0: absent
	per    int64 // µs; 0: absent
	burst  int64
	debt   int64
	charge int64
	mode   mode
	moded  bool // mode is written
}

var unwritten = numbers{burst: absent, debt: absent, charge: absent}

// over returns n with what is written in p.
func (n numbers) over(p numbers) numbers {
	if p.rate != 0 {
		n.rate = p.rate
	}
	if p.per != 0 {
		n.per = p.per
	}
	if p.burst != absent {
		n.burst = p.burst
	}
	if p.debt != absent {
		n.debt = p.debt
	}
	if p.moded {
		n.mode, n.moded = p.mode, true
	}
	return n
}

type plan struct {
	name string
	numbers
	callable callable
}

// takesNothing reports whether a plan has only a mode, so that rows stay under what is below.
func (m mode) takesNothing() bool { return m == unlimited || m == blocked }

// settings are a limit as its owner writes it.
type settings struct {
	name string
	algorithm
	numbers
	start    start
	onChange policy
	plans    []plan
	parent   string
	shared   bool
	parts    int
	ttl      int64
	keeps    bool  // on_expire: keep
	block    int64 // for how long a key is refused that has run out, 0: not
}

func (s *settings) plan(name string) *plan {
	for i := range s.plans {
		if s.plans[i].name == name {
			return &s.plans[i]
		}
	}
	return nil
}

// A rule is a definition in units and ticks.
type rule struct {
	unit, add, cap, debt, maxUsed int64
	burst, maxCharge              int64 // tokens
	grid                          grid
	mode                          mode
	leaky                         bool
	sliding                       bool
}

// counts reports whether r counts as o does: then a change converts nothing.
func (r *rule) counts(o *rule) bool {
	a, b := *r, *o
	ga, calendar := a.grid.(dates)
	gb, other := b.grid.(dates)
	if calendar && other && &ga[0] == &gb[0] {
		a.grid, b.grid = nil, nil
	} else if calendar || other {
		return false
	}
	a.mode, b.mode = enforce, enforce
	return a == b
}

// faster reports whether more tokens come back under r than under o in the same time.
func (r *rule) faster(o *rule) bool { return mul(r.add, o.unit).Cmp(mul(o.add, r.unit)) > 0 }

func mul(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

// exact returns a product that is known to fit.
func exact(a, b int64) int64 {
	p := mul(a, b)
	if !p.IsInt64() {
		panic("a product does not fit")
	}
	return p.Int64()
}

func ceilDiv(a, b int64) int64 { return floorDiv(a+b-1, b) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// scaleUp is n·a/b rounded up, and scaleDown rounded down; both at most maxInt.
func scaleUp(n, a, b int64) int64 {
	q, r := new(big.Int).DivMod(mul(n, a), big.NewInt(b), new(big.Int))
	if r.Sign() != 0 {
		q.Add(q, big.NewInt(1))
	}
	return atMost(q)
}

func scaleDown(n, a, b int64) int64 { return atMost(new(big.Int).Div(mul(n, a), big.NewInt(b))) }

func atMost(q *big.Int) int64 {
	if !q.IsInt64() || q.Int64() > maxInt {
		return maxInt
	}
	return q.Int64()
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// compile makes the rule of numbers. every is the length of a tick of the base, 0 to choose it.
func (s *settings) compile(n numbers, prefix, key string, every int64) *rule {
	r := &rule{mode: n.mode, burst: n.burst, maxCharge: n.charge}
	if s.algorithm == leakyBucket {
		r.burst, r.leaky = 1, true
	}
	if r.burst == absent {
		r.burst = n.rate
	}
	debt := n.debt
	if debt == absent {
		debt = r.burst
	}
	if r.maxCharge == absent {
		if r.maxCharge = 10 * r.burst; r.burst == 0 {
			r.maxCharge = 10
		}
	}
	switch s.algorithm {
	case slidingWindow:
		r.unit, r.burst, r.cap, r.sliding = 1, n.rate, n.rate, true
		r.maxCharge = 10 * n.rate
		r.grid = s.start.grid(prefix+s.name, key, n.per)
		return r
	case concurrency:
		r.unit, r.cap = 1, r.burst
		return r
	case fixedWindow, interval:
		r.unit, r.add = 1, n.rate
		r.grid = s.start.grid(prefix+s.name, key, n.per)
		r.maxUsed = s.start.most(n.rate, n.per)
	default:
		if every == 0 {
			every = s.everyOf(n, r.burst, debt, r.maxCharge)
		}
		ticks := n.per / every
		g := gcd(n.rate, ticks)
		r.unit, r.add = ticks/g, n.rate/g
		r.grid = even{every: every}
		r.maxUsed = scaleDown(maxInt/every, r.add, 1)
	}
	r.cap = exact(r.burst, r.unit)
	if debt == limitless {
		r.debt = r.maxUsed - r.cap
	} else {
		r.debt = exact(debt, r.unit)
	}
	return r
}

// everyOf is the finest tick of a bucket in which everything that may be used fits.
func (s *settings) everyOf(n numbers, burst, debt, charge int64) int64 {
	for _, every := range []int64{1, 1e3, 1e6, 60e6} {
		if n.per%every != 0 {
			break
		}
		ticks := n.per / every
		g := gcd(n.rate, ticks)
		most := mul(burst+max(debt, 0)+charge, ticks/g)
		full := new(big.Int).Mul(new(big.Int).Div(most, big.NewInt(n.rate/g)), big.NewInt(every))
		if most.IsInt64() && most.Int64() <= maxInt && full.IsInt64() && full.Int64() < maxInt {
			return every
		}
	}
	panic("limit " + s.name + " fits at no tick")
}

// phase is where the windows of a key begin if nothing else says so.
func phase(name, key string, per int64) int64 {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	sum := sha256.Sum256(append(append(b, name...), key...))
	return int64(binary.BigEndian.Uint64(append([]byte{0, 0}, sum[:6]...))) % per
}
