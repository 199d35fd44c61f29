package replay

import (
	"errors"
	"io"
)

// writePlot returns an error: a browser gets no fonts to draw with.
func (r *Report) writePlot(io.Writer, string) error {
	return errors.New("replay: plots are not drawn in a browser")
}
