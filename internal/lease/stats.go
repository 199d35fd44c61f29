package lease

import "github.com/dipwell/dipwell/store"

func (s *Store) metrics() []store.Metric {
	var held, tokens float64
	s.table.each(func(k *key) {
		if c := k.now.Load(); c != nil {
			held++
			tokens += float64(c.left())
		}
	})
	return []store.Metric{
		{Name: "dipwell_leases", Help: "Keys of which this process holds tokens.", Value: held},
		{Name: "dipwell_lease_tokens", Help: "Tokens that this process holds.", Value: tokens},
		{Name: "dipwell_lease_requests_total", Help: "Requests for tokens in advance.", Counter: true, Value: float64(s.requests.Load())},
		{Name: "dipwell_lease_tokens_asked_total", Help: "Tokens asked for in advance.", Counter: true, Value: float64(s.asked.Load())},
		{Name: "dipwell_lease_tokens_taken_total", Help: "Tokens taken in advance.", Counter: true, Value: float64(s.taken.Load())},
		{Name: "dipwell_lease_tokens_returned_total", Help: "Unused tokens given back.", Counter: true, Value: float64(s.returned.Load())},
		{Name: "dipwell_lease_tokens_lost_total", Help: "Unused tokens that were not given back, and tokens of requests without an answer.", Counter: true, Value: float64(s.lost.Load())},
	}
}
