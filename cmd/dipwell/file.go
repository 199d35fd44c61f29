package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/internal/server"
)

// dataFile is the file that --data keeps in its directory.
const dataFile = "dipwell.db"

// file is a store in a file. Limits with on_store_error: local are its own
// business: what it last knew is in its memory.
type file struct{ *filestore.Store }

// Itself is the store that Quick is about: nothing was put around it.
func (f *file) Itself() dipwell.Store { return f }

// openFile opens a store for a service, or for a client while no service has it.
func openFile(_ context.Context, url string, o storeOptions) (dipwell.Store, error) {
	path, every, err := filestore.ParseURL(url)
	if err != nil {
		return nil, err
	}
	if o.once {
		every = filestore.Each // the answer is printed once it is kept
	}
	s, err := filestore.Open(path, filestore.Config{Every: every, MaxKeys: o.maxKeys, OnError: o.report})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return &file{s}, nil
}

// makeData makes the directory of a store where it is missing.
func makeData(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

// dataURL is the URL of the store in a directory.
func dataURL(dir string) (string, error) {
	if strings.ContainsRune(dir, '?') {
		return "", fmt.Errorf("data: %q: a directory with a question mark cannot be used", dir)
	}
	return "file:" + filepath.Join(dir, dataFile), nil
}

func (f *file) gauges(s *server.Server) {
	gauge := func(name, help string, of func(filestore.Stats) float64) {
		s.Gauge(name, help, func() float64 { return of(f.Stats()) })
	}
	counter := func(name, help string, of func(filestore.Stats) float64) {
		s.Counter(name, help, func() float64 { return of(f.Stats()) })
	}
	gauge("dipwell_keys", "Keys that the store holds.", func(st filestore.Stats) float64 { return float64(st.Keys) })
	gauge("dipwell_reservations", "Reservations that the store holds.", func(st filestore.Stats) float64 { return float64(st.Reservations) })
	gauge("dipwell_store_bytes", "Memory that keys take.", func(st filestore.Stats) float64 { return float64(st.Bytes) })
	gauge("dipwell_file_dirty_keys", "Keys that changed and are not on the disk.", func(st filestore.Stats) float64 { return float64(st.Dirty) })
	gauge("dipwell_file_window_seconds", "How long the oldest decision of the last group written was in memory alone.",
		func(st filestore.Stats) float64 { return st.Window.Seconds() })
	gauge("dipwell_file_widest_window_seconds", "The longest that a decision was in memory alone.", func(st filestore.Stats) float64 { return st.Widest.Seconds() })
	gauge("dipwell_file_last_write_timestamp_seconds", "When a group was written last; 0: none was.", func(st filestore.Stats) float64 {
		if st.Last.IsZero() {
			return 0
		}
		return float64(st.Last.UnixMicro()) / 1e6
	})
	counter("dipwell_file_groups_total", "Groups of rows written.", func(st filestore.Stats) float64 { return float64(st.Turns) })
	counter("dipwell_file_rows_total", "Rows written.", func(st filestore.Stats) float64 { return float64(st.Rows) })
	counter("dipwell_file_late_groups_total", "Groups written later than the durability says, because the disk could not keep up.",
		func(st filestore.Stats) float64 { return float64(st.Late) })
	counter("dipwell_file_write_errors_total", "Groups that could not be written, each try counted.", func(st filestore.Stats) float64 { return float64(st.Failures) })
}
