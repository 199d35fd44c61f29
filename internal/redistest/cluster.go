//go:build unix

package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/procs"
)

// A Cluster is six Redis nodes on loopback: at first Nodes[0] to [2] are masters,
// each with a third of the slots, and Nodes[3] to [5] their replicas.
type Cluster struct {
	Nodes []*Server
}

const (
	masters = 3
	slots   = 16384
)

// Values of cluster-node-timeout in ms. formingTimeout is used while the
// cluster is created, because nodes meet faster with a short one; longTimeout
// afterwards, so that a busy machine causes no failover; shortTimeout after
// Watch.
const (
	formingTimeout = "2000"
	longTimeout    = "60000"
	shortTimeout   = "2000"
)

// NewCluster starts a cluster and returns when all slots are served and every
// master has its replica. settings are passed to every node.
func NewCluster(settings ...string) (*Cluster, error) {
	c := &Cluster{}
	for range 2 * masters {
		s, err := New(append([]string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", formingTimeout,
			"--appendonly", "no", "--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"}, settings...)...)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Nodes = append(c.Nodes, s)
	}
	if err := c.form(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// StartCluster starts a cluster that is closed when the test ends.
func StartCluster(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	return procs.Start(t, ErrMissing, NewCluster, settings)
}

func (c *Cluster) form() error {
	for i, n := range c.Nodes {
		if _, err := n.Do("cluster", "set-config-epoch", i+1); err != nil {
			return err
		}
		if i < masters {
			if _, err := n.Do("cluster", "addslotsrange", i*slots/masters, (i+1)*slots/masters-1); err != nil {
				return err
			}
		}
		if i > 0 {
			if _, err := n.Do("cluster", "meet", "127.0.0.1", c.Nodes[0].Port); err != nil {
				return err
			}
		}
	}
	if err := c.until("all nodes know each other", func() bool {
		return !slices.ContainsFunc(c.Nodes, func(n *Server) bool { return !strings.Contains(n.clusterInfo(), "cluster_known_nodes:6") })
	}); err != nil {
		return err
	}
	for i := range masters {
		id, err := c.Nodes[i].ID()
		if err != nil {
			return err
		}
		if _, err = c.Nodes[masters+i].Do("cluster", "replicate", id); err != nil {
			return err
		}
	}
	if err := c.until("all nodes know the replicas", func() bool {
		return !slices.ContainsFunc(c.Nodes, func(n *Server) bool {
			v, _ := n.Do("cluster", "nodes")
			text, _ := v.(string)
			return strings.Count(text, "slave") != masters
		})
	}); err != nil {
		return err
	}
	if err := c.WaitHealthy(); err != nil {
		return err
	}
	return c.Unwatch()
}

// Unwatch makes the cluster replace a master only after a minute of silence, as
// at its start.
func (c *Cluster) Unwatch() error { return c.set(longTimeout) }

// Watch makes the cluster replace a master after two seconds of silence.
func (c *Cluster) Watch() error { return c.set(shortTimeout) }

func (c *Cluster) set(timeout string) error {
	for _, n := range c.Nodes {
		if _, err := n.Do("config", "set", "cluster-node-timeout", timeout); err != nil {
			return err
		}
	}
	return nil
}

// WaitHealthy returns when every running node sees all slots served, and every
// running replica is connected to its master.
func (c *Cluster) WaitHealthy() error {
	return c.until("the cluster is healthy", func() bool {
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			if !strings.Contains(n.clusterInfo(), "cluster_state:ok") {
				return false
			}
			info, err := n.Do("info", "replication")
			text, _ := info.(string)
			if err != nil || strings.Contains(text, "role:slave") && !strings.Contains(text, "master_link_status:up") {
				return false
			}
		}
		return true
	})
}

func (c *Cluster) until(what string, done func() bool) error {
	err := until(what, done)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Nodes[0].clusterInfo())
	}
	return err
}

// until waits until a condition is true, at most for startTimeout.
func until(what string, done func() bool) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if done() {
			return nil
		}
	}
	return fmt.Errorf("redis: waited in vain until %s", what)
}

func (s *Server) clusterInfo() string {
	info, _ := s.Do("cluster", "info")
	text, _ := info.(string)
	return text
}

// ID returns a node's id in its cluster.
func (s *Server) ID() (string, error) {
	v, err := s.Do("cluster", "myid")
	id, _ := v.(string)
	return id, err
}

