package main

import (
	"fmt"
	"slices"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/server"
)

// service is what serve runs, and what a new configuration changes.
type service struct {
	env     *env
	cmd     *ServeCmd
	limiter *dipwell.Limiter
	server  *server.Server
	proxy   *server.Proxy // nil without --upstream
	started *settings     // some of them count only at the start
}

// reload reads the configuration again. A bad one changes nothing.
func (s *service) reload() {
	set, err := s.cmd.settings()
	if err == nil {
		err = s.use(set)
	}
	if err != nil {
		s.say("%v\ndipwell: the last good configuration stays in force", err)
		return
	}
	s.say("configuration read again: %d limits", len(set.flagLimits)+len(set.Limits))
	if set.Store != s.started.Store || set.Listen != s.started.Listen || set.Admin != s.started.Admin ||
		set.Upstream != s.started.Upstream || set.By != s.started.By || set.MaxKeys != s.started.MaxKeys {
		s.say("store, listen, admin, upstream, by and max_keys change only with a restart")
	}
}

func (s *service) say(format string, args ...any) {
	fmt.Fprintf(s.env.stderr, "dipwell: "+format+"\n", args...)
}

// use puts settings in force: all limits compile, because they were read, so
// what can still fail is the store.
func (s *service) use(set *settings) error {
	if s.proxy != nil && len(set.names()) > dipwell.MaxTakes {
		return fmt.Errorf("upstream: %d limits; a request can be held to at most %d", len(set.names()), dipwell.MaxTakes)
	}
	if err := s.define(set); err != nil {
		return err
	}
	s.server.Set(set.server())
	if s.proxy != nil {
		return s.proxy.Use(set.names())
	}
	return nil
}

func (s *service) define(set *settings) error {
	for _, l := range set.flagLimits {
		if err := s.defineOne(l, dipwell.OwnerCode); err != nil {
			return err
		}
	}
	for _, l := range set.Limits {
		if err := s.defineOne(l, dipwell.OwnerFile); err != nil {
			return err
		}
	}
	for _, def := range s.limiter.Limits() { // what the file no longer names
		if def.Owner == dipwell.OwnerFile && !slices.Contains(set.names(), def.Name) {
			if err := s.limiter.Drop(s.env.ctx, def.Name, dipwell.OwnerFile); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *service) defineOne(l dipwell.Limit, owner string) error {
	old := s.limiter.Limit(l.Name)
	def, err := s.limiter.Define(s.env.ctx, l, owner)
	if err == nil && def.Warning != "" && (old == nil || old.Warning != def.Warning) {
		s.say("%s", def.Warning)
	}
	return err
}
