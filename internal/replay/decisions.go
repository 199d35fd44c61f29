package replay

import (
	"bufio"
	"encoding/json"
	"io"

	"github.com/dipwell/dipwell/store"
)

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

// decisionWriter writes each decision as a line of JSON.
type decisionWriter struct {
	out *bufio.Writer
	enc *json.Encoder
}

// newDecisionWriter returns nil if Options.Decisions is nil.
func newDecisionWriter(w io.Writer) *decisionWriter {
	if w == nil {
		return nil
	}
	out := bufio.NewWriterSize(w, 256<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return &decisionWriter{out, enc}
}

func (w *decisionWriter) write(rec *record, op *store.Op, allowed bool) error {
	if w == nil {
		return nil
	}
	d := decision{Line: rec.Line, T: rec.T, Limit: op.Def.Name, Plan: op.Def.Plan, Allowed: allowed, Remaining: op.Remaining}
	if op.Key != "" {
		d.Key = &op.Key
	}
	if !op.Never && (!allowed || op.Shadow) {
		d.Retry = &op.Retry
	}
	return w.enc.Encode(&d)
}

func (w *decisionWriter) flush() error {
	if w == nil {
		return nil
	}
	return w.out.Flush()
}
