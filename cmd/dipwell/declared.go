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
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/owner"
	"github.com/dipwell/dipwell/store"
)

const (
	dropAfter     = 2 * time.Second  // how long a file must stand unchanged before the limits that left it are dropped
	driftEvery    = time.Second      // between looks at whether the store differs from the file
	defineTimeout = 10 * time.Second // the longest the store may take to learn of one limit
	maxListed     = 20               // limits that one line of the log names
)

// declared are the limits that this process's flags and file name, and those of
// them that its file has defined in the store.
type declared struct {
	ctx        context.Context
	limiter    *dipwell.Limiter
	info, warn func(format string, args ...any)
	path       string // of the file; "" without one

	mu     sync.Mutex
	began  bool
	file   owner.FileState // as it was read last
	limits []declaredLimit
	named  map[string]string // limits that this process's file defined, and by which text of the owner
	gone   *time.Timer       // drops those that left the file; nil: none did
	told   string            // the drift that was logged last
	seen   string            // the drift of the look before
}

type declaredLimit struct {
	dipwell.Limit
	owner string
}

// declare puts the limits of settings in force. A file that was read before and
// has not changed defines nothing, whoever changed the store meanwhile.
func (d *declared) declare(set *settings) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	file := fileOwner(&set.File)
	if d.began && file == d.file {
		return nil
	}
	if set.Limits == nil && len(d.named) > 0 {
		return fmt.Errorf("%s: limits: is missing, and the file named %s before; limits: [] says that none are meant", d.path, howMany(len(d.named), "limit"))
	}
	limits := set.declared(file)
	old := d.older(file)
	if old == 0 {
		if err := d.define(file, limits); err != nil {
			return err
		}
	} else {
		d.warn("%s is revision %d of owner %s, and the store has seen revision %d: it defines nothing", d.path, file.Revision, file.Name, old)
	}
	d.file, d.limits, d.began = file, limits, true
	if old == 0 {
		d.leave()
	}
	return nil
}

// has reports whether the file of settings is the one in force.
func (d *declared) has(set *settings) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.began && fileOwner(&set.File) == d.file
}

func fileOwner(f *config.File) owner.FileState {
	return owner.FileState{Name: cmp.Or(f.Owner, owner.Main), Revision: f.Revision, Digest: f.Digest}
}

// declared are the limits of the flags and of the file, with their owners.
func (s *settings) declared(file owner.FileState) (out []declaredLimit) {
	for _, l := range s.FlagLimits {
		out = append(out, declaredLimit{l, store.OwnerCode})
	}
	for _, l := range s.Limits {
		out = append(out, declaredLimit{l, file.String()})
	}
	return out
}

// older returns the revision that the store has seen of the file's owner, if it
// is higher than the file's, else 0.
func (d *declared) older(file owner.FileState) (seen int64) {
	for _, def := range d.limiter.Limits() {
		if f, ok := owner.ParseFile(def.Owner); ok && f.Name == file.Name && f.Revision > file.Revision {
			seen = max(seen, f.Revision)
		}
	}
	return seen
}

// define tells the store all limits. Owners are compared first, so that a
// conflict changes nothing.
func (d *declared) define(file owner.FileState, limits []declaredLimit) error {
	var others []string
	for _, l := range limits {
		def := d.limiter.Limit(l.Name)
		if def == nil {
			continue
		}
		f, fromFile := owner.ParseFile(def.Owner)
		if fromFile && f.Name != file.Name && def.Owner != owner.File {
			return &owner.Error{Limit: l.Name, Owner: def.Owner}
		}
		if fromFile && f.Digest != "" && f.Digest != file.Digest && f.Digest != d.file.Digest && def.Differs(l.Limit) != nil {
			others = append(others, l.Name)
		}
	}
	for _, l := range limits {
		if err := d.defineOne(l); err != nil {
			return err
		}
	}
	if len(others) > 0 {
		d.warn("%s replaces what another file of owner %s had defined: %s", d.path, file.Name, names(others))
	}
	return nil
}

