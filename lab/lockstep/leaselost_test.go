package lockstep

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// losingSetting is the URL of the store, and losingLimit a limit. A process that has them
// is a worker of TestLostLeases.
const (
	losingSetting = "DIPWELL_LOSER"
	losingLimit   = "DIPWELL_LOSER_LIMIT"
)

// TestLostLeases: a process that leases a key is killed, or stands still for longer than a
// lease. Of what it took from the store it then loses at once at most the tokens that it held
// and had asked for, which are one chunk, and never granted more. Nearly nothing comes back meanwhile.
func TestLostLeases(t *testing.T) {
	const limit = "held=1/1s,burst=1000000,lease=200ms"
	for name, open := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return newDatabase(t) },
		"redis": func(t *testing.T) string {
			return redisURL(t) + fmt.Sprint("&prefix=held", prefixes.Add(1))
		},
	} {
		for _, c := range []struct {
			name, limit string
			signal      syscall.Signal
		}{
			{"killed", limit, syscall.SIGKILL},
			{"killed, max_debt 0", limit + ",max_debt=0", syscall.SIGKILL},
			{"stands still", limit, syscall.SIGSTOP},
			{"stands still, max_debt 0", limit + ",max_debt=0", syscall.SIGSTOP},
		} {
			t.Run(name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				loseLease(t, open(t), c.limit, c.signal)
			})
		}
	}
}

// A held is a grant of a worker: its source, and the tokens that the process has asked
// for in advance so far, and of these those that it lost.
type held struct{ Source, Asked, Lost int64 }

// unknown is the source of a call that failed. Its token may have been taken.
const unknown = -1

func loseLease(t *testing.T, url, limit string, signal syscall.Signal) {
	const enough = 300 // grants from leases
	definition, err := dipwell.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	l, began := openLimiter(t.Context(), url, definition), time.Now()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), losingSetting+"="+url, losingLimit+"="+limit)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = c.Start(); err != nil {
		t.Fatal(err)
	}
	var granted, leased, asked, largest, unsure, dead, atOnce int64
	for {
		var g held
		if binary.Read(out, binary.LittleEndian, &g) != nil {
			break
		}
		atOnce, dead = max(atOnce, g.Lost-dead), g.Lost
		if g.Source == unknown {
			unsure++
			continue
		}
		granted++
		largest, asked = max(largest, g.Asked-asked), g.Asked
		if g.Source != int64(store.SourceLease) {
			continue
		}
		switch leased++; leased {
		case enough:
			if err = c.Process.Signal(signal); err != nil {
				t.Error(err)
			}
			if signal == syscall.SIGSTOP {
				<-time.After(2 * definition.Lease)
				if err = c.Process.Signal(syscall.SIGCONT); err != nil {
					t.Error(err)
				}
			}
		case 2 * enough: // a process that was stopped ends in order
			if err = in.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if err = c.Wait(); signal == syscall.SIGSTOP && err != nil || leased < enough {
		t.Errorf("%d tokens were granted, %d of them from leases: %v", granted, leased, err)
	}
	d, err := l.Check(t.Context(), definition.Name, "k", 1)
	if err != nil {
		t.Fatal(err)
	}
	back := int64(time.Since(began).Seconds()) + 2
	lost := d.Capacity - d.Remaining - granted
	t.Logf("%d granted, %d of them from leases; %d lost, %d of them at once; the largest request was for %d; %d calls failed", granted, leased, lost, max(atOnce, lost-dead), largest, unsure)
	// A chunk is about one and a half requests, and the last may be twice as large as before.
	if atOnce = max(atOnce, lost-dead-unsure); lost < -back || atOnce > 2*largest {
		t.Errorf("%d of %d tokens are lost, %d at once; the largest request was for %d", lost, d.Capacity-d.Remaining, atOnce, largest)
	}
}

// holdLease is a worker of TestLostLeases. It takes tokens and reports them until its
// input ends.
func holdLease(url, limit string) {
	ctx, cancel := context.WithCancel(context.Background())
	definition, err := dipwell.ParseLimit(limit)
	check(err)
	l := openLimiter(ctx, url, definition)
	s, err := stack.New(ctx, l.Store(), stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true})
	check(err)
	l = l.With(s.Store)
	metrics := store.AbilitiesOf(s.Store).Metrics
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for ctx.Err() == nil {
		d, err := l.Take(context.Background(), definition.Name, "k", 1)
		if err == nil && d.Allowed || errors.Is(err, store.ErrStore) {
			g := held{Source: int64(d.Source)}
			if err != nil {
				g.Source = unknown
			}
			for _, m := range metrics() {
				switch m.Name {
				case "dipwell_lease_tokens_asked_total":
					g.Asked = int64(m.Value)
				case "dipwell_lease_tokens_lost_total":
					g.Lost = int64(m.Value)
				}
			}
			check(binary.Write(os.Stdout, binary.LittleEndian, g))
		}
		<-time.After(500 * time.Microsecond)
	}
	check(s.Close())
}
