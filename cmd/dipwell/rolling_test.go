package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// balanced sends takes of limit x to the services that are in it, one after the other, as
// a Service of Kubernetes does.
type balanced struct {
	t     *testing.T
	store string
	dir   string

	mu       sync.Mutex
	more     *sync.Cond
	services []*process
	next     int
	inFlight map[*process]int
	answered map[*process]int
	allowed  int64
	stopped  bool
}

const balancedBurst = 100000 // of limit x, of which nothing worth a token comes back during the test

// revision is a file in which limit y has a rate of n.
func revision(n int) string {
	return fmt.Sprintf("revision: %d\nlimits:\n  - {name: x, rate: 1, per: 1d, burst: %d}\n  - {name: y, rate: %d, per: 1d}\n", n, balancedBurst, n)
}

// newBalanced starts clients that send takes until finish.
func newBalanced(t *testing.T, store string) *balanced {
	b := &balanced{t: t, store: store, dir: t.TempDir(), inFlight: map[*process]int{}, answered: map[*process]int{}}
	b.more = sync.NewCond(&b.mu)
	return b
}

// clients starts clients, and returns a function that ends them.
func (b *balanced) clients() (finish func()) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for b.take() {
			}
		})
	}
	finish = sync.OnceFunc(func() {
		b.mu.Lock()
		b.stopped = true
		b.mu.Unlock()
		wg.Wait()
	})
	b.t.Cleanup(finish)
	return finish
}

func (b *balanced) take() bool {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return false
	}
	p := b.services[b.next%len(b.services)]
	b.next++
	b.inFlight[p]++
	b.mu.Unlock()
	res, err := http.Post(p.url+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=x&key=k"))
	body := []byte{}
	if err == nil {
		body, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight[p]--
	b.more.Broadcast()
	if err != nil || res.StatusCode != http.StatusOK {
		b.t.Errorf("a call was lost: %v %s", err, body)
		b.stopped = true
		return false
	}
	b.answered[p]++
	b.allowed++
	return true
}

// file writes a file of limits.
func (b *balanced) file(name string, n int) string {
	path := filepath.Join(b.dir, name)
	must(b.t, os.WriteFile(path, []byte(revision(n)), 0o600))
	return path
}

// enter lets clients call a service once it is ready, and waits until it has answered.
func (b *balanced) enter(p *process) {
	b.t.Helper()
	eventually(b.t, func() error { return isReady(b.t, p.url) })
	b.mu.Lock()
	b.services = append(b.services, p)
	b.mu.Unlock()
}

// busy waits until each service has answered n more calls.
func (b *balanced) busy(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.services {
		for want := b.answered[p] + n; b.answered[p] < want && !b.stopped; {
			b.more.Wait()
		}
	}
}

// leave takes a service out, as Kubernetes does before the end of preStop, and then stops
// it.
func (b *balanced) leave(p *process) {
	b.t.Helper()
	b.mu.Lock()
	var stay []*process
	for _, s := range b.services {
		if s != p {
			stay = append(stay, s)
		}
	}
	b.services = stay
	for b.inFlight[p] > 0 {
		b.more.Wait()
	}
	b.mu.Unlock()
	if err := p.stop(); err != nil {
		b.t.Errorf("SIGTERM: %v, want exit status 0\n%s", err, &p.stderr.all)
	}
}

// check checks that exactly the calls that were answered have been charged, and that limit
// y has a rate.
func (b *balanced) check(p *process, rate int) {
	b.t.Helper()
	b.mu.Lock()
	want := fmt.Sprintf(`"remaining":%d,`, balancedBurst-b.allowed)
	b.mu.Unlock()
	if _, body := post(b.t, p.url+"/v1/check", "limit=x&key=k&cost=0"); !strings.Contains(body, want) {
		b.t.Errorf("%s is wanted: %s", want, body)
	}
	b.limitY(p, rate)
}

func (b *balanced) limitY(p *process, rate int) {
	b.t.Helper()
	want := fmt.Sprintf(`"capacity":%d,`, rate)
	eventually(b.t, func() error {
		if _, body := post(b.t, p.url+"/v1/check", "limit=y&key=k&cost=0"); !strings.Contains(body, want) {
			return fmt.Errorf("%s is wanted: %s", want, body)
		}
		return nil
	})
}

// A rolling update with a new file of limits: services with the old and the new file side
// by side on one store, and an old one that restarts meanwhile.
func TestRollingUpdate(t *testing.T) {
	for name, url := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBalanced(t, url(t))
			serve := func(name string, n int) *process {
				return start(t, "--listen", "127.0.0.1:0", "--store", b.store, "--config", b.file(name, n))
			}
			one, two := serve("one", 5), serve("two", 5)
			b.enter(one)
			b.enter(two)
			finish := b.clients()
			b.busy(20)

			three := serve("three", 7)
			b.enter(three)
			b.busy(20)
			b.limitY(one, 7)
			b.leave(one)
			one = serve("one", 5) // a node came back, with the old file
			one.stderr.wait(t, "is revision 5 of owner main, but the store has seen revision 7: its limits are not defined")
			b.enter(one)
			b.busy(20)
			for _, p := range []*process{one, two, three} {
				b.limitY(p, 7)
			}
			b.leave(one)
			four := serve("four", 7)
			b.enter(four)
			b.leave(two)
			b.busy(20)
			finish()
			b.check(four, 7)
		})
	}
}