func (d *declared) defineOne(l declaredLimit) error {
	old := d.limiter.Limit(l.Name)
	if old == nil || old.Limit != l.Limit || old.Owner != l.owner {
		ctx, cancel := context.WithTimeout(d.ctx, defineTimeout)
		defer cancel()
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

// logOrphans names, at the start, limits that a file of the same owner made and
// this one does not name. Another service's file may name them, so that they
// stay in force: who took one out of the file while no service ran must end it.
func (d *declared) logOrphans() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if left := orphans(d.limiter, d.file.Name, d.limits); len(left) > 0 {
		d.warn("limits in the store that a configuration file made and this one does not name stay in force: %s; "+
			"to end one that no other service's file names, name it in this file and take it out again while the service runs", names(left))
	}
}

// orphans are the limits that files of an owner made and that are not declared.
func orphans(limiter *dipwell.Limiter, file string, limits []declaredLimit) (left []string) {
	for _, def := range limiter.Limits() {
		if f, ok := owner.ParseFile(def.Owner); ok && f.Name == file && !slices.ContainsFunc(limits, func(l declaredLimit) bool { return l.Name == def.Name }) {
			left = append(left, def.Name)
		}
	}
	return left
}

// postponeDrop notes that the file has changed in a way that could not be used:
// limits that left it wait for the file to stand unchanged again.
func (d *declared) postponeDrop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone != nil {
		d.gone.Reset(dropAfter)
	}
}

// leave starts the wait of the limits that left the file, or ends it.
func (d *declared) leave() {
	if d.gone != nil {
		d.gone.Stop()
		d.gone = nil
	}
	if len(d.left()) > 0 {
		d.gone = time.AfterFunc(dropAfter, d.dropLeft)
	}
}

// left are limits that this process's file defined and names no more.
func (d *declared) left() []string {
	left := maps.Clone(d.named)
	for _, l := range d.limits {
		delete(left, l.Name)
	}
	return slices.Sorted(maps.Keys(left))
}

// dropLeft drops the limits that left the file, if it still is what was read.
func (d *declared) dropLeft() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone == nil || d.ctx.Err() != nil {
		return
	}
	if now, err := config.DigestOf(d.path); err != nil || now != d.file.Digest {
		d.gone.Reset(dropAfter)
		return
	}
	for _, name := range d.left() {
		if err := d.dropOne(name); err != nil {
			d.warn("limit %s, which left %s, is not dropped yet: %v", name, d.path, err)
			d.gone.Reset(dropAfter)
			return
		}
	}
	d.gone = nil
}

// dropOne drops a limit that this process's file was the last to define.
func (d *declared) dropOne(name string) error {
	owner := d.named[name]
	switch def := d.limiter.Limit(name); {
	case def == nil:
	case def.Owner != owner:
		d.warn("limit %s left %s, and stays: %s has defined it since", name, d.path, whose(def.Owner))
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
	if f, ok := owner.ParseFile(by); ok {
		return "another file of owner " + f.Name
	}
	return "owner " + by
}

// drift lists in which limits the store differs from what is declared.
func drift(limiter *dipwell.Limiter, limits []declaredLimit) (out []string) {
	for _, l := range limits {
		def := limiter.Limit(l.Name)
		switch {
		case def == nil:
			out = append(out, "limit "+l.Name+" is not in the store")
		case owner.Name(def.Owner) != owner.Name(l.owner):
			out = append(out, (&owner.Error{Limit: l.Name, Owner: def.Owner}).Error())
		default:
			if err := def.Differs(l.Limit); err != nil {
				out = append(out, err.Error())
			}
		}
	}
	return out
}

// drifted is how many limits of the store differ from what is declared.
func (d *declared) drifted() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return float64(len(drift(d.limiter, d.limits)))
}

// watchDrift logs when the store begins and ceases to differ, until ctx ends.
func (d *declared) watchDrift() {
	tick := time.NewTicker(driftEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.logDrift()
		case <-d.ctx.Done():
			return
		}
	}
}

// logDrift logs a drift that two looks in a row have found: between the changes
// of two services that read the same new file there is one for a moment.
func (d *declared) logDrift() {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := drift(d.limiter, d.limits)
	now := strings.Join(list, "\n")
	lasts := now == d.seen
	d.seen = now
	if !lasts || now == d.told {
		return
	}
	if d.told = now; now == "" {
		d.info("drift has ended: the store has the limits as they are named here")
		return
	}
	d.warn("warning: drift: the store differs in %s from what is named here: %s; a change of the file or a restart puts them in force", howMany(len(list), "limit"), strings.Join(list[:min(len(list), maxListed)], "; "))
}

// names lists names; of very many, some and their number.
func names(list []string) string {
	s := ""
	if len(list) > maxListed {
		s = fmt.Sprintf("%d, such as ", len(list))
	}
	return s + strings.Join(list[:min(len(list), maxListed)], ", ")
}
