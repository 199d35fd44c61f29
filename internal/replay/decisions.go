package replay

import "github.com/dipwell/dipwell/store"

// decision is a line of Options.Decisions.
type decision struct {
	Line      int64   `json:"line"`
	T         int64   `json:"t_us"`
	Limit     string  `json:"limit"`
	Key       *string `json:"key"` // nil for the limit's shared bucket
	Plan      string  `json:"plan,omitempty"`
	Allowed   bool    `json:"allowed"`
	Remaining int64   `json:"remaining"`
	Retry     *int64  `json:"retry_after_us"`
}

func (e *engine) write(rec *record, op *store.Op, allowed bool) error {
	if e.out == nil {
		return nil
	}
	d := decision{Line: rec.Line, T: rec.T, Limit: op.Def.Name, Plan: op.Def.Plan, Allowed: allowed, Remaining: op.Remaining}
	if op.Key != "" {
		d.Key = &op.Key
	}
	if !op.Never && (!allowed || op.Shadow) {
		d.Retry = &op.Retry
	}
	return e.out.Encode(&d)
}
