package filestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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
	l, err := dipwell.New(s, slow, held)
	if err != nil {
		panic(err)
	}
	switch what {
	case "holds":
		childHolds(l)
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

// held is a limit for holds, of which no token comes back by time in a test.
var held = store.Limit{Name: "held", Rate: 1, Period: 2 * time.Hour, Burst: 1_000_000, MaxDebt: store.NoDebt}

const (
	holdCost, holdActual = 10, 3
	holders              = 4
)

// childHolds prints each hold, and each settle, after its answer.
func childHolds(l *dipwell.Limiter) {
	var wg sync.WaitGroup
	for i := range holders {
		wg.Go(func() {
			for {
				d, err := l.Hold(ctx, time.Hour, "", dipwell.Take{Limit: "held", Key: fmt.Sprint("h", i), Cost: holdCost})
				if err != nil || !d.Allowed {
					panic(fmt.Sprint(d, err))
				}
				fmt.Fprint(os.Stdout, "held ", i, " ", d.Hold, "\n")
				if _, err = l.Settle(ctx, d.Hold, holdActual); err != nil {
					panic(err)
				}
				fmt.Fprint(os.Stdout, "settled ", i, " ", d.Hold, "\n")
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
		if now := s.writer.groups.Load(); now >= groups+2 {
			os.Stdout.WriteString(strings.Repeat("kept 0\n", calls))
			groups, calls = now, 0
			for before := made; s.writer.groups.Load() < groups+2; made++ {
				calls = made - before + 1
				if _, err := l.TakeAll(ctx, take("a0"), take("b0")); err != nil {
					panic(err)
				}
			}
			groups = s.writer.groups.Load() // the last calls may be in the group after the next
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

// TestKillHolds kills a process at random times, between a hold and its settle, or while
// one of them is written. What was answered is in the file, and each hold is settled once.
func TestKillHolds(t *testing.T) {
	path := fresh(t)
	var settled [holders]int64 // in all
	unsettled, rounds := 0, 8
	for round := 0; round < rounds || unsettled == 0 && round < 20*rounds; round++ {
		most := 400 * (1 + round/rounds)
		last := map[string][2]string{} // by holder: what was printed last
		for _, line := range run(t, "holds", path, time.Duration(20+rand.IntN(most))*time.Millisecond) {
			var what, who, id string
			if n, _ := fmt.Sscan(line, &what, &who, &id); n < 3 {
				continue
			}
			if last[who] = [2]string{what, id}; what == "settled" {
				settled[who[0]-'0']++
			}
		}
		s := open(t, path, Config{})
		l, err := dipwell.New(s, held)
		if err != nil {
			t.Fatal(err)
		}
		for i := range holders {
			unsettled += endHolder(t, l, i, last[fmt.Sprint(i)], &settled[i])
		}
		if err = s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v holds were settled; %d were open when a process was killed", settled, unsettled)
	if unsettled == 0 {
		t.Error("no hold was open")
	}
}

// endHolder checks what a holder that was killed left, settles it, and returns how many
// holds that were. last is what it printed last; settled is how many it has settled.
func endHolder(t *testing.T, l *dipwell.Limiter, who int, last [2]string, settled *int64) (live int) {
	t.Helper()
	key := fmt.Sprint("h", who)
	list, err := l.Holds(ctx, "held", key)
	if err != nil || len(list) > 1 {
		t.Fatalf("holder %d: live holds %v, %v", who, list, err)
	}
	count := func() int64 {
		d, err := l.Check(ctx, "held", key, 0)
		if err != nil {
			t.Fatal(err)
		}
		return held.Burst - d.Remaining
	}
	before := count()
	if last[0] != "" { // the settle of a hold that was printed may have been answered or not
		d, err := l.Settle(ctx, last[1], holdActual)
		lives := len(list) == 1 && list[0].ID == last[1]
		if err != nil || d.Repeated == lives || last[0] == "settled" && lives {
			t.Fatalf("holder %d: settle after %v: %+v, %v; live: %v", who, last, d, err, list)
		}
		if last[0] == "held" {
			*settled++
		}
	}
	for _, h := range list { // made, and not printed
		if h.ID == last[1] {
			continue
		}
		if d, err := l.Settle(ctx, h.ID, holdActual); err != nil || d.Repeated || h.Tokens != holdCost {
			t.Fatalf("holder %d: settle of %+v: %+v, %v", who, h, d, err)
		}
		*settled++
	}
	if after := count(); before-after != int64(len(list))*(holdCost-holdActual) || after != *settled*holdActual {
		t.Fatalf("holder %d: %d tokens are used, %d after %v were settled; %d settled in all", who, before, after, list, *settled)
	}
	if last[0] != "" {
		if _, err = l.Settle(ctx, last[1], holdActual+1); !errors.Is(err, store.ErrHoldConflict) {
			t.Errorf("holder %d: another settle: %v", who, err)
		}
	}
	return len(list)
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

// TestOneProcess checks that a second process cannot open the file, by none of its names, and
// neither can the same process, also after attempts and after Inspect.
func TestOneProcess(t *testing.T) {
	path := fresh(t)
	s := open(t, path, Config{})
	symbolic, hard := path+".symbolic", filepath.Join(t.TempDir(), "hard.db")
	if err := os.Symlink(path, symbolic); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, hard); err != nil {
		t.Fatal(err)
	}
	names := []string{path, symbolic, hard}
	for range 2 {
		for _, name := range names {
			want := fmt.Sprintf("in use by process %d", os.Getpid())
			if lines := run(t, "each", name, time.Minute); len(lines) != 1 || !strings.Contains(lines[0], want) {
				t.Errorf("%s: another process says %q; want %s", name, lines, want)
			}
			if again, err := Open(name, Config{}); err == nil {
				t.Error("opened twice", again.Close())
			} else if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %s", name, err, want)
			}
			if c, err := Inspect(name); err != nil || !c.InUse || c.PID != os.Getpid() {
				t.Errorf("%s: Inspect returns %+v, %v", name, c, err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := Inspect(path); err != nil || c.InUse {
		t.Errorf("after Close, Inspect returns %+v, %v", c, err)
	}
	for _, name := range names {
		if err := open(t, name, Config{}).Close(); err != nil {
			t.Error(err)
		}
	}
}
