package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

var (
	errGone    = fmt.Errorf("%w: it is gone", store.ErrStore)
	errRights  = errors.New("no rights")
	errSchema  = errors.New("another schema")
	errUnread  = fmt.Errorf("%w: not read yet", store.ErrStore)
	errRefused = &store.FieldError{Limit: "refused", Field: "name", Reason: "is refused"}
)

// table is a back end in memory. What programs share of it is there.
type table struct {
	mu       sync.Mutex // of revision
	reg      store.Registry
	revision int64
	bad      map[string]error
}

// memory is one program's back end over a table.
type memory struct {
	there *table
	here  store.Registry
	mu    sync.Mutex                // of fails, where the catalogue watches
	fails func(method string) error // nil: nothing fails
	calls []string
	told  chan struct{}

	reports []error
	looks   []error
}

func (m *memory) call(method string) error {
	m.calls = append(m.calls, method)
	m.mu.Lock()
	fails := m.fails
	m.mu.Unlock()
	if fails == nil {
		return nil
	}
	return fails(method)
}

func (m *memory) Prepare(context.Context) error { return m.call("prepare") }

func (m *memory) Read(_ context.Context, only string) (*Limits, error) {
	if err := m.call(strings.TrimSpace("read " + only)); err != nil {
		return nil, err
	}
	if only != "" {
		read := &Limits{Only: only, Revision: m.there.at(), Bad: map[string]error{}}
		if d := m.there.reg.Lookup(only); m.there.bad[only] != nil {
			read.Bad[only] = m.there.bad[only]
		} else if d != nil {
			read.Defs = append(read.Defs, d)
		}
		return read, nil
	}
	defs := slices.DeleteFunc(m.there.reg.All(), func(d *store.Definition) bool { return m.there.bad[d.Name] != nil })
	return &Limits{Defs: defs, Revision: m.there.at(), Bad: m.there.bad}, nil
}

func (m *memory) Revision(context.Context) (int64, error) {
	return m.there.at(), m.call("revision")
}

func (b *table) at() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revision
}

func (b *table) changed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision++
}

func (m *memory) Install(l *Limits) error {
	if l.Only != "" {
		m.here.InstallOne(l.Only, l.Defs)
	} else {
		m.here.Install(l.Defs)
	}
	return nil
}

func (m *memory) Put(_ context.Context, l store.Limit, by string) (int64, error) {
	if err := m.call("put " + l.Name); err != nil {
		return 0, err
	}
	if l.Name == "refused" {
		return 0, errRefused
	}
	old := m.there.reg.Lookup(l.Name)
	d, err := m.there.reg.Define(1, l, by)
	if err != nil || d == old {
		return 0, err
	}
	m.there.changed()
	return 1, nil
}

func (m *memory) Drop(_ context.Context, name, by string) error {
	err := m.call("drop " + name)
	if err == nil {
		err = m.there.reg.Drop(name, by)
	}
	if err == nil {
		m.there.changed()
	}
	return err
}

