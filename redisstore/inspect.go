package redisstore

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Condition is what one server that decides says of itself.
type Condition struct {
	Addr, Version string
	Role          string // master, or what it is instead
	Policy        string // maxmemory-policy; "": it may not be read
	MaxMemory     int64  // bytes; 0: no bound
	UsedMemory    int64
	Evicted       int64 // keys, since the server began
	Keys          int64 // of this client's database, in a cluster of the node

	AppendOnly   bool
	AppendSync   string // appendfsync
	Snapshots    bool   // RDB files are written by themselves
	SaveFailed   bool   // the last RDB file or append could not be written
	Replicas     int
	Scripts      int    // of this program's scripts, those that the server has ready
	AllScripts   int    // how many there are
	ClusterState string // "": no cluster

	Ahead time.Duration // the server's clock, against this machine's
	Error time.Duration // the most that Ahead can be wrong: half the round trip
}

// clockTries are looks at a clock, of which the quickest counts.
const clockTries = 8

// Inspect looks at every master and changes nothing.
func Inspect(ctx context.Context, db redis.UniversalClient) (list []Condition, err error) {
	var mu sync.Mutex
	s := Store{db: db}
	err = s.each(ctx, func(ctx context.Context, node redis.UniversalClient) error {
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
	if err = c.scripts(ctx, node); err == nil {
		c.Keys, err = node.DBSize(ctx).Result()
	}
	if err == nil || replied(err, "NOPERM") {
		err = c.clock(ctx, node)
	}
	return c, err
}

// info reads what INFO says.
func (c *Condition) info(f map[string]string) {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(f[name], 10, 64) // what is missing is 0
		return n
	}
	c.Version, c.Role, c.Policy = f["redis_version"], f["role"], f["maxmemory_policy"]
	if v := f["valkey_version"]; v != "" {
		c.Version = "Valkey " + v
	}
	c.MaxMemory, c.UsedMemory, c.Evicted = number("maxmemory"), number("used_memory"), number("evicted_keys")
	c.AppendOnly = f["aof_enabled"] == "1"
	c.SaveFailed = f["rdb_last_bgsave_status"] == "err" || c.AppendOnly && (f["aof_last_write_status"] == "err" || f["aof_last_bgrewrite_status"] == "err")
	c.Replicas = int(number("connected_slaves"))
	if f["cluster_enabled"] == "1" {
		c.ClusterState = "1"
	}
}

func (c *Condition) scripts(ctx context.Context, node redis.UniversalClient) error {
	var hashes []string
	for _, s := range []*script{byServer.takeOne, byServer.takeAll, byServer.set, byServer.decide, byServer.cancel, byServer.swap, byServer.define, byServer.lengthen, byServer.now} {
		hashes = append(hashes, s.sha.(string))
	}
	c.AllScripts = len(hashes)
	there, err := node.ScriptExists(ctx, hashes...).Result()
	for _, yes := range there {
		if yes {
			c.Scripts++
		}
	}
	if replied(err, "NOPERM", "ERR unknown") {
		c.Scripts, err = -1, nil
	}
	return err
}

// clock compares clocks. The first round trip may have had to connect.
func (c *Condition) clock(ctx context.Context, node redis.UniversalClient) error {
	for i := range clockTries {
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

// fields reads lines of name:value.
func fields(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[name] = value
		}
	}
	return out
}
