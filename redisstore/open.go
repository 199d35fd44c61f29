package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Bounds for a connection, if the URL does not set them.
const (
	dialTimeout = 2 * time.Second
	callTimeout = 3 * time.Second // longest time for an answer; the context of a call may end sooner
	maxPool     = 10000           // most connections to one server, or to each node of a cluster; the client's default is ten per CPU
)

// An evictionError says that the server may evict buckets when its memory is full.
type evictionError struct{ policy string }

func (e *evictionError) Error() string {
	return fmt.Sprintf("maxmemory-policy is %s: when its memory is full the server evicts buckets, and an evicted bucket is a full one; "+
		"set maxmemory-policy noeviction, or accept it with eviction=allow", e.policy)
}

// formatLua makes the server print the largest number as the scripts do. Lua's %d takes a
// third of the time of %.0f, and is as exact if C's long has 64 bits.
const formatLua = "return string.format('%d', 9007199254740991)"

// checkServer returns an error for a server that cannot count exactly, or may evict
// buckets. Policies that evict only keys with an expiry are rejected too, because all
// buckets expire.
func (s *Store) checkServer(ctx context.Context, c *Config) error {
	return s.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		if largest, err := node.Eval(ctx, formatLua, nil).Text(); err != nil {
			return err
		} else if largest != "9007199254740991" {
			return fmt.Errorf("this server's Lua has no 64-bit integers: it prints 2^53-1 as %s", largest)
		}
		policy, err := node.ConfigGet(ctx, "maxmemory-policy").Result()
		switch name := policy["maxmemory-policy"]; {
		case replied(err, "NOPERM", "ERR unknown command", "NOAUTH"), err == nil && name == "":
			c.OnError(errors.New("redis: maxmemory-policy cannot be read here (CONFIG GET is refused); make sure that it is noeviction, for an evicted bucket is a full one"))
			return nil
		case err != nil:
			return err
		case name == "noeviction":
			return nil
		case c.AllowEviction:
			c.OnError(fmt.Errorf("redis: %w; it was accepted", &evictionError{name}))
			return nil
		default:
			return &evictionError{name}
		}
	})
}

// Open makes a client from a URL and opens a store over it; the store owns the
// client. Forms:
//
//	redis://[user[:password]@]host[:port][/db]     one server; rediss: with TLS
//	redis+cluster://h1[:port],h2[:port]            a cluster; rediss+cluster
//	redis+sentinel://h1[:port],h2[:port]/master[/db]   behind Sentinels; rediss+sentinel
//
// Parameters after ? are those of Config (prefix, hash_tag and eviction=allow), ca (a PEM
// file), pool_size, dial_timeout, timeout (the longest wait for an answer), and for
// Sentinels sentinel_user and sentinel_password. Settings that the URL leaves out are
// taken from c. The client never repeats a call that may have charged.
func Open(ctx context.Context, address string, c Config) (*Store, error) {
	db, c, err := Client(address, c)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, db, c)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Client returns the client that Open would use, and c with the settings of the URL.
// Client does not connect, so an error is about the URL.
func Client(address string, c Config) (redis.UniversalClient, Config, error) {
	o, c, err := parse(address, c)
	if err != nil {
		return nil, c, fmt.Errorf("redis: %w", err)
	}
	switch {
	case o.IsClusterMode:
		cluster := o.Cluster()
		cluster.DisableRoutingPolicies = true
		return redis.NewClusterClient(cluster), c, nil
	case o.MasterName != "":
		return redis.NewFailoverClient(o.Failover()), c, nil
	}
	return redis.NewClient(o.Simple()), c, nil
}

