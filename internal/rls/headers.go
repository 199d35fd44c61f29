package rls

import (
	"cmp"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Headers are the header fields that the proxy adds to its response. An empty name means the
// one in its comment, which is envoyproxy/ratelimit's.
type Headers struct {
	Add       bool
	Limit     string // RateLimit-Limit
	Remaining string // RateLimit-Remaining
	Reset     string // RateLimit-Reset
}

// add adds the header fields of the limit that decided.
func (h *Headers) add(r *pb.RateLimitResponse) {
	if !h.Add {
		return
	}
	var st *pb.RateLimitResponse_DescriptorStatus // the tightest
	for _, o := range r.Statuses {
		if o.CurrentLimit != nil && (st == nil || o.Code > st.Code || o.Code == st.Code && o.LimitRemaining < st.LimitRemaining) {
			st = o
		}
	}
	if st == nil {
		return
	}
	reset := ceil(st.GetDurationUntilReset().AsDuration()) / time.Second
	r.ResponseHeadersToAdd = []*core.HeaderValue{
		{Key: cmp.Or(h.Limit, "RateLimit-Limit"), Value: strconv.FormatUint(uint64(st.CurrentLimit.RequestsPerUnit), 10)},
		{Key: cmp.Or(h.Remaining, "RateLimit-Remaining"), Value: strconv.FormatUint(uint64(st.LimitRemaining), 10)},
		{Key: cmp.Or(h.Reset, "RateLimit-Reset"), Value: strconv.FormatInt(int64(reset), 10)},
	}
}
