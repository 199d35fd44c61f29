package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/server"
)

type ServeCmd struct {
	Config       string `placeholder:"FILE" env:"DIPWELL_CONFIG" help:"YAML file. It is read again when it changes, and on SIGHUP."`
	kong.Plugins        // the result of serveFlags, embedded as flags
}

// gcPercent is GOGC unless the environment sets it. Buckets are outside the heap, which is a few
// megabytes, so the process stays below 40 MB at 10,000 keys with any store.
const gcPercent = 150

// memoryLimit is GOMEMLIMIT unless the environment sets it. What clients can make the
// process keep on its heap stays below it; without it garbage would add half as much again.
const memoryLimit = 1 << 30

// Run opens everything, serves until e.ctx ends, and closes in reverse order.
func (c *ServeCmd) Run(e *env) (err error) {
	log := &logger{to: e.stderr}
	given := &settings{}
	_ = c.overwrite(given) // only for the format of the log while the file is read; settings reports the errors
	log.setFormat(given.LogFormat)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // SIGHUP reloads files, and must not end a service without files either
	defer signal.Stop(hangups)
	defer func() { // without JSON, run prints the error that ends the command
		if err != nil && log.json != nil {
			log.json.Error(err.Error())
			err = errLogged
		}
	}()
	set, err := c.settings()
	if err != nil {
		return err
	}
	log.setFormat(set.LogFormat)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	report := func(err error) { log.error(fmt.Errorf("store: %w", err)) }
	o := storeOptions{maxKeys: set.MaxKeys, maxKeyBytes: set.MaxKeyBytes, maxHolds: set.MaxHolds, maxOverrides: set.MaxOverrides, denyMaxAge: set.DenyMaxAge, wait: set.WaitForStore, keySecret: set.keySecret, shadow: set.Shadow, tally: newTally(report),
		report: report, note: func(text string) { log.info("store: %s", text) }}
	hasher, err := set.hasher()
	if err != nil {
		return err
	}
	tracer, err := set.trace(e.ctx, hasher, log)
	if err != nil {
		return err
	}
	if tracer != nil {
		o.outer = tracer.Store
		defer func() {
			if err := tracer.Stop(); err != nil {
				log.error(fmt.Errorf("traces: %w", err))
			}
		}()
	}
	stack, err := openStore(e.ctx, set.Store, o)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := stack.Close(); err == nil {
			err = cerr
		}
	}()
	if set.Shadow {
		log.info("shadow mode: nothing is refused")
	}
	limiter, err := dipwell.New(stack.Store)
	if err != nil {
		return err
	}
	s := &service{env: e, cmd: c, logger: log, limiter: limiter, server: server.New(limiter, set.server()), started: set, last: set, tracer: tracer,
		declared: &declared{ctx: e.ctx, limiter: limiter, info: log.info, warn: log.warn, path: c.Config}}
	if stack.Lanes > 0 {
		for _, c := range []prometheus.Collector{o.tally.sizes, o.tally.took, o.tally.failures} {
			s.server.Collect(c)
		}
	}
	s.server.Gauge("dipwell_config_last_reload_failed", "1 if the last reload of the configuration file or of the descriptors failed, and an older configuration is in force.", func() float64 {
		if s.reloadFailed.Load() || s.descriptorsFailed.Load() {
			return 1
		}
		return 0
	})
	s.server.Gauge("dipwell_config_drift", "Limits of the flags and the file that differ in the store or are missing there.", s.declared.drifted)
	s.server.LogRefusals(e.ctx, log.slog(), set.LogRefusals, hasher.Redact)
	defer s.countKeys(set.TopKeys)() // runs before the store is closed
	if err = s.openTLS(set); err != nil {
		return err
	}
	if set.Upstream != "" {
		if s.proxy, err = s.server.Proxy(set.upstream(log.error)); err != nil {
			return err
		}
	}
	if err = s.apply(set); err != nil {
		return err
	}
	if err = s.startRLS(); err != nil {
		return err
	}
	go s.declared.watchDrift()
	if err = s.watch(); err != nil {
		return err
	}
	s.logStart(set)
	listeners, err := s.listen(set)
	if err != nil {
		return err
	}
	defer closeAll(listeners)
	return s.serveAndDrain(listeners)
}

// end ends the counting, and waits until the busiest keys of the last hour are stored.
func (s *service) countKeys(keep int) (end func()) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.env.ctx))
	wait := s.server.CountKeys(ctx, host+":"+strconv.Itoa(os.Getpid()), keep)
	return func() { cancel(); wait() }
}