// IsMaster reports whether the node considers itself a master.
func (s *Server) IsMaster() bool {
	v, err := s.Do("role")
	role, _ := v.([]any)
	return err == nil && len(role) > 0 && role[0] == "master"
}

// URL returns the cluster's URL for opening a store.
func (c *Cluster) URL() string { return "redis+cluster://" + strings.Join(c.Addrs(), ",") }

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() (out []string) {
	for _, n := range c.Nodes {
		out = append(out, n.Addr())
	}
	return out
}

// Owner returns the running master that serves a slot and its running replicas,
// according to each node itself: the view of other nodes is delayed, and
// CLUSTER SLOTS leaves out replicas with an unknown offset.
func (c *Cluster) Owner(slot int) (master *Server, replicas []*Server, err error) {
	var id string
	newest := int64(-1)
	followers := map[*Server]string{}
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		self := n.self()
		if len(self) < 8 {
			continue
		}
		epoch, _ := strconv.ParseInt(self[6], 10, 64)
		switch {
		case strings.Contains(self[2], "slave"):
			followers[n] = self[3]
		case epoch > newest && slices.ContainsFunc(self[8:], func(r string) bool { return inRange(r, slot) }):
			master, id, newest = n, self[0], epoch
		}
	}
	if master == nil {
		return nil, nil, fmt.Errorf("nobody serves slot %d", slot)
	}
	for _, n := range c.Nodes {
		if followers[n] == id {
			replicas = append(replicas, n)
		}
	}
	return master, replicas, nil
}

// self returns a node's own line of CLUSTER NODES: id, address, flags, master,
// ping, pong, epoch, link, ranges of slots.
func (s *Server) self() []string {
	v, _ := s.Do("cluster", "nodes")
	text, _ := v.(string)
	for line := range strings.Lines(text) {
		if strings.Contains(line, "myself") {
			return strings.Fields(line)
		}
	}
	return nil
}

func inRange(r string, slot int) bool {
	low, high, two := strings.Cut(r, "-")
	from, err := strconv.Atoi(low)
	to := from
	if two && err == nil {
		to, err = strconv.Atoi(high)
	}
	return err == nil && from <= slot && slot <= to
}

// SlotOf returns the cluster slot of a key.
func (c *Cluster) SlotOf(key string) (int, error) {
	v, err := c.Nodes[0].Do("cluster", "keyslot", key)
	n, _ := v.(int64)
	return int(n), err
}

// Promote makes a replica the master by a coordinated failover, without losing
// writes. Promote returns when the node is a master.
func (c *Cluster) Promote(replica *Server) error {
	if _, err := replica.Do("cluster", "failover"); err != nil {
		return err
	}
	id, err := replica.ID()
	if err != nil {
		return err
	}
	return c.until("all nodes know the new master", func() bool {
		count := 0
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			if n.IsMaster() {
				count++
			}
			v, _ := n.Do("cluster", "nodes")
			text, _ := v.(string)
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, id) && !strings.Contains(line, "master") {
					return false
				}
			}
		}
		return count <= masters && replica.IsMaster()
	})
}

// MoveSlot moves a slot with its keys to another master, as redis-cli --cluster
// reshard does, and calls each, if not nil, after every key.
func (c *Cluster) MoveSlot(slot int, to *Server, each func()) error {
	from, _, err := c.Owner(slot)
	if err != nil || from == to {
		return err
	}
	fromID, err1 := from.ID()
	toID, err2 := to.ID()
	if err1 != nil || err2 != nil {
		return fmt.Errorf("%w, %w", err1, err2)
	}
	if _, err = to.Do("cluster", "setslot", slot, "importing", fromID); err != nil {
		return err
	}
	if _, err = from.Do("cluster", "setslot", slot, "migrating", toID); err != nil {
		return err
	}
	for {
		v, err := from.Do("cluster", "getkeysinslot", slot, 10)
		if err != nil {
			return err
		}
		keys, _ := v.([]any)
		if len(keys) == 0 {
			break
		}
		for _, key := range keys {
			if _, err = from.Do("migrate", "127.0.0.1", to.Port, key, 0, 5000); err != nil {
				return err
			}
			if each != nil {
				each()
			}
		}
	}
	for _, n := range append([]*Server{to, from}, c.Nodes...) {
		if n.Running() && n.IsMaster() {
			if _, err = n.Do("cluster", "setslot", slot, "node", toID); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close stops all nodes and removes their files.
func (c *Cluster) Close() {
	for _, n := range c.Nodes {
		n.Close()
	}
}