func (m *memory) Wait(ctx context.Context, poll time.Duration) {
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-m.told:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (m *memory) Looked(err error) { m.looks = append(m.looks, err) }
func (m *memory) Close()           { m.calls = append(m.calls, "close") }

func (m *memory) count(method string) (n int) {
	for _, c := range m.calls {
		if c == method {
			n++
		}
	}
	return n
}

// always makes every call fail.
func (m *memory) always(err error) { m.fail(func(string) error { return err }) }

// works makes no call fail.
func (m *memory) works() { m.fail(nil) }

func (m *memory) fail(fails func(method string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails = fails
}

// only makes calls of one method fail.
func (m *memory) only(method string, err error) {
	m.fail(func(called string) error {
		if called == method {
			return err
		}
		return nil
	})
}

func newMemory(there *table) *memory { return &memory{there: there, told: make(chan struct{}, 1)} }

func (m *memory) catalog(c Config) *Catalog {
	c.Report = func(err error) { m.reports = append(m.reports, err) }
	c.Unread = func(err error) error {
		if err == nil {
			return errUnread
		}
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	c.Error = func(err error) error {
		if err == nil || errors.Is(err, store.ErrStore) {
			return err
		}
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	c.Unavailable = func(err error) bool { return errors.Is(err, errGone) || err == errUnread } //nolint:errorlint // not if it is wrapped
	c.Denied = func(err error) bool { return errors.Is(err, errRights) }
	c.Unfit = func(err error) bool { return errors.Is(err, errSchema) }
	return New(m, &m.here, c)
}

func limit(name string, rate int64) store.Limit {
	return store.Limit{Name: name, Rate: rate, Period: time.Minute}
}

// define puts a limit into the table as another program does.
func (b *table) define(t *testing.T, l store.Limit) {
	t.Helper()
	if _, err := newMemory(b).Put(t.Context(), l, terms.OwnerCode); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, c *Catalog) {
	t.Helper()
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func mustDefine(t *testing.T, c *Catalog, l store.Limit, by string) {
	t.Helper()
	if d, err := c.Define(t.Context(), l, by); err != nil || d.Limit != l {
		t.Fatalf("%s: %v, %v", l.Name, d, err)
	}
}

func mustRefresh(t *testing.T, c *Catalog) {
	t.Helper()
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestDefineAndDrop(t *testing.T) {
	there := &table{}
	there.define(t, limit("theirs", 1))
	m := newMemory(there)
	c := m.catalog(Config{})
	mustOpen(t, c)
	if c.Registry().Lookup("theirs") == nil || c.LoadError() != nil || !c.IsRead() {
		t.Error("the limits were not read")
	}
	mustDefine(t, c, limit("ours", 1), terms.OwnerCode)
	there.define(t, limit("more", 1))
	if c.Registry().Lookup("more") != nil {
		t.Error("a limit was known before it was looked for")
	}
	mustRefresh(t, c)
	if c.Registry().Lookup("more") == nil {
		t.Error("a limit was not found by a look")
	}
	reads := m.count("read")
	mustRefresh(t, c)
	mustDefine(t, c, limit("ours", 1), terms.OwnerCode) // as it is
	if m.count("read") != reads {
		t.Error("limits were read that had not changed")
	}
	calls := len(m.calls)
	if _, err := c.Define(t.Context(), store.Limit{Name: "bad"}, terms.OwnerCode); err == nil || len(m.calls) != calls {
		t.Errorf("a limit without a rate: %v, %v", err, m.calls[calls:])
	}
	if _, err := c.Define(t.Context(), limit("ours", 2), terms.OwnerAPI); !errors.Is(err, store.ErrOwner) {
		t.Errorf("another owner: %v", err)
	}
	if err := c.Drop(t.Context(), "ours", terms.OwnerAPI); !errors.Is(err, store.ErrOwner) {
		t.Errorf("another owner drops: %v", err)
	}
	if err := c.Drop(t.Context(), "ours", terms.OwnerCode); err != nil || c.Registry().Lookup("ours") != nil {
		t.Errorf("drop: %v", err)
	}
	m.only("read ours", errRights)
	if _, err := c.Define(t.Context(), limit("ours", 3), terms.OwnerCode); !errors.Is(err, store.ErrStore) || !errors.Is(err, errRights) {
		t.Errorf("a limit that was stored and cannot be read: %v", err)
	}
	m.only("revision", errGone)
	if err := c.Refresh(t.Context()); !errors.Is(err, errGone) {
		t.Errorf("a look: %v", err)
	}
}

// TestDefineReadsOne: a change of one of many limits reads no other, unless another program
// has made a change too or the limit's parent becomes one.
func TestDefineReadsOne(t *testing.T) {
	m := newMemory(&table{})
	c := m.catalog(Config{})
	mustOpen(t, c)
	reads := func(want int, what string) {
		t.Helper()
		if n := m.count("read"); n != want {
			t.Errorf("%s: all limits were read %d times, want %d", what, n, want)
		}
		if want, got := m.there.reg.All(), m.here.All(); !slices.Equal(want, got) {
			t.Errorf("%s: %v are in force, want %v", what, got, want)
		}
		mustRefresh(t, c)
	}
	for i := range 5 {
		mustDefine(t, c, limit(fmt.Sprint("ours", i), 1), terms.OwnerCode)
	}
	mustDefine(t, c, limit("ours3", 2), terms.OwnerCode)
	reads(1, "new and changed limits")

	m.there.define(t, limit("theirs", 1))
	mustDefine(t, c, limit("ours", 1), terms.OwnerCode)
	reads(2, "after a change by another program")
	m.there.define(t, limit("theirs", 2))
	mustDefine(t, c, limit("ours", 1), terms.OwnerCode) // as it is
	reads(3, "no change, after one by another program")

	child := func(name string) store.Limit { l := limit(name, 1); l.Parent = "ours"; return l }
	mustDefine(t, c, child("first"), terms.OwnerCode)
	reads(4, "the first child")
	mustDefine(t, c, child("second"), terms.OwnerCode)
	reads(4, "the second child")
	if d := m.here.Lookup("ours"); !d.Paths {
		t.Error("the parent does not know that it is one")
	}
	without := limit("second", 1)
	mustDefine(t, c, without, terms.OwnerCode)
	reads(5, "a limit without its parent")

	m.there.bad = map[string]error{"ours1": errUnread}
	if _, err := c.Define(t.Context(), limit("ours1", 9), terms.OwnerCode); !errors.Is(err, errUnread) {
		t.Errorf("a limit that cannot be read: %v", err)
	}
	if err := c.unreadable("ours1"); !errors.Is(err, errUnread) || m.here.Lookup("ours1") != nil {
		t.Errorf("a limit that could not be read: %v", err)
	}
	m.there.bad = nil
	mustDefine(t, c, limit("ours1", 10), terms.OwnerCode)
	reads(6, "a limit that could not be read, and may have children")
}

// TestRevisionUnknown: limits whose revision is not known are read at each look.
func TestRevisionUnknown(t *testing.T) {
	m := newMemory(&table{revision: -1})
	c := m.catalog(Config{})
	mustOpen(t, c)
	m.there.revision = 3
	mustRefresh(t, c)
	if m.count("read") != 2 {
		t.Errorf("%v", m.calls)
	}
}

func TestOpenFails(t *testing.T) {
	for _, lazy := range []bool{false, true} {
		for name, c := range map[string]struct {
			err    error
			config Config
			opens  bool
		}{
			"away":           {errGone, Config{}, lazy},
			"unfit":          {errSchema, Config{}, false},
			"unfit, waits":   {errSchema, Config{WaitForAccess: true}, false},
			"no access":      {errRights, Config{}, false},
			"waits for that": {errRights, Config{WaitForAccess: true}, lazy},
		} {
			for _, method := range []string{"prepare", "read"} {
				m := newMemory(&table{})
				m.only(method, c.err)
				c.config.Lazy = lazy
				cat := m.catalog(c.config)
				err := cat.Open(t.Context())
				if opened := err == nil; opened != c.opens || !opened && err != c.err { //nolint:errorlint // must not be wrapped
					t.Errorf("%s, lazy %v: %v", name, lazy, err)
				}
				if c.opens && (!errors.Is(cat.LoadError(), errUnread) || !errors.Is(cat.LoadError(), c.err) || cat.IsRead() || len(m.reports) != 1) {
					t.Errorf("%s: %v, %v", name, cat.LoadError(), m.reports)
				}
			}
		}
	}
	t.Run("the caller gives up", func(t *testing.T) {
		m := newMemory(&table{})
		ctx, cancel := context.WithCancel(t.Context())
		m.fails = func(string) error { cancel(); return errGone }
		if err := m.catalog(Config{Lazy: true}).Open(ctx); !errors.Is(err, errGone) {
			t.Error(err)
		}
	})
	t.Run("it hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := hanging{newMemory(&table{})}
			c := m.catalog(Config{Lazy: true})
			c.b = m
			began := time.Now()
			mustOpen(t, c)
			if took := time.Since(began); took != openTimeout {
				t.Errorf("opened after %v", took)
			}
		})
	})
}

// hanging is a back end that answers nothing.
type hanging struct{ *memory }

func (hanging) Prepare(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// TestPending: what is defined while the back end is away is known here at once,
// and stored when it is back.
func TestPending(t *testing.T) {
	there := &table{}
	there.define(t, limit("theirs", 1))
	m := newMemory(there)
	m.always(errGone)
	c := m.catalog(Config{Lazy: true})
	mustOpen(t, c)
	calls := len(m.calls)
	mustDefine(t, c, limit("ours", 1), terms.OwnerCode)
	mustDefine(t, c, limit("ours", 2), terms.OwnerCode)
	mustDefine(t, c, limit("refused", 1), terms.OwnerCode)
	mustDefine(t, c, limit("more", 1), terms.OwnerFile)
	if d := c.Registry().Lookup("ours"); d == nil || d.Rate != 2 {
		t.Errorf("a limit that waits: %v", d)
	}
	if _, err := c.Define(t.Context(), limit("api", 1), terms.OwnerAPI); !errors.Is(err, errUnread) {
		t.Errorf("a definition that somebody waits for: %v", err)
	}
	if err := c.Drop(t.Context(), "theirs", terms.OwnerCode); !errors.Is(err, errUnread) {
		t.Errorf("drop: %v", err)
	}
	if err := c.LoadForCall(t.Context()); !errors.Is(err, errUnread) {
		t.Errorf("a call: %v", err)
	}
	if err := c.Registry().Missing("theirs"); !errors.Is(err, errUnread) {
		t.Errorf("a limit that only the back end knows: %v", err)
	}
	if len(m.calls) != calls {
		t.Errorf("the back end was asked: %v", m.calls[calls:])
	}

	m.only("prepare", errRights)
	if err := c.Refresh(t.Context()); !errors.Is(err, errRights) || !errors.Is(c.LoadError(), errRights) {
		t.Errorf("another error: %v, and calls get %v", err, c.LoadError())
	}

	// It comes back, and goes away before all is stored.
	m.only("put more", errGone)
	if err := c.Refresh(t.Context()); !errors.Is(err, errGone) || c.IsRead() {
		t.Errorf("half: %v", err)
	}
	m.works()
	mustRefresh(t, c)
	if m.count("put ours") != 1 || m.count("put more") != 2 || m.count("put refused") != 1 {
		t.Errorf("%v", m.calls)
	}
	if !slices.Equal(names(&there.reg), []string{"more", "ours", "theirs"}) || !slices.Equal(names(c.Registry()), names(&there.reg)) {
		t.Errorf("there %v, here %v", names(&there.reg), names(c.Registry()))
	}
	if d := there.reg.Lookup("ours"); d.Rate != 2 || d.Number != 1 {
		t.Errorf("%+v", d)
	}
	if len(m.reports) != 2 || m.reports[1] != error(errRefused) { //nolint:errorlint // must not be wrapped
		t.Errorf("%v", m.reports)
	}
	if !errors.Is(c.Registry().Missing("nobody's"), store.ErrUnknownLimit) || c.LoadError() != nil {
		t.Error("a limit of nobody's is not unknown")
	}

	// It goes away once more. What waits then is stored though nothing changed there.
	m.always(errGone)
	mustDefine(t, c, limit("late", 1), terms.OwnerCode)
	m.works()
	mustRefresh(t, c)
	if there.reg.Lookup("late") == nil || there.reg.Lookup("late").Number != c.Registry().Lookup("late").Number {
		t.Error("a limit was not stored")
	}
	m.always(errRights)
	if _, err := c.Define(t.Context(), limit("denied", 1), terms.OwnerCode); !errors.Is(err, errRights) {
		t.Errorf("without rights: %v", err)
	}
}

// TestNotPending: a back end that is there refuses by itself, and one that is not
// lazy keeps nothing.
func TestNotPending(t *testing.T) {
	m := newMemory(&table{})
	c := m.catalog(Config{})
	mustOpen(t, c)
	m.always(errGone)
	if _, err := c.Define(t.Context(), limit("ours", 1), terms.OwnerCode); err != errGone { //nolint:errorlint // must not be wrapped
		t.Errorf("not lazy: %v", err)
	}
	m = newMemory(&table{})
	c = m.catalog(Config{Lazy: true, WaitForAccess: true})
	mustOpen(t, c)
	m.always(errRights)
	mustDefine(t, c, limit("ours", 1), terms.OwnerCode) // waits for the rights
	m.works()
	if _, err := c.Define(t.Context(), limit("refused", 1), terms.OwnerCode); !errors.Is(err, errRefused) {
		t.Errorf("refused: %v", err)
	}
	for i := range maxPending {
		c.pending = append(c.pending, pending{limit: limit(fmt.Sprint(i), 1), owner: terms.OwnerCode})
	}
	m.always(errGone)
	if _, err := c.Define(t.Context(), limit("too many", 1), terms.OwnerCode); !errors.Is(err, errGone) {
		t.Errorf("too many: %v", err)
	}
}

// TestPendingIsOutdated: a limit that is defined again or dropped once the back
// end is there is not replaced by what was pending.
func TestPendingIsOutdated(t *testing.T) {
	m := newMemory(&table{})
	c := m.catalog(Config{Lazy: true})
	mustOpen(t, c)
	away := func(limits ...store.Limit) {
		t.Helper()
		m.always(errGone)
		for _, l := range limits {
			mustDefine(t, c, l, terms.OwnerCode)
		}
		m.works()
	}
	away(limit("ours", 1))
	mustDefine(t, c, limit("ours", 2), terms.OwnerCode)
	mustRefresh(t, c)
	if d := m.there.reg.Lookup("ours"); d.Rate != 2 || c.Registry().Lookup("ours").Rate != 2 {
		t.Errorf("there %v, here %v", d, c.Registry().Lookup("ours"))
	}
	away(limit("ours", 3), limit("new", 1))
	if err := c.Drop(t.Context(), "ours", terms.OwnerCode); err != nil {
		t.Error(err)
	}
	if err := c.Drop(t.Context(), "new", terms.OwnerAPI); !errors.Is(err, store.ErrOwner) {
		t.Errorf("another owner drops a limit that was pending: %v", err)
	}
	if err := c.Drop(t.Context(), "new", terms.OwnerCode); err != nil {
		t.Errorf("a limit that was pending: %v", err)
	}
	mustRefresh(t, c)
	if len(names(&m.there.reg)) > 0 || len(names(c.Registry())) > 0 {
		t.Errorf("there %v, here %v", names(&m.there.reg), names(c.Registry()))
	}
}

// TestPendingIsDenied: a pending limit waits for the rights to store it, if the
// catalog does, and the limits are read all the same.
func TestPendingIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(&table{})
		m.there.define(t, limit("theirs", 1))
		m.always(errGone)
		c := m.catalog(Config{Lazy: true, WaitForAccess: true})
		mustOpen(t, c)
		mustDefine(t, c, limit("ours", 1), terms.OwnerCode)
		mustDefine(t, c, limit("more", 1), terms.OwnerCode)
		m.only("put ours", errRights)
		mustRefresh(t, c)
		reads := m.count("read")
		mustRefresh(t, c)
		if !c.IsRead() || c.Registry().Lookup("theirs") == nil || c.Registry().Lookup("more") == nil {
			t.Errorf("here %v", names(c.Registry()))
		}
		if m.count("put ours") != 1 || m.count("read") != reads {
			t.Errorf("tried again at once: %v", m.calls)
		}
		if err := c.Registry().Missing("ours"); !errors.Is(err, errRights) || !errors.Is(err, store.ErrStore) {
			t.Errorf("a call of the limit that waits: %v", err)
		}
		time.Sleep(retryDenied) // of the bubble
		mustRefresh(t, c)
		if m.count("put ours") != 2 || len(m.reports) != 2 || m.reports[1] != errRights { //nolint:errorlint // must not be wrapped
			t.Errorf("%v, %v", m.calls, m.reports)
		}
		m.always(errGone)
		mustDefine(t, c, limit("late", 1), terms.OwnerCode)
		m.only("put late", errGone)
		if err := c.Refresh(t.Context()); !errors.Is(err, errGone) {
			t.Error(err)
		}
		m.works()
		time.Sleep(retryDenied)
		mustRefresh(t, c)
		if err := c.Drop(t.Context(), "ours", terms.OwnerCode); err != nil || !errors.Is(c.Registry().Missing("ours"), store.ErrUnknownLimit) {
			t.Errorf("dropped once it was stored: %v, %v", err, c.Registry().Missing("ours"))
		}
		if want := []string{"late", "more", "theirs"}; !slices.Equal(names(&m.there.reg), want) || !slices.Equal(names(c.Registry()), want) {
			t.Errorf("there %v, here %v", names(&m.there.reg), names(c.Registry()))
		}
	})
}

// TestPendingIsLocked: a limit that somebody else has locked is stored later. Meanwhile the
// limit in the store decides, and other limits are stored.
func TestPendingIsLocked(t *testing.T) { synctest.Test(t, pendingIsLocked) }

func pendingIsLocked(t *testing.T) {
	locked := fmt.Errorf("%w: by a test", store.ErrLocked)
	there := &table{}
	there.define(t, limit("ours", 1))
	m := newMemory(there)
	c := m.catalog(Config{Lazy: true})
	mustOpen(t, c)
	lock := func(names ...string) {
		m.fail(func(method string) error {
			if name, is := strings.CutPrefix(method, "put "); is && slices.Contains(names, name) {
				return locked
			}
			return nil
		})
	}
	lock("ours", "parent")
	child := limit("child", 1)
	child.Parent = "parent"
	for _, l := range []store.Limit{limit("ours", 2), limit("parent", 1), child, limit("free", 1)} {
		mustDefine(t, c, l, terms.OwnerFile)
	}
	if _, err := c.Define(t.Context(), limit("ours", 3), terms.OwnerAPI); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a change that somebody waits for: %v", err)
	}
	check := func(ours int64, want ...string) {
		t.Helper()
		if d := c.Registry().Lookup("ours"); d.Rate != ours || !slices.Equal(names(c.Registry()), want) {
			t.Errorf("ours is %v, and there are %v", d, names(c.Registry()))
		}
	}
	check(1, "free", "ours")
	mustRefresh(t, c)
	check(1, "free", "ours")
	if err := c.Registry().Missing("parent"); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a call of a limit that waits: %v", err)
	}
	if c.Waiting("ours") == nil || c.Waiting("free") != nil || len(m.reports) != 3 || m.count("put child") != 0 {
		t.Errorf("%v, %v", m.reports, m.calls)
	}
	lock("parent")
	mustRefresh(t, c)
	check(2, "free", "ours")
	lock()
	mustRefresh(t, c)
	mustRefresh(t, c)
	check(2, "child", "free", "ours", "parent")
	if len(c.pending) > 0 || c.Waiting("parent") != nil {
		t.Errorf("%v wait", c.pending)
	}

	// Of many that are locked a few are tried at a time, and all in turn.
	var many []string
	for i := range 3 * maxLocked {
		many = append(many, fmt.Sprint("l", i))
	}
	lock(many...)
	m.calls = nil
	for _, name := range many {
		mustDefine(t, c, limit(name, 1), terms.OwnerFile)
	}
	if slices.Sort(m.calls); len(slices.Compact(m.calls)) != maxLocked {
		t.Errorf("%v were tried at once", slices.Compact(m.calls))
	}
	for range 3 {
		mustRefresh(t, c)
	}
	for _, name := range many {
		if m.count("put "+name) == 0 {
			t.Errorf("%s was never tried", name)
		}
	}
	eager := newMemory(there)
	eager.always(locked)
	d := eager.catalog(Config{})
	if _, err := d.Define(t.Context(), limit("ours", 4), terms.OwnerFile); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a program that is not lazy: %v", err)
	}
}

