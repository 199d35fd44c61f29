// Command lease measures leases: the decisions a second of one hot key over PostgreSQL
// against memstore, on one processor and on two, and what four processes are granted
// that share a key over PostgreSQL and over Redis, also when one is killed or stands
// still. The command starts the servers itself.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

func main() {
	if text := os.Getenv(workerSetting); text != "" {
		var w worker
		check(json.Unmarshal([]byte(text), &w))
		w.run()
		return
	}
	out := flag.String("o", "", "write the tables to this file as well")
	rounds := flag.Int("rounds", 5, "rounds of the hot key")
	seconds := flag.Int("seconds", 20, "length of each run of four processes")
	only := flag.String("only", "", "hot or processes; default both")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	pg := must(pgtest.New("max_connections=200"))
	defer pg.Close()
	postgres := fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", pg.Port, url.QueryEscape(pg.Dir))
	migrate(postgres)
	report.Header(w, "Leases", "make bench-lease")
	if *only != "processes" {
		hot(w, postgres, *rounds)
	}
	if *only != "hot" {
		redis := must(redistest.New())
		defer redis.Close()
		processes(w, map[string]string{"PostgreSQL": postgres, "Redis": redis.URL()}, *seconds)
	}
}

func migrate(url string) {
	pool := must(pgxpool.New(context.Background(), url))
	defer pool.Close()
	must(pgstore.Migrate(context.Background(), pool, pgstore.MigrateOptions{Tables: "unlogged"}))
}

// openStore opens a store by its URL.
func openStore(url string) store.Store {
	ctx := context.Background()
	if strings.HasPrefix(url, "redis") {
		client, c, err := redisstore.Client(url, redisstore.Config{})
		check(err)
		return must(redisstore.New(ctx, client, c))
	}
	pool := must(pgxpool.New(ctx, url))
	return must(pgstore.New(ctx, pool, pgstore.Config{}))
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
