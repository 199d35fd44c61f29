package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

const (
	dropAfter     = 2 * time.Second  // time for which a file must be unchanged before limits removed from it are dropped
	driftEvery    = time.Second      // interval of drift checks
	defineTimeout = 10 * time.Second // timeout of defining or dropping a limit
	maxListed     = 20               // most limits that a log line names
)

// declared has the limits of flags and file, and those that its file has defined in the store.
type declared struct {
	ctx        context.Context
	limiter    *dipwell.Limiter
	info, warn func(format string, args ...any)
	path       string // path of the file; "" without one

	mu     sync.Mutex
	began  bool
	file   terms.FileOwner // the file's owner as last read
	limits []declaredLimit
	named  map[string]string // limits that this process's file defined, with the text of the owner
	gone   *time.Timer       // drops limits removed from the file; nil if there are none
	told   string            // the drift that was last logged
	seen   string            // the drift at the previous check
}

type declaredLimit struct {
	dipwell.Limit
	owner string
	line  int // line in the file; 0 for a limit of the flags
}

// declare does nothing if the file is the one last read, even if the store has changed.
func (d *declared) declare(set *settings) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	file := fileOwner(&set.File)
	if d.began && file == d.file {
		return nil
	}
	if set.Limits == nil && len(d.named) > 0 {
		return fmt.Errorf("%s: limits: is missing, and the file named %s before; write limits: [] to drop them all", d.path, howMany(len(d.named), "limit"))
	}
	limits := set.declared(file)
	old := d.newerRevision(file)
	if old == 0 {
		if err := d.define(file, limits); err != nil {
			return err
		}
	} else {
		d.warn("%s is revision %d of owner %s, but the store has seen revision %d: its limits are not defined", d.path, file.Revision, file.Name, old)
	}
	d.file, d.limits, d.began = file, limits, true
	if old == 0 {
		d.scheduleDrop()
	}
	return nil
}

// has reports whether the file of settings has not changed since it was put in force.
func (d *declared) has(set *settings) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.began && fileOwner(&set.File) == d.file
}

func fileOwner(f *config.File) terms.FileOwner {
	return terms.FileOwner{Name: cmp.Or(f.Owner, terms.OwnerMain), Revision: f.Revision, Digest: f.Digest}
}

func (s *settings) declared(file terms.FileOwner) []declaredLimit {
	out := make([]declaredLimit, 0, len(s.FlagLimits)+len(s.Limits))
	for _, l := range s.FlagLimits {
		out = append(out, declaredLimit{l, store.OwnerCode, 0})
	}
	owner := file.String()
	for i, l := range s.Limits {
		out = append(out, declaredLimit{l, owner, s.Lines[i]})
	}
	return out
}

// newerRevision returns the owner's highest revision in the store if it is above the file's, or 0.
func (d *declared) newerRevision(file terms.FileOwner) (seen int64) {
	for _, def := range d.limiter.Limits() {
		if f, ok := terms.ParseFileOwner(def.Owner); ok && f.Name == file.Name && f.Revision > file.Revision {
			seen = max(seen, f.Revision)
		}
	}
	return seen
}

// define defines all limits. It checks all owners first, so that a conflict changes nothing.
func (d *declared) define(file terms.FileOwner, limits []declaredLimit) error {
	var others []string
	for _, l := range limits {
		def := d.limiter.Limit(l.Name)
		if def == nil {
			continue
		}
		f, fromFile := terms.ParseFileOwner(def.Owner)
		if fromFile && f.Name != file.Name && def.Owner != terms.OwnerFile {
			return d.inFile(&l, &terms.OwnerError{Limit: l.Name, Owner: def.Owner})
		}
		if fromFile && f.Digest != "" && f.Digest != file.Digest && f.Digest != d.file.Digest && def.Differs(l.Limit) != nil {
			others = append(others, l.Name)
		}
	}
	ordered := store.ParentsFirst(limits, func(l *declaredLimit) *store.Limit { return &l.Limit })
	// New and changed limits come first. The owner does not tell which: it has the digest of
	// the file, so it differs for all its limits.
	stored := map[string]int{} // 1 if the store has the limit already, perhaps with another owner
	for _, l := range ordered {
		if old := d.limiter.Limit(l.Name); old != nil && old.Limit == l.Limit {
			stored[l.Name] = 1
		}
	}
	ordered = slices.SortedStableFunc(slices.Values(ordered), func(a, b declaredLimit) int { return stored[a.Name] - stored[b.Name] }) // a copy: ordered may be limits
	local := store.AbilitiesOf(d.limiter.Store()).InProcess
	for i := range ordered {
		if err := d.defineOne(&ordered[i], local); err != nil {
			return d.inFile(&ordered[i], err)
		}
	}
	if len(others) > 0 {
		d.warn("%s replaces limits that another file of owner %s had defined: %s", d.path, file.Name, names(others, ", "))
	}
	return nil
}

// inFile adds the line of the file that has a refused limit. An unchanged file may be refused
// because of an override, which the file does not show.
func (d *declared) inFile(l *declaredLimit, err error) error {
	if l.line == 0 {
		return err
	}
	return fmt.Errorf("%s:%d: %w", d.path, l.line, err)
}

// defineOne needs no timeout if the store is local, in this process.
func (d *declared) defineOne(l *declaredLimit, local bool) error {
	old := d.limiter.Limit(l.Name)
	if old == nil || old.Limit != l.Limit || old.Owner != l.owner {
		ctx := d.ctx
		if !local {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(d.ctx, defineTimeout)
			defer cancel()
		}
		def, err := d.limiter.Define(ctx, l.Limit, l.owner)
		if err != nil {
			return err
		}
		if def.Warning != "" && (old == nil || old.Warning != def.Warning) {
			d.warn("%s", def.Warning)
		}
	}
	if l.owner != store.OwnerCode {
		if d.named == nil {
			d.named = map[string]string{}
		}
		d.named[l.Name] = l.owner
	}
	return nil
}