// TestDropOfPending: a pending limit that was denied does not wait any more once its
// owner has dropped it, whether or not the back end knows that it is not there. A Drop
// that fails leaves it pending.
func TestDropOfPending(t *testing.T) {
	for what, drop := range map[string]error{"is not there": nil, "is denied": errRights} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(&table{})
			m.always(errGone)
			c := m.catalog(Config{Lazy: true, WaitForAccess: true})
			mustOpen(t, c)
			mustDefine(t, c, limit("ours", 1), terms.OwnerCode)
			m.fail(func(method string) error {
				switch method {
				case "put ours":
					return errRights
				case "drop ours":
					return drop
				}
				return nil
			})
			mustRefresh(t, c)
			if err := c.Drop(t.Context(), "ours", terms.OwnerAPI); !errors.Is(err, store.ErrOwner) || len(c.pending) != 1 {
				t.Errorf("%s, dropped by another: %v, %v", what, err, c.pending)
			}
			if err := c.Drop(t.Context(), "ours", terms.OwnerCode); err != nil || len(c.pending) != 0 {
				t.Errorf("%s: %v, %v", what, err, c.pending)
			}
			if err := c.Registry().Missing("ours"); !errors.Is(err, store.ErrUnknownLimit) {
				t.Errorf("%s, a call afterwards: %v", what, err)
			}
			m.works()
			time.Sleep(retryDenied)
			mustRefresh(t, c)
			if len(names(&m.there.reg)) > 0 {
				t.Errorf("%s: %v was stored", what, names(&m.there.reg))
			}
			if err := c.Drop(t.Context(), "ours", terms.OwnerCode); !errors.Is(err, store.ErrUnknownLimit) {
				t.Errorf("%s, dropped again: %v", what, err)
			}
		})
	}
	t.Run("an older version is there", func(t *testing.T) {
		m := newMemory(&table{})
		m.there.define(t, limit("ours", 1))
		c := m.catalog(Config{Lazy: true, WaitForAccess: true})
		mustOpen(t, c)
		m.always(errRights)
		mustDefine(t, c, limit("ours", 2), terms.OwnerCode)
		m.fail(func(method string) error {
			if method == "put ours" || method == "drop ours" {
				return errRights
			}
			return nil
		})
		if err := c.Drop(t.Context(), "ours", terms.OwnerCode); !errors.Is(err, errRights) || len(c.pending) != 1 {
			t.Errorf("%v, %v", err, c.pending)
		}
	})
	t.Run("the drop fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(&table{})
			m.always(errGone)
			c := m.catalog(Config{Lazy: true, WaitForAccess: true})
			mustOpen(t, c)
			mustDefine(t, c, limit("ours", 1), terms.OwnerCode)
			m.only("put ours", errRights)
			mustRefresh(t, c)
			m.only("drop ours", errGone)
			if err := c.Drop(t.Context(), "ours", terms.OwnerCode); !errors.Is(err, errGone) || !errors.Is(c.Registry().Missing("ours"), errRights) {
				t.Errorf("%v, %v", err, c.Registry().Missing("ours"))
			}
			m.works()
			time.Sleep(retryDenied)
			if mustRefresh(t, c); c.Registry().Lookup("ours") == nil {
				t.Error("a drop that failed has ended the limit")
			}
		})
	})
}

