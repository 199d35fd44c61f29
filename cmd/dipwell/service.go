package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/tracing"
)

type service struct {
	env     *env
	cmd     *ServeCmd
	limiter *dipwell.Limiter
	server  *server.Server
	proxy   *server.Proxy // nil without --upstream
	rls     *rls.Service  // nil without --grpc and --rls-config
	tls     *server.TLS   // nil for plain text
	tracer  *tracing.Tracer
	started *settings // settings at the start, kept for those that change only by a restart
	last    *settings // settings that were last put in force
	*logger

	changing sync.Mutex // held while settings are read and applied, so that the newest win

	reloadFailed      atomic.Bool
	descriptorsFailed atomic.Bool
	declared          *declared
}

// After an error the old configuration stays in force.
func (s *service) reload() {
	s.changing.Lock()
	defer s.changing.Unlock()
	set, err := s.cmd.settings()
	if err == nil && len(s.last.Callers) > 0 && set.Callers == nil { // the file may have been cut off while it was written
		err = errors.New("callers: are missing; callers: [] says that anybody may call")
	}
	unchanged := ""
	if err == nil {
		if s.declared.has(set) {
			unchanged = ", unchanged"
		}
		err = s.apply(set)
	}
	s.reloadFailed.Store(err != nil)
	if err != nil {
		if s.declared.postponeDrop(); s.cmd.Config != "" && !strings.Contains(err.Error(), s.cmd.Config) {
			err = inFile(s.cmd.Config, err) // the error may be about the file or one that it names
		}
		s.reloadError("the last good configuration stays in force", err)
		return
	}
	s.info("configuration read again: %s%s", howMany(len(set.names()), "limit"), unchanged)
	s.last = set
	restart := config.Restart(&s.started.File, &set.File)
	if !bytes.Equal(set.keySecret, s.started.keySecret) && !slices.Contains(restart, "key_secret_file") {
		restart = append(restart, "key_secret_file")
	}
	if len(restart) > 0 {
		s.info("changed, and in force only with a restart: %s", strings.Join(restart, ", "))
	}
}

// The limits of set have been checked already, so only the store can fail.
func (s *service) apply(set *settings) error {
	if s.proxy != nil { // also if the settings no longer name an upstream, since that needs a restart
		if err := set.checkProxied(); err != nil {
			return err
		}
	}
	unchanged := s.declared.has(set)
	if err := s.declared.declare(set); err != nil {
		return err
	}
	c := set.server()
	c.Shadow = s.started.Shadow // a change needs a restart, as for the store
	s.server.Set(c)
	for _, warning := range set.unknownLimits(func(limit string) bool { return s.limiter.Limit(limit) != nil }) {
		s.warn("warning: %s", warning)
	}
	if s.proxy == nil {
		return nil
	}
	if len(set.names()) == 0 {
		s.warn("warning: there is no limit: every request is passed on to %s", redact(set.Upstream))
	}
	err := s.proxy.Use(set.names())
	if unchanged && errors.Is(err, dipwell.ErrUnknownLimit) {
		return nil // limits that differ are drift, which is logged; an unchanged file defines nothing
	}
	return err
}
