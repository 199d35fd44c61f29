package main

import (
	"context"
	"fmt"
	"slices"
	"time"

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
	*complaints

	fromFile []string // limits that this process's file named last
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
	if set.Store != s.started.Store || set.DenyMaxAge != s.started.DenyMaxAge || set.Listen != s.started.Listen || set.Admin != s.started.Admin ||
		set.Upstream != s.started.Upstream || set.By != s.started.By || set.MaxKeys != s.started.MaxKeys {
		s.say("store, listen, admin, upstream, by, max_keys and deny_max_age change only with a restart")
	}
}

// use puts settings in force: all limits compile, because they were read, so
// what can still fail is the store. One that is away learns of new limits later.
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

// define tells the store all limits, and ends those that this process's file
// no longer names. Other programs' files may name others: they stay.
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
	names := set.names()
	for _, name := range s.fromFile {
		if def := s.limiter.Limit(name); def != nil && def.Owner == dipwell.OwnerFile && !slices.Contains(names, name) {
			if err := s.drop(name); err != nil {
				return err
			}
		}
	}
	s.fromFile = names
	return nil
}

func (s *service) drop(name string) error {
	ctx, cancel := context.WithTimeout(s.env.ctx, defineTimeout)
	defer cancel()
	return s.limiter.Drop(ctx, name, dipwell.OwnerFile)
}

// defineTimeout bounds how long the store may take to learn of one limit.
const defineTimeout = 10 * time.Second

func (s *service) defineOne(l dipwell.Limit, owner string) error {
	ctx, cancel := context.WithTimeout(s.env.ctx, defineTimeout)
	defer cancel()
	old := s.limiter.Limit(l.Name)
	def, err := s.limiter.Define(ctx, l, owner)
	if err == nil && def.Warning != "" && (old == nil || old.Warning != def.Warning) {
		s.say("%s", def.Warning)
	}
	return err
}