// TestRolledBack: limits that a transaction has read, of which nobody else sees the
// revision, do not hide those that others store under the same revision.
func TestRolledBack(t *testing.T) {
	there := &table{}
	there.define(t, limit("old", 1))
	m := newMemory(there)
	c := m.catalog(Config{})
	mustOpen(t, c)
	mine, err := store.NewDefinition(limit("mine", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Install(&Limits{Defs: []*store.Definition{mine}, Revision: there.at() + 1}); err != nil || c.Registry().Lookup("mine") == nil {
		t.Fatal(err)
	}
	there.define(t, limit("theirs", 1)) // that transaction has rolled back
	mustRefresh(t, c)
	if got, want := names(c.Registry()), []string{"old", "theirs"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	reads := m.count("read")
	if err := c.Install(&Limits{Defs: there.reg.All(), Revision: there.at()}); err != nil {
		t.Fatal(err)
	}
	if mustRefresh(t, c); m.count("read") != reads {
		t.Error("limits were read again that a transaction has read unchanged")
	}
}

func names(reg *store.Registry) (out []string) {
	for _, d := range reg.All() {
		out = append(out, d.Name)
	}
	return out
}

// TestBadLimits: each limit that cannot be read is reported once, and its calls
// get the error until it can.
func TestBadLimits(t *testing.T) {
	there := &table{bad: map[string]error{"newer": errors.New("of Mars")}}
	there.define(t, limit("good", 1))
	m := newMemory(there)
	c := m.catalog(Config{})
	mustOpen(t, c)
	look := func() {
		t.Helper()
		there.revision++
		mustRefresh(t, c)
	}
	look()
	if err := c.Registry().Missing("newer"); len(m.reports) != 1 || err != there.bad["newer"] { //nolint:errorlint // must not be wrapped
		t.Errorf("%v, %v", m.reports, err)
	}
	there.bad = map[string]error{"newer": errors.New("of Venus")}
	look()
	if len(m.reports) != 2 || c.Registry().Lookup("good") == nil {
		t.Errorf("another error: %v", m.reports)
	}
	if _, err := c.Define(t.Context(), limit("newer", 1), terms.OwnerCode); err != there.bad["newer"] { //nolint:errorlint // must not be wrapped
		t.Errorf("a limit that is stored and cannot be read: %v", err)
	}
	there.bad = nil
	look()
	if err := c.Drop(t.Context(), "newer", terms.OwnerCode); err != nil {
		t.Error(err)
	}
	if err := c.Registry().Missing("newer"); !errors.Is(err, store.ErrUnknownLimit) || len(m.reports) != 2 {
		t.Errorf("%v, %v", err, m.reports)
	}
}

// TestOneAtATime: who waits for another's reading gives up with its context, and
// Install waits for nobody.
func TestOneAtATime(t *testing.T) {
	m := newMemory(&table{})
	c := m.catalog(Config{})
	mustOpen(t, c)
	if err := errors.Join(c.changing.Enter(t.Context()), c.reading.Enter(t.Context())); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m.there.revision++
	calls := len(m.calls)
	for name, err := range map[string]error{
		"load for a call": c.LoadForCall(ended),
		"drop":            c.Drop(ended, "l", terms.OwnerCode),
		"define":          second(c.Define(ended, limit("l", 1), terms.OwnerCode)),
	} {
		if !errors.Is(err, store.ErrStore) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Refresh(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("refresh: %v", err)
	}
	if i := slices.IndexFunc(m.calls[calls:], func(call string) bool { return call != "revision" }); i >= 0 {
		t.Errorf("%v while another read", m.calls[calls:])
	}
	if err := c.Install(&Limits{Defs: []*store.Definition{limittest.Definition(limit("read elsewhere", 1))}}); err != nil || c.Registry().Lookup("read elsewhere") == nil {
		t.Error(err)
	}
	c.changing.Leave()
	c.reading.Leave()
}

// TestChangeThatTakesLong checks that the limits are read while a change takes long, as on
// Redis, where the buckets of a limit may have to be given another expiry first.
func TestChangeThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(&table{})
		c := m.catalog(Config{})
		mustOpen(t, c)
		goes := make(chan struct{})
		m.fail(func(method string) error {
			if method == "put slow" {
				<-goes
			}
			return nil
		})
		done := make(chan error)
		go func() { done <- second(c.Define(t.Context(), limit("slow", 1), terms.OwnerAPI)) }()
		synctest.Wait()
		m.there.define(t, limit("theirs", 1))
		if err := errors.Join(c.Load(t.Context()), c.Refresh(t.Context()), c.LoadForCall(t.Context())); err != nil || c.Registry().Lookup("theirs") == nil {
			t.Error(err)
		}
		close(goes)
		if err := <-done; err != nil || c.Registry().Lookup("slow") == nil {
			t.Error(err)
		}
	})
}

// TestChangesBesideLockedLimit checks that changes of a locked limit are tried for five
// seconds, and delay those of other limits by no more than a try.
func TestChangesBesideLockedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const try = 10 * time.Millisecond
		m := newMemory(&table{})
		m.there.define(t, limit("locked", 1))
		c := m.catalog(Config{})
		mustOpen(t, c)
		m.fail(func(method string) error {
			if strings.HasSuffix(method, " locked") {
				time.Sleep(try)
				return store.ErrLocked
			}
			return nil
		})
		start := time.Now()
		var stuck sync.WaitGroup
		for i := range 10 {
			stuck.Go(func() {
				var err error
				if i%2 == 0 {
					err = c.Drop(t.Context(), "locked", terms.OwnerAPI)
				} else {
					_, err = c.Define(t.Context(), limit("locked", 2), terms.OwnerAPI)
				}
				if took := time.Since(start); !errors.Is(err, store.ErrLocked) || took < lockedPatience || took > lockedPatience+time.Second {
					t.Errorf("%v after %v", err, took)
				}
			})
		}
		time.Sleep(time.Second)
		began := time.Now()
		if err := errors.Join(second(c.Define(t.Context(), limit("free", 1), terms.OwnerAPI)), c.Drop(t.Context(), "free", terms.OwnerAPI)); err != nil || time.Since(began) > 25*try {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		stuck.Wait()
	})
}

