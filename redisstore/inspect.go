package redisstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Condition is the state of one master, as found by Inspect.
type Condition struct {
	Addr    string // host:port
	Version string // version of Redis, or "Valkey " and its version
	Role    string // "master", or another role that the server reports
	Policy  string // setting maxmemory-policy; "" if it may not be read

	AppendOnly   bool   // the append-only file is on; without it a crash loses what the last RDB file lacks
	AppendSync   string // appendfsync
	Snapshots    bool   // RDB files are saved automatically
	ClusterState string // cluster_state of the server; "" without a cluster

	Ahead time.Duration // by how much the server's clock is ahead of this machine's
	Error time.Duration // largest possible error of Ahead: half the round trip
}

// clockSamples is the number of readings of a clock; the fastest one counts.
const clockSamples = 8

// Inspect reads the state of every master and changes nothing. Inspect needs no store. A
// value that the user may not read is zero.
func Inspect(ctx context.Context, db redis.UniversalClient) (list []Condition, err error) {
	var mu sync.Mutex
	s := Store{db: db}
	err = s.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		c, err := inspect(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		list = append(list, c)
		return err
	})
	return list, err
}

func inspect(ctx context.Context, node redis.UniversalClient) (c Condition, err error) {
	if n, ok := node.(*redis.Client); ok {
		c.Addr = n.Options().Addr
	}
	text, err := node.Info(ctx).Result()
	if err != nil && !replied(err, "NOPERM", "ERR unknown command") {
		return c, err
	}
	c.info(fields(text))
	if c.Role == "" {
		c.Role = "unknown"
	}
	for name, to := range map[string]*string{"maxmemory-policy": &c.Policy, "appendfsync": &c.AppendSync} {
		if v, err := node.ConfigGet(ctx, name).Result(); err == nil && v[name] != "" {
			*to = v[name]
		}
	}
	if v, err := node.ConfigGet(ctx, "save").Result(); err == nil {
		c.Snapshots = v["save"] != ""
	}
	if c.ClusterState == "1" {
		if text, err = node.ClusterInfo(ctx).Result(); err != nil {
			return c, err
		}
		c.ClusterState = fields(text)["cluster_state"]
	}
	return c, c.clock(ctx, node)
}

// info decodes the reply of INFO.
func (c *Condition) info(f map[string]string) {
	c.Version, c.Role, c.Policy = f["redis_version"], f["role"], f["maxmemory_policy"]
	if v := f["valkey_version"]; v != "" {
		c.Version = "Valkey " + v
	}
	c.AppendOnly = f["aof_enabled"] == "1"
	if f["cluster_enabled"] == "1" {
		c.ClusterState = "1"
	}
}

// clock compares the server's clock with this machine's. The first round trip may include
// connecting.
func (c *Condition) clock(ctx context.Context, node redis.UniversalClient) error {
	for i := range clockSamples {
		start := time.Now()
		at, err := node.Time(ctx).Result()
		if err != nil {
			return err
		}
		if took := time.Since(start); i == 0 || took/2 < c.Error {
			c.Ahead, c.Error = at.Sub(start.Add(took/2)), took/2+time.Microsecond
		}
	}
	return nil
}

// fields decodes lines of name:value.
func fields(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[name] = value
		}
	}
	return out
}
