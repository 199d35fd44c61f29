package main

const (
	faster = "dipwell is × faster"
	takeIt = "Limiter.Take ÷ it"
	spent  = "its µs ÷ ours"
	rival  = "redis_rate"
	upon   = "× the first"
	serve  = "dipwell serve, POST /v1/take"
)

var (
	controls = []string{"dipwell", "(loop only)"} // of memory.md
	ours     = []string{"dipwell's statement", "Limiter.Take"}
)

// at1to32 returns the headings of the tables with 1, 8 and 32 clients.
func at1to32(durability string) []string {
	return []string{"1 client, " + durability, "8 clients, " + durability, "32 clients, " + durability}
}

// quotes are the rows of bench/results/README.md, in its order. Quotes
// leave out controls that decide nothing and dipwell's other contenders.
var quotes = []quote{
	{what: "memory: one hot key", file: "memory.md", sections: []string{"One hot key"}, column: faster, except: controls},
	{readme: "in memory, 10,000 keys", what: "memory: 10,000 keys", file: "memory.md", sections: []string{"10,000 keys"}, column: faster, except: controls},
	{what: "memory: 1,000,000 keys", file: "memory.md", sections: []string{"1,000,000 keys"}, column: faster, except: controls},
	{what: "memory: keys seen for the first time", file: "memory.md", sections: []string{"Keys seen for the first time"}, column: faster, except: controls},

	{readme: "on PostgreSQL, 1 caller of `dipwell serve`", what: "PostgreSQL, as `dipwell serve` asks it: 1 caller", tables: "logged", file: "postgres/stack.md", sections: []string{"1 caller, 10,000 keys"}, column: "the stack of serve ÷ it", spent: spent, except: ours},
	{what: "PostgreSQL, as `dipwell serve` asks it: 32 callers", tables: "logged", file: "postgres/stack.md", sections: []string{"32 callers, 10,000 keys"}, column: "the stack of serve ÷ it", spent: spent, except: ours},
	{readme: "on PostgreSQL, 512 callers of `dipwell serve`", what: "PostgreSQL, as `dipwell serve` asks it: 512 callers", tables: "logged", file: "postgres/stack.md", sections: []string{"512 callers, 10,000 keys"}, column: "the stack of serve ÷ it", spent: spent, except: ours},
	{what: "PostgreSQL, single decisions, 1 to 32 clients", tables: "logged", file: "postgres/single.md", sections: at1to32("logged"), column: takeIt, except: ours},
	{what: "PostgreSQL, single decisions, 1 to 32 clients", tables: "unlogged", file: "postgres/single.md", sections: at1to32("unlogged"), column: takeIt, except: ours},
	{what: "PostgreSQL, keys seen for the first time", tables: "logged", file: "postgres/fresh.md", sections: at1to32("logged"), column: takeIt, spent: spent},
	{what: "PostgreSQL, keys seen for the first time", tables: "unlogged", file: "postgres/fresh.md", sections: at1to32("unlogged"), column: takeIt, spent: spent},
	{what: "PostgreSQL, 90 % of the calls refused", tables: "logged", file: "postgres/refusals.md", sections: at1to32("logged"), column: takeIt, spent: spent},
	{what: "PostgreSQL, 90 % of the calls refused", tables: "unlogged", file: "postgres/refusals.md", sections: at1to32("unlogged"), column: takeIt, spent: spent},
	{what: "PostgreSQL, Zipf(1.1) over a million keys", tables: "logged", file: "postgres/zipf.md", sections: at1to32("logged"), column: takeIt, spent: spent},
	{what: "PostgreSQL, Zipf(1.1) over a million keys", tables: "unlogged", file: "postgres/zipf.md", sections: at1to32("unlogged"), column: takeIt, spent: spent},
	{what: "PostgreSQL, windows of an hour", tables: "logged", file: "postgres/windows.md", sections: at1to32("logged"), column: "Limiter.Take, window ÷ it", spent: spent, rows: []string{"bare counter upsert a window"}},
	{what: "PostgreSQL, windows of an hour", tables: "unlogged", file: "postgres/windows.md", sections: at1to32("unlogged"), column: "Limiter.Take, window ÷ it", spent: spent, rows: []string{"bare counter upsert a window"}},
	{what: "PostgreSQL, two limits in one call", tables: "logged", file: "postgres/groups.md", sections: at1to32("logged"), column: "TakeAll of 2 ÷ it", spent: spent, rows: []string{"by hand, 2 counters in one trip"}},
	{what: "PostgreSQL, two limits in one call", tables: "unlogged", file: "postgres/groups.md", sections: at1to32("unlogged"), column: "TakeAll of 2 ÷ it", spent: spent, rows: []string{"by hand, 2 counters in one trip"}},
	{what: "Redis, single calls, 1 to 256 goroutines", file: "redis.md", sections: []string{"10,000 keys, 1 goroutine", "10,000 keys, 64 goroutines", "10,000 keys, 256 goroutines"}, column: "× redis_rate", rows: []string{"dipwell on Redis"}, against: rival},
	{readme: "on Redis, calls sent together", what: "Redis, coalesced", file: "redis.md", sections: []string{"10,000 keys, 1 goroutine", "10,000 keys, 64 goroutines", "10,000 keys, 256 goroutines", "One hot key, 256 goroutines"}, column: "× redis_rate", rows: []string{"dipwell on Redis, coalesced"}, against: rival},

	{what: "a file, `durability=each`, 1 goroutine", file: "file.md", sections: []string{"2,000 busy keys, 1 goroutine", "keys seen for the first time, 1 goroutine", "90 % of the calls refused, 1 goroutine"}, column: "filestore ÷ it"},
	{what: "a file, `durability=each`, 512 goroutines", file: "file.md", sections: []string{"2,000 busy keys, 512 goroutines", "keys seen for the first time, 512 goroutines", "90 % of the calls refused, 512 goroutines"}, column: "filestore ÷ it"},

	{readme: "behind Envoy, on Redis", what: "Envoy's gRPC, on Redis", file: "rls.md", sections: rlsLoads, column: "× envoyproxy/ratelimit", rows: []string{"dipwell, Redis"}, against: "envoyproxy/ratelimit on Redis"},
	{what: "Envoy's gRPC, on PostgreSQL", tables: "logged", file: "rls.md", sections: rlsLoads, column: "× envoyproxy/ratelimit", rows: []string{"dipwell, PostgreSQL, logged"}, against: "envoyproxy/ratelimit on Redis"},
	{what: "JSON API, in memory", file: "api.md", sections: []string{"In memory, every call admitted", "In memory, 90 % of the calls refused"}, column: upon, rows: []string{serve}, against: "a no-op handler"},
	{what: "JSON API, on PostgreSQL", tables: "logged", file: "api.md", sections: []string{"On PostgreSQL, logged, every call admitted", "On PostgreSQL, logged, 90 % of the calls refused"}, column: upon, rows: []string{serve}, against: "a handler with one conditional upsert"},
	{what: "`replay` of a log in order, one thread for everybody", file: "replay.md", sections: []string{"One thread for everybody (GOMAXPROCS=1)"}, column: "replay in order runs at, of this"},
	{what: "`replay` of a log in order, two threads, of which the loops use one", file: "replay.md", sections: []string{"Two threads (GOMAXPROCS=2), of which the loops use one"}, column: "replay in order runs at, of this"},
}

var rlsLoads = []string{"64 streams, 4 connections", "256 streams, 4 connections", "64 streams, 9 of 10 calls refused, 4 connections"}