func second[T any](_ T, err error) error { return err }

// TestInstallDuringRead checks that limits installed during a reading are not
// replaced by what it read, which may be older.
func TestInstallDuringRead(t *testing.T) {
	m := newMemory(&table{})
	c := m.catalog(Config{})
	mustOpen(t, c)
	reads := 0
	m.fail(func(method string) error {
		if method != "read" {
			return nil
		}
		switch reads++; reads {
		case 1: // another transaction sees the change, this reading does not
			return c.Install(&Limits{Defs: []*store.Definition{limittest.Definition(limit("new", 1))}, Revision: 1})
		case 2:
			m.there.define(t, limit("new", 1))
		}
		return nil
	})
	if err := c.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.Registry().Lookup("new") == nil || c.Revision() != 1 || reads != 2 {
		t.Errorf("after %d readings here %v, of revision %d", reads, names(c.Registry()), c.Revision())
	}
}

// TestInstallOlder checks that Install ignores an older reading, and that Load does
// not, because a back end that was made anew counts from 0.
func TestInstallOlder(t *testing.T) {
	m := newMemory(&table{})
	c := m.catalog(Config{})
	m.there.define(t, limit("first", 1))
	m.there.define(t, limit("second", 1))
	mustOpen(t, c)
	if err := c.Install(&Limits{Revision: 1, Bad: map[string]error{"first": errGone}}); err != nil || len(m.reports) > 0 {
		t.Error(err, m.reports)
	}
	if want := []string{"first", "second"}; !slices.Equal(names(c.Registry()), want) || c.Revision() != 2 {
		t.Errorf("after an older reading: here %v, of revision %d", names(c.Registry()), c.Revision())
	}
	m.there = &table{}
	m.there.define(t, limit("anew", 1))
	mustRefresh(t, c)
	if !slices.Equal(names(c.Registry()), []string{"anew"}) || c.Revision() != 1 {
		t.Errorf("made anew: here %v, of revision %d", names(c.Registry()), c.Revision())
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(&table{})
		c := m.catalog(Config{})
		mustOpen(t, c)
		c.Watch(m, 0, time.Second, 10*time.Second)
		began := time.Now()
		m.there.define(t, limit("polled", 1))
		synctest.Wait()
		if c.Registry().Lookup("polled") != nil {
			t.Error("it was looked for at once")
		}
		time.Sleep(time.Second) // of the bubble
		synctest.Wait()
		if c.Registry().Lookup("polled") == nil || len(m.looks) != 1 {
			t.Errorf("not found by a poll: %v", m.looks)
		}
		m.there.define(t, limit("told", 1))
		m.told <- struct{}{}
		synctest.Wait()
		if c.Registry().Lookup("told") == nil || time.Since(began) != time.Second {
			t.Error("not found when told")
		}
		m.always(errGone)
		m.told <- struct{}{}
		synctest.Wait()
		if last := m.looks[len(m.looks)-1]; !errors.Is(last, errGone) {
			t.Errorf("a look that failed: %v", last)
		}
		looks := len(m.looks)
		c.Close()
		if m.count("close") != 1 || len(m.looks) != looks {
			t.Errorf("closed: %v, %v", m.calls, m.looks[looks:])
		}
	})
}

