package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const answer = `{"allowed":true,"limit":"api","key":"user:123456","cost":1,"granted":1,"capacity":1000000000,"remaining":999999999,"retry_after_us":null,"reset_after_us":10000,"delay_us":0,"shadow":false,"source":"store"}`

// noop serves requests without a decision: it measures the cost of net/http.
func noop(addr string) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/take", func(w http.ResponseWriter, r *http.Request) {
		var buf [1024]byte
		for {
			if _, err := r.Body.Read(buf[:]); err != nil {
				break
			}
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	})
	panic(http.ListenAndServe(addr, mux))
}

// upsert adds one to a counter up to a limit, which the keys of the limit
// "drained" have reached.
const upsert = `insert into counters as c (key, n) values ($1, 1)
on conflict (key) do update set n = c.n + 1 where c.n < 1000000000
returning n`

const (
	tables = `create table if not exists counters (key text primary key, n bigint not null) with (fillfactor = 70)`
	fill   = `insert into counters select 'drained/user:' || k, 1000000000 from generate_series(0, 9999) as k`
)

// counter is the simplest handler with a database: it reads the body and runs
// one statement, over up to 32 connections.
func counter(addr, dsn string) {
	ctx := context.Background()
	config := must(pgxpool.ParseConfig(dsn))
	config.MaxConns = 32
	pool := must(pgxpool.NewWithConfig(ctx, config))
	for _, sql := range []string{tables, fill} {
		must(pool.Exec(ctx, sql))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/take", func(w http.ResponseWriter, r *http.Request) {
		var take struct {
			Limit, Key string
			Cost       int64
		}
		if err := json.NewDecoder(r.Body).Decode(&take); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var n int64
		err := pool.QueryRow(r.Context(), upsert, take.Limit+"/"+take.Key).Scan(&n)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			w.WriteHeader(http.StatusTooManyRequests)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	})
	panic(http.ListenAndServe(addr, mux))
}
