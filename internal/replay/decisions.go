package replay

import (
	"bufio"
	"io"
	"strconv"

	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// decisionWriter writes each decision as a line of JSON.
type decisionWriter struct {
	out *bufio.Writer
	buf []byte
}

// newDecisionWriter returns nil if nobody wants the decisions.
func newDecisionWriter(w io.Writer) *decisionWriter {
	if w == nil {
		return nil
	}
	return &decisionWriter{out: bufio.NewWriterSize(w, 256<<10)}
}

func (w *decisionWriter) write(rec *record, op *store.Op, allowed bool) error {
	if w == nil {
		return nil
	}
	b := strconv.AppendInt(append(w.buf[:0], `{"line":`...), rec.line, 10)
	b = strconv.AppendInt(append(b, `,"t_us":`...), rec.t, 10)
	b = texts.AppendJSON(append(b, `,"limit":`...), op.Def.Name)
	b = append(b, `,"key":`...)
	if op.Key == "" {
		b = append(b, "null"...)
	} else {
		b = texts.AppendJSON(b, op.Key)
	}
	if op.Def.Plan != "" {
		b = texts.AppendJSON(append(b, `,"plan":`...), op.Def.Plan)
	}
	b = strconv.AppendBool(append(b, `,"allowed":`...), allowed)
	b = strconv.AppendInt(append(b, `,"remaining":`...), op.Remaining, 10)
	b = append(b, `,"retry_after_us":`...)
	if op.Never || allowed && !op.Shadow {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendInt(b, op.Retry, 10)
	}
	b = append(b, '}', '\n')
	w.buf = b
	_, err := w.out.Write(b)
	return err
}

func (w *decisionWriter) flush() error {
	if w == nil {
		return nil
	}
	return w.out.Flush()
}