// TestWatchOnce: with a negative poll the back end is asked until it was read,
// and nobody waits to be told.
func TestWatchOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(&table{})
		m.always(errGone)
		c := m.catalog(Config{Lazy: true})
		mustOpen(t, c)
		c.Watch(m, -1, time.Second, 10*time.Second)
		m.told <- struct{}{}
		time.Sleep(3500 * time.Millisecond) // of the bubble
		synctest.Wait()
		if len(m.looks) != 3 {
			t.Errorf("%d looks", len(m.looks))
		}
		m.works()
		time.Sleep(time.Second)
		synctest.Wait()
		if !c.IsRead() || m.count("close") != 1 {
			t.Errorf("%v", m.calls)
		}
		calls := len(m.calls)
		c.Watch(m, -1, time.Second, 10*time.Second)
		time.Sleep(time.Minute)
		if len(m.calls) != calls {
			t.Errorf("asked though read: %v", m.calls[calls:])
		}
		c.Close()
	})
}

// TestGo: what is done in the background ends with the catalogue.
func TestGo(t *testing.T) {
	c := newMemory(&table{}).catalog(Config{})
	ended := false
	c.Go(func(ctx context.Context) { <-ctx.Done(); ended = true })
	c.Close()
	if !ended {
		t.Error("Close did not wait")
	}
}

