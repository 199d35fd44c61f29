package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
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

	mu        sync.Mutex
	unsettled *settings     // limits that the store has yet to be told; nil when it has them all
	fromFile  []string      // limits that this process's file named last
	again     chan struct{} // has one when unsettled was set
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
// what can still fail is the store. One that is away is told later.
func (s *service) use(set *settings) error {
	if s.proxy != nil && len(set.names()) > dipwell.MaxTakes {
		return fmt.Errorf("upstream: %d limits; a request can be held to at most %d", len(set.names()), dipwell.MaxTakes)
	}
	if err := s.settle(set); err != nil {
		return err
	}
	s.server.Set(set.server())
	if s.proxy != nil {
		return s.proxy.Use(set.names())
	}
	return nil
}

// settle tells the store the limits, or leaves it to keepTelling while the
// store is away.
func (s *service) settle(set *settings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.define(set)
	if !away(err) {
		return err
	}
	s.error(fmt.Errorf("%w; until it can, limits answer by their on_store_error", err))
	s.provide(set)
	s.unsettled = set
	select {
	case s.again <- struct{}{}:
	default:
	}
	return nil
}

// away reports whether an error goes away when the store comes back. A schema
// that is missing or of another version does not by itself.
func away(err error) bool {
	var schema *pgstore.SchemaError
	return errors.Is(err, dipwell.ErrStore) && !errors.As(err, &schema)
}

// provide makes limits known here only, so that calls of them are answered by
// their failure mode. What the store has takes their place when it answers.
func (s *service) provide(set *settings) {
	store, ok := dipwell.As[dipwell.Definer](s.limiter.Store())
	if !ok {
		return
	}
	for owner, limits := range map[string][]dipwell.Limit{dipwell.OwnerCode: set.flagLimits, dipwell.OwnerFile: set.Limits} {
		for _, l := range limits {
			if store.Registry().Lookup(l.Name) == nil {
				_, _ = store.Registry().Define(time.Now().UnixMicro(), l, owner) // it compiles, and nobody has it
			}
		}
	}
}

// defineTimeout bounds how long the store may take to learn one limit.
const defineTimeout = 10 * time.Second

// Bounds of the pause between two tries to tell a store that is away.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// keepTelling tells the store what it does not know yet, until it does.
func (s *service) keepTelling() {
	for pause := firstPause; ; {
		select {
		case <-s.env.ctx.Done():
			return
		case <-s.again:
			pause = firstPause
		}
		for s.tellAfter(pause) {
			pause = min(2*pause, maxPause)
		}
	}
}

// tellAfter pauses and tries, and reports whether it must be tried again.
func (s *service) tellAfter(pause time.Duration) bool {
	select {
	case <-s.env.ctx.Done():
		return false
	case <-time.After(pause):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsettled == nil {
		return false
	}
	if err := s.define(s.unsettled); err != nil {
		s.error(err)
		return true
	}
	s.say("the store answers; %d limits defined", len(s.unsettled.names()))
	s.unsettled = nil
	return false
}

// settled is a condition of /readyz.
func (s *service) settled(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unsettled != nil {
		return fmt.Errorf("%w: it has not been told the limits yet", dipwell.ErrStore)
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
			if err := s.limiter.Drop(s.env.ctx, name, dipwell.OwnerFile); err != nil {
				return err
			}
		}
	}
	s.fromFile = names
	return nil
}

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
