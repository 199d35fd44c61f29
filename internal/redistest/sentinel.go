//go:build unix

package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/procs"
)

// MasterName is the name under which the Sentinels know their master.
const MasterName = "dipwell"

// A Sentinel is three Sentinels that monitor a master with one replica.
type Sentinel struct {
	Nodes     []*Server // at first Nodes[0] is the master and Nodes[1] its replica
	Sentinels []*Server
}

// NewSentinel starts a master, a replica and three Sentinels. The Sentinels
// replace the master after a minute of silence, so that a busy machine causes
// no failover, or after a second once Watch was called.
func NewSentinel(settings ...string) (*Sentinel, error) {
	s := &Sentinel{}
	err := s.start(settings)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// StartSentinel starts Sentinels that are closed when the test ends.
func StartSentinel(t testing.TB, settings ...string) *Sentinel {
	t.Helper()
	return procs.Start(t, ErrMissing, NewSentinel, settings)
}

func (s *Sentinel) start(settings []string) error {
	master, err := New(append([]string{"--repl-diskless-sync-delay", "0"}, settings...)...)
	if err != nil {
		return err
	}
	s.Nodes = append(s.Nodes, master)
	replica, err := New(append([]string{"--replicaof", fmt.Sprintf("127.0.0.1 %d", master.Port)}, settings...)...)
	if err != nil {
		return err
	}
	s.Nodes = append(s.Nodes, replica)
	for range 3 {
		n, err := prepare(nil)
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, n)
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %[3]s 60000\nsentinel failover-timeout %[3]s 5000\n",
			n.Port, n.Dir, MasterName, master.Port)
		if err = os.WriteFile(filepath.Join(n.Dir, "sentinel.conf"), []byte(conf), 0o600); err != nil {
			return err
		}
		if err = n.start("--sentinel"); err != nil {
			return err
		}
	}
	return until("the Sentinels know each other and the replica", func() bool {
		for _, n := range s.Sentinels {
			text := fmt.Sprint(n.Do("info", "sentinel"))
			if !strings.Contains(text, "slaves=1,sentinels=3") {
				return false
			}
		}
		return true
	})
}

// Watch makes the Sentinels replace the master after a second of silence.
func (s *Sentinel) Watch() error {
	for _, n := range s.Sentinels {
		if _, err := n.Do("sentinel", "set", MasterName, "down-after-milliseconds", 1000); err != nil {
			return err
		}
	}
	return nil
}

// URL returns the Sentinels' URL for opening a store.
func (s *Sentinel) URL() string {
	var hosts []string
	for _, n := range s.Sentinels {
		hosts = append(hosts, n.Addr())
	}
	return "redis+sentinel://" + strings.Join(hosts, ",") + "/" + MasterName
}

// Close stops all servers and removes their files.
func (s *Sentinel) Close() {
	for _, n := range append(s.Sentinels, s.Nodes...) {
		n.Close()
	}
}
