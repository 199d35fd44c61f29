package filestore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// The test binary runs itself as the process that is killed.
const childEnv = "DIPWELL_FILESTORE_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		child(what, os.Args[1])
		return
	}
	goleak.VerifyTestMain(m)
}

var ctx = context.Background()

// slow is a limit that hardly refills, so that its buckets show all that was taken.
var slow = store.Limit{Name: "slow", Rate: 1, Period: 10 * time.Minute, Burst: 10_000_000, MaxDebt: store.NoDebt, MaxCharge: 1}

func child(what, path string) {
	c := Config{Every: Each}
	switch what {
	case "every":
		c.Every = minEvery
	case "fsize":
		signal.Ignore(syscall.SIGXFSZ)
		most := syscall.Rlimit{Cur: 400 << 10, Max: 400 << 10}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &most); err != nil {
			panic(err)
		}
	}
	s, err := Open(path, c)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	l, err := dipwell.New(s, slow)
	if err != nil {
		panic(err)
	}
	switch what {
	case "each":
		childEach(l)
	case "every":
		childEvery(s, l)
	case "fsize":
		childFull(l)
	}
}

// childEach prints each call after its answer, when it is on the disk.
func childEach(l *dipwell.Limiter) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for {
				if _, err := l.TakeAll(ctx, take(fmt.Sprint("a", i)), take(fmt.Sprint("b", i))); err != nil {
					panic(err)
				}
				fmt.Fprint(os.Stdout, "kept ", i, "\n")
			}
		})
	}
	wg.Wait()
}

func take(key string) dipwell.Take { return dipwell.Take{Limit: "slow", Key: key, Cost: 1} }

// childEvery prints the calls that are on the disk: a call is written once two more
// groups have been written after it.
func childEvery(s *Store, l *dipwell.Limiter) {
	var groups int64
	for made, calls := 0, 0; ; made++ {
		if now := s.Stats().Groups; now >= groups+2 {
			os.Stdout.WriteString(strings.Repeat("kept 0\n", calls))
			groups, calls = now, 0
			for before := made; s.Stats().Groups < groups+2; made++ {
				calls = made - before + 1
				if _, err := l.TakeAll(ctx, take("a0"), take("b0")); err != nil {
					panic(err)
				}
			}
			continue
		}
		if _, err := l.TakeAll(ctx, take("a0"), take("b0")); err != nil {
			panic(err)
		}
	}
}

// childFull takes from new keys until a write fails.
func childFull(l *dipwell.Limiter) {
	for i := range 100_000 {
		if _, err := l.Take(ctx, "slow", fmt.Sprintf("%0400d", i), 1); err != nil {
			fmt.Println("error", err)
			fmt.Println("granted", i)
			return
		}
	}
}

// run starts a child and returns the lines that it prints until it exits, or is
// killed after a time.
func run(t *testing.T, what, path string, kill time.Duration) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], path)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if kill > 0 {
		time.AfterFunc(kill, func() { _ = cmd.Process.Kill() })
	}
	b, err := io.ReadAll(bufio.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// TestKill kills a process at random times. What it printed is in the file, and calls
// of two keys were charged to both or to none.
func TestKill(t *testing.T) {
	for what, rounds := range map[string]int{"each": 8, "every": 8} {
		t.Run(what, func(t *testing.T) {
			path := fresh(t)
			kept := map[string]int64{}
			for round := range 20 * rounds {
				if round >= rounds && kept["0"] > 0 {
					break
				}
				most := 400 * (1 + round/rounds) // more on a busy machine, which is slow to start a process
				for _, line := range run(t, what, path, time.Duration(20+rand.IntN(most))*time.Millisecond) {
					if who, ok := strings.CutPrefix(line, "kept "); ok {
						kept[who]++
					}
				}
				s := open(t, path, Config{})
				l, err := dipwell.New(s, slow)
				if err != nil {
					t.Fatal(err)
				}
				for i := range 8 {
					a, b, who := used(t, l, fmt.Sprint("a", i)), used(t, l, fmt.Sprint("b", i)), fmt.Sprint(i)
					if a != b || a < kept[who] {
						t.Errorf("caller %s: %d and %d are charged after %d were kept", who, a, b, kept[who])
					}
					if what == "each" {
						if a > kept[who]+1 {
							t.Errorf("caller %s: %d are charged, and %d were answered", who, a, kept[who])
						}
						kept[who] = a
					}
				}
				if err = s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			t.Log(kept)
			if kept["0"] == 0 {
				t.Error("nothing was kept")
			}
		})
	}
}

func used(t *testing.T, l *dipwell.Limiter, key string) int64 {
	t.Helper()
	d, err := l.Check(ctx, "slow", key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return slow.Burst - d.Remaining
}

// TestFileSizeLimit sets a limit on the size of files, as of a full disk.
func TestFileSizeLimit(t *testing.T) {
	path := fresh(t)
	lines := run(t, "fsize", path, 0)
	var granted int
	if len(lines) != 2 || !strings.Contains(lines[0], store.ErrStore.Error()) || !strings.Contains(lines[0], path) {
		t.Fatalf("%q", lines)
	}
	if _, err := fmt.Sscanf(lines[1], "granted %d", &granted); err != nil || granted == 0 {
		t.Fatal(lines, err)
	}
	t.Log(lines[0])
	s := open(t, path, Config{})
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	for i := range granted {
		if n := used(t, l, fmt.Sprintf("%0400d", i)); n != 1 {
			t.Fatalf("key %d: %d used; it was answered", i, n)
		}
	}
}

// TestOneProcess checks that a second process cannot open the file.
func TestOneProcess(t *testing.T) {
	path := fresh(t)
	s := open(t, path, Config{})
	lines := run(t, "each", path, 0)
	if want := fmt.Sprintf("in use by process %d", os.Getpid()); len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("%q; want %s", lines, want)
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if again, err := Open(link, Config{}); err == nil {
		t.Error("opened twice", again.Close())
	} else {
		t.Log(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, link, Config{})
}