// TestFaults: whatever fails and when, once nothing does the programs know what
// the table holds, and it holds what they defined while it was away.
func TestFaults(t *testing.T) {
	for seed := range uint64(300) {
		faults(t, seed)
	}
}

func faults(t *testing.T, seed uint64) {
	t.Helper()
	ctx, rnd := t.Context(), rand.New(rand.NewPCG(seed, 12))
	there := &table{}
	var programs []*Catalog
	var ends []*memory
	failing := 0.5
	for range 1 + rnd.IntN(3) {
		m := newMemory(there)
		m.fails = func(string) error {
			if rnd.Float64() < failing {
				return errGone
			}
			return nil
		}
		c := m.catalog(Config{Lazy: true})
		mustOpen(t, c)
		programs, ends = append(programs, c), append(ends, m)
	}
	latest := map[string]bool{} // names that some program was told are defined, and nobody dropped since
	for range 60 {
		failing = []float64{0, 0.3, 1}[rnd.IntN(3)]
		c := programs[rnd.IntN(len(programs))]
		name := fmt.Sprint("l", rnd.IntN(4))
		switch rnd.IntN(5) {
		case 0, 1:
			d, err := c.Define(ctx, limit(name, 1+rnd.Int64N(3)), terms.OwnerCode)
			switch {
			case err == nil:
				latest[name] = true
			case d != nil || !errors.Is(err, store.ErrStore) && !errors.Is(err, store.ErrUnknownLimit):
				t.Fatalf("seed %d: define: %v, %v", seed, d, err)
			}
		case 2:
			if err := c.Drop(ctx, name, terms.OwnerCode); err == nil || !errors.Is(err, store.ErrUnknownLimit) {
				delete(latest, name) // or perhaps
			}
		default:
			if err := c.Refresh(ctx); err != nil && !errors.Is(err, errGone) {
				t.Fatalf("seed %d: refresh: %v", seed, err)
			}
		}
	}
	failing = 0
	for range 2 { // in the second round each program knows what the others have stored in the first
		for _, c := range programs {
			mustRefresh(t, c)
		}
	}
	for i, c := range programs {
		if len(c.pending) != 0 {
			t.Errorf("seed %d: %d limits wait", seed, len(c.pending))
		}
		for _, d := range there.reg.All() {
			if here := c.Registry().Lookup(d.Name); here == nil || here.Limit != d.Limit || here.Number != d.Number {
				t.Errorf("seed %d: program %d knows %v, and the table has %v", seed, i, here, d)
			}
		}
		if len(c.Registry().All()) != len(there.reg.All()) {
			t.Errorf("seed %d: program %d knows %v, and the table has %v", seed, i, names(c.Registry()), names(&there.reg))
		}
	}
	for name := range latest {
		if there.reg.Lookup(name) == nil {
			t.Errorf("seed %d: %s is lost\n%s", seed, name, strings.Join(ends[0].calls, "\n"))
		}
	}
}
