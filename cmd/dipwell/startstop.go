package main

import (
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/server"
)

func (s *service) logStart(set *settings) {
	list := set.names()
	attrs := []any{"version", version(), "store", redact(set.Store), "limits", len(list), "limit_names", list[:min(len(list), maxListed)]}
	if s.cmd.Config != "" {
		attrs = append(attrs, "config", s.cmd.Config)
	}
	s.slog().Info("starting", attrs...)
}

func (s *service) logListening(what, at, page string) {
	if s.json != nil {
		args := []any{"address", at}
		if page != "" {
			args = append(args, "page", page)
		}
		jsonLog(s.env.stdout).Info(what, args...)
		return
	}
	if page != "" {
		page = " (page: " + page + ")"
	}
	fmt.Fprintf(s.env.stdout, "dipwell: %s on %s%s\n", what, at, page)
}

func (s *service) serveAndDrain(listeners []server.Listener) error {
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = s.serve(listeners)
	}()
	select {
	case <-ended:
	case <-s.env.ctx.Done():
	}
	if s.env.ctx.Err() != nil { // also if the server has ended by now
		start := time.Now()
		s.slog().Info("stopping")
		<-ended
		s.slog().Info("stopped", "took", time.Since(start))
	}
	return err
}