func (s *service) listen(set *settings) (ls []server.Listener, err error) {
	defer func() {
		if err != nil {
			closeAll(ls)
		}
	}()
	l, err := s.open("listen", set.Listen)
	if err != nil {
		return nil, err
	}
	main := server.Listener{Listener: l, TLS: s.secure("h2", "http/1.1")}
	if s.proxy != nil {
		main.Handler, main.Streams = s.proxy, true
		ls = append(ls, s.announce(main, "proxying "+redact(set.Upstream), false))
	} else {
		main.Handler = s.server.API(set.site(l))
		s.warnIfOpen("listen", l)
		ls = append(ls, s.announce(main, "serving", set.Admin == ""))
	}
	if set.Admin == "" {
		return ls, nil
	}
	if l, err = s.open("admin", set.Admin); err != nil {
		return ls, err
	}
	admin := server.Listener{Listener: l, Handler: s.server.API(server.Site{Loopback: server.IsLoopback(l), Open: slices.Contains(set.OpenListeners, "admin")})}
	if !server.IsLoopback(l) {
		admin.TLS = main.TLS
	}
	s.warnIfOpen("admin", l)
	return append(ls, s.announce(admin, "serving admin calls", true)), nil
}

func (s *service) open(setting, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(s.env.ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return l, nil
}

// announce logs the address of a listener, and that of the page if the listener has it and
// answers admin calls. announce adds spans to the handler if tracing is on.
func (s *service) announce(l server.Listener, what string, page bool) server.Listener {
	at := l.Scheme() + "://" + l.Addr().String()
	pageAt := ""
	if page && (server.IsLoopback(l) || s.started.token != "" || len(s.started.callers) > 0) {
		pageAt = at + "/ui/"
	}
	s.logListening(what, at, pageAt)
	if s.tracer != nil {
		l.Handler = s.tracer.HTTP(l.Handler)
	}
	return l
}

func (s *settings) site(l net.Listener) server.Site {
	return server.Site{Loopback: server.IsLoopback(l), NoAdmin: s.Admin != "", AdminAt: s.Admin,
		Open: slices.Contains(s.OpenListeners, "listen"), NoMetrics: slices.Contains(s.AdminOnly, "metrics"), NoLimits: slices.Contains(s.AdminOnly, "limits")}
}

// warnIfOpen warns if anybody who reaches a listener may use every key.
func (s *service) warnIfOpen(setting string, l net.Listener) {
	if !server.IsLoopback(l) && len(s.started.Callers) == 0 && s.started.ClientCA == "" {
		s.warn("warning: %s: whoever reaches %s may take from every key, because the address is not loopback and there are no callers", setting, l.Addr())
	}
}

func closeAll(ls []server.Listener) {
	for _, l := range ls {
		_ = l.Close() // an error means that the listener is closed already
	}
}

func (s *service) watch() error {
	if s.cmd.Config == "" && len(s.started.tokenFiles()) == 0 {
		return nil
	}
	content := func() string {
		s.changing.Lock()
		paths := s.last.tokenFiles()
		s.changing.Unlock()
		if s.cmd.Config != "" {
			paths = append(paths, s.cmd.Config)
		}
		return config.Content(paths...)
	}
	read := func() error {
		now := *s.started
		err := now.readTokens()
		if err == nil && s.cmd.Config != "" {
			now.Digest, err = config.DigestOf(s.cmd.Config)
		}
		if err != nil || now.Digest != s.started.Digest || now.token != s.started.token || !reflect.DeepEqual(now.callers, s.started.callers) {
			s.reload() // a file has changed since it was read
		}
		return nil
	}
	return s.follow(s.env.ctx, content, read, s.reload)
}

// follow calls read, and reload when content changes and on SIGHUP, one call at a time, until ctx
// ends. The files are watched before they are read, so that no change is missed.
func (s *service) follow(ctx context.Context, content func() string, read func() error, reload func()) error {
	calls := make(chan os.Signal, 1)
	config.Watch(ctx, content, func() {
		select {
		case calls <- syscall.SIGHUP:
		default: // a reload is already pending
		}
	})
	if err := read(); err != nil {
		return err
	}
	signal.Notify(calls, syscall.SIGHUP)
	go func() {
		defer signal.Stop(calls)
		for {
			select {
			case <-calls:
				reload()
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

func (s *service) logStart(set *settings) {
	list := set.names()
	attrs := []any{"version", version(), "store", redact(set.Store), "limits", len(list), "limit_names", list[:min(len(list), maxListed)]}
	if s.cmd.Config != "" {
		attrs = append(attrs, "config", s.cmd.Config)
	}
	s.slog().Info("starting", attrs...)
}

func (s *service) logListening(what, at, page string) {
	if s.json != nil {
		args := []any{"address", at}
		if page != "" {
			args = append(args, "page", page)
		}
		jsonLog(s.env.stdout).Info(what, args...)
		return
	}
	if page != "" {
		page = " (page: " + page + ")"
	}
	fmt.Fprintf(s.env.stdout, "dipwell: %s on %s%s\n", what, at, page)
}

func (s *service) serveAndDrain(listeners []server.Listener) error {
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = s.serve(listeners)
	}()
	select {
	case <-ended:
	case <-s.env.ctx.Done():
	}
	if s.env.ctx.Err() != nil { // also if the server has ended by now
		start := time.Now()
		s.slog().Info("stopping")
		<-ended
		s.slog().Info("stopped", "took", time.Since(start))
	}
	return err
}