func parse(address string, c Config) (*redis.UniversalOptions, Config, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	kind, secure := strings.CutPrefix(scheme, "rediss")
	if !secure {
		kind, ok = strings.CutPrefix(scheme, "redis")
	}
	if !ok || kind != "" && kind != "+cluster" && kind != "+sentinel" {
		return nil, c, fmt.Errorf("the scheme %q is not one of redis, rediss, redis+cluster, rediss+cluster, redis+sentinel, rediss+sentinel", scheme)
	}
	o := &redis.UniversalOptions{
		IsClusterMode: kind == "+cluster", ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
		DialTimeout: dialTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout, PoolTimeout: callTimeout,
		ClientName:               "dipwell",
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, password, _ := strings.Cut(hosts[:at], ":")
		var err1, err2 error
		o.Username, err1 = url.PathUnescape(user)
		o.Password, err2 = url.PathUnescape(password)
		if hosts = hosts[at+1:]; err1 != nil || err2 != nil {
			return nil, c, errors.New("the user or password has a % that is not an escape; write % as %25")
		}
	}
	port := "6379"
	if kind == "+sentinel" {
		port = "26379"
		o.MasterName, path, _ = strings.Cut(path, "/")
		if o.MasterName == "" {
			return nil, c, errors.New("the name of the master is missing: redis+sentinel://h1,h2/master")
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" {
			return nil, c, errors.New("a host is missing")
		}
		if colon := strings.LastIndexByte(host, ':'); colon < 0 || strings.HasSuffix(host, "]") {
			host += ":" + port
		}
		o.Addrs = append(o.Addrs, host)
	}
	if kind == "" && len(o.Addrs) > 1 {
		return nil, c, errors.New("several hosts: write redis+cluster://h1,h2 for a cluster, or redis+sentinel://h1,h2/master")
	}
	if path != "" {
		db, err := strconv.ParseUint(path, 10, 16)
		if err != nil && strings.Contains(path, "@") {
			return nil, c, errUnescaped
		}
		if err != nil || kind == "+cluster" && db != 0 {
			return nil, c, fmt.Errorf("%q is not the number of a database (a cluster has only 0)", path)
		}
		o.DB = int(db)
	}
	if secure {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		if kind == "" {
			o.TLSConfig.ServerName, _, _ = strings.Cut(hosts, ":")
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, c, fmt.Errorf("the part after ?: %w", err)
	}
	for name, list := range values {
		if len(list) > 1 {
			return nil, c, fmt.Errorf("%s is given twice", name)
		}
		if err := setParameter(o, &c, name, list[0]); errors.Is(err, errUnknown) && strings.Contains(query, "@") {
			return nil, c, errUnescaped
		} else if err != nil {
			return nil, c, fmt.Errorf("%s: %w", name, err)
		}
	}
	return o, c, c.check()
}

var (
	errUnknown = errors.New("is not known; there are prefix, hash_tag, eviction, ca, pool_size, dial_timeout, timeout, sentinel_user, sentinel_password")

	// Text after / or ? may be part of a password, so the error must not contain it.
	errUnescaped = errors.New("the user or password has a / or ?; write / as %2F and ? as %3F")
)

func setParameter(o *redis.UniversalOptions, c *Config, name, value string) (err error) {
	switch name {
	case "prefix":
		c.Prefix = value
	case "hash_tag":
		c.HashTag = value
	case "eviction":
		if c.AllowEviction = value == "allow"; !c.AllowEviction && value != "refuse" {
			err = fmt.Errorf("%q is neither allow nor refuse", value)
		}
	case "pool_size":
		if o.PoolSize, err = strconv.Atoi(value); err != nil || o.PoolSize < 1 || o.PoolSize > maxPool {
			err = fmt.Errorf("%q is not between 1 and %d", value, maxPool)
		}
	case "dial_timeout":
		o.DialTimeout, err = positive(value)
	case "timeout":
		if o.ReadTimeout, err = positive(value); err == nil {
			o.WriteTimeout, o.PoolTimeout = o.ReadTimeout, o.ReadTimeout
		}
	case "ca":
		return trust(o, value)
	case "sentinel_user":
		o.SentinelUsername = value
	case "sentinel_password":
		o.SentinelPassword = value
	default:
		err = errUnknown
	}
	return err
}

// trust replaces the system's certificate authorities by those in a PEM file.
func trust(o *redis.UniversalOptions, file string) error {
	if o.TLSConfig == nil {
		return errors.New("is for rediss://")
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	o.TLSConfig.RootCAs = x509.NewCertPool()
	if !o.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", file)
	}
	return nil
}

func positive(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a length of time such as 500ms or 2s", value)
	}
	return d, nil
}