// orphans returns the limits that files of an owner have defined and that are not
// among limits. They are not dropped, because another service's file may name them.
func orphans(limiter *dipwell.Limiter, file string, limits []declaredLimit) (left []string) {
	named := map[string]bool{}
	for i := range limits {
		named[limits[i].Name] = true
	}
	for _, def := range limiter.Limits() {
		if f, ok := terms.ParseFileOwner(def.Owner); ok && f.Name == file && !named[def.Name] {
			left = append(left, def.Name)
		}
	}
	return left
}

// postponeDrop restarts the wait, after a change of the file that could not be used.
func (d *declared) postponeDrop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone != nil {
		d.gone.Reset(dropAfter)
	}
}

// scheduleDrop begins or ends the wait before limits that left the file are dropped.
func (d *declared) scheduleDrop() {
	if d.gone != nil {
		d.gone.Stop()
		d.gone = nil
	}
	if len(d.removed()) > 0 {
		d.gone = time.AfterFunc(dropAfter, d.dropRemoved)
	}
}

// removed returns the limits that this process's file defined and no longer names, parents last.
func (d *declared) removed() []string {
	left := maps.Clone(d.named)
	for _, l := range d.limits {
		delete(left, l.Name)
	}
	out := slices.Sorted(maps.Keys(left))
	out = store.ParentsFirst(out, func(name *string) *store.Limit {
		if def := d.limiter.Limit(*name); def != nil {
			return &def.Limit
		}
		return &store.Limit{Name: *name}
	})
	slices.Reverse(out)
	return out
}

// dropRemoved drops the limits that left the file, if it is unchanged since it was read.
func (d *declared) dropRemoved() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone == nil || d.ctx.Err() != nil {
		return
	}
	if now, err := config.DigestOf(d.path); err != nil || now != d.file.Digest {
		d.gone.Reset(dropAfter)
		return
	}
	for _, name := range d.removed() {
		if err := d.dropOne(name); err != nil {
			d.warn("limit %s was removed from %s but is not dropped yet: %v", name, d.path, err)
			d.gone.Reset(dropAfter)
			return
		}
	}
	d.gone = nil
}

// dropOne drops a limit, unless somebody else has defined it since.
func (d *declared) dropOne(name string) error {
	owner := d.named[name]
	switch def := d.limiter.Limit(name); {
	case def == nil:
	case def.Owner != owner:
		d.warn("limit %s was removed from %s but stays, because %s has defined it since", name, d.path, whose(def.Owner))
	default:
		ctx, cancel := context.WithTimeout(d.ctx, defineTimeout)
		defer cancel()
		if err := d.limiter.Drop(ctx, name, owner); err != nil && !errors.Is(err, dipwell.ErrUnknownLimit) {
			return err
		}
		d.info("limit %s is dropped: it left %s", name, d.path)
	}
	delete(d.named, name)
	return nil
}

func whose(by string) string {
	if f, ok := terms.ParseFileOwner(by); ok {
		return "another file of owner " + f.Name
	}
	return "owner " + by
}

func drift(limiter *dipwell.Limiter, limits []declaredLimit) (out []string) {
	for i := range limits {
		l := &limits[i]
		def := limiter.Limit(l.Name)
		switch {
		case def == nil:
			out = append(out, "limit "+l.Name+" is not in the store")
		case terms.OwnerName(def.Owner) != terms.OwnerName(l.owner):
			out = append(out, (&terms.OwnerError{Limit: l.Name, Owner: def.Owner}).Error())
		default:
			if err := def.Differs(l.Limit); err != nil {
				out = append(out, err.Error())
			}
		}
	}
	return out
}

func (d *declared) drifted() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return float64(len(drift(d.limiter, d.limits)))
}

// watchDrift logs when drift begins and ends, until ctx ends.
func (d *declared) watchDrift() {
	for background.Sleep(d.ctx, driftEvery) == nil {
		d.logDrift()
	}
}

// logDrift logs a drift that two checks in a row have found. While several services
// read the same new file there may be a drift for a moment.
func (d *declared) logDrift() {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := drift(d.limiter, d.limits)
	if c, ok := store.AbilitiesOf(d.limiter.Store()).Limits.(interface{ Waiting(name string) error }); ok && len(list) > 0 {
		waits := func(l declaredLimit) bool { return c.Waiting(l.Name) != nil } // it will be stored once another transaction no longer locks it
		list = drift(d.limiter, slices.DeleteFunc(slices.Clone(d.limits), waits))
	}
	now := strings.Join(list, "\n")
	persists := now == d.seen
	d.seen = now
	if !persists || now == d.told {
		return
	}
	if d.told = now; now == "" {
		d.info("drift has ended: the limits in the store are those of this service again")
		return
	}
	d.warn("warning: drift: the store differs in %s from this service's settings: %s; %s", howMany(len(list), "limit"), names(list, "; "), d.remedy("a restart"))
}

// remedy says how limits of the file that are not in force come into force.
func (d *declared) remedy(restart string) string {
	if seen := d.newerRevision(d.file); seen > 0 {
		return fmt.Sprintf("only a file of owner %s with a revision of at least %d puts them in force, and this one has %d", d.file.Name, seen, d.file.Revision)
	}
	return "a change of the file or " + restart + " puts them in force"
}

// names joins names or sentences, at most maxListed of them.
func names(list []string, sep string) string {
	if more := len(list) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxListed], sep), more)
	}
	return strings.Join(list, sep)
}
