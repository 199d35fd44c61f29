package pgstore_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/pgtest"
)

// A page is a documentation page whose SQL blocks are run in psql, one after
// the other.
type page struct {
	name   string
	before string            // SQL that the page assumes was run
	after  map[string]string // by a text in a block: SQL to run after it, for the result that the page shows
}

var pages = []page{
	{"docs/reference/sql.md", "create table orders (customer int, item text);", map[string]string{
		"create trigger": "select dipwell.define('orders', 3, interval '1 hour'); insert into orders select 7, 'a rope' from generate_series(1, 4); select dipwell.drop('orders');",
	}},
	{"docs/reference/postgres.md", "create schema cron; create function cron.schedule(text, text, text) returns bigint language sql as 'select 1::bigint';", map[string]string{
		"create role": "drop role web, limiter;",
	}},
	{"docs/tutorial/sql.md", "", nil},
	{"docs/how-to/hosted-postgres.md", supabase, map[string]string{
		"alter role authenticator": "drop owned by authenticated; drop role authenticator, authenticated;",
	}},
	{"docs/how-to/limits-by-plan.md", `create table customers (id int primary key, plan text not null);
		insert into customers values (7, 'pro');
		select dipwell.define('api', rate => 60, per => interval '1 minute', burst => 10);
		select dipwell.define_plan('api', 'pro', rate => 600, burst => 1000);`, nil},
	{"docs/how-to/customer-support.md", "select dipwell.define('api', rate => 60, per => interval '1 minute', usage => true);", nil},
	{"docs/how-to/logins.md", "", nil},
	{"docs/how-to/operations.md", "", nil},
	{"docs/how-to/recipes.md", `create table orders (customer int, item text);
		select dipwell.define('orders', 3, interval '1 hour')`, nil},
	{"docs/how-to/shards.md", "", nil},
	{"docs/how-to/windows.md", "", nil},
	{"README.md", "", nil},
}

// TestDocs runs the SQL of the pages and compares psql's output with theirs.
// The clock stands still, so that intervals do not depend on how fast the test
// runs.
func TestDocs(t *testing.T) {
	everyPageWithSQL(t)
	for _, p := range pages {
		t.Run(p.name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(p.name)))
			if err != nil {
				t.Fatal(err)
			}
			pool := newPool(t)
			must(t, pool, fmt.Sprintf("create or replace function dipwell_internal.now_us() returns bigint language sql as 'select %d::bigint'", time.Now().UnixMicro()))
			blocks := append(sqlBlocks.FindAllStringSubmatch(string(text), -1), sessions(string(text))...)
			if len(blocks) == 0 {
				t.Fatal("no SQL")
			}
			psql(t, pool.Config().ConnString(), p.before)
			for _, b := range blocks {
				sql, want := b[1], b[2]
				for part, more := range p.after {
					if strings.Contains(sql, part) {
						sql += more
					}
				}
				if id := ids.FindString(sql); id != "" { // the reservation id on the page
					sql = "select id as id from dipwell.reservations \\gset\n" + strings.ReplaceAll(sql, "'"+id+"'", ":'id'")
				}
				got := psql(t, pool.Config().ConnString(), sql)
				if strings.Contains(got, "ERROR:") != strings.Contains(want, "ERROR:") || !strings.Contains(plain(got), plain(want)) {
					t.Errorf("%s\nprints\n%s\nthe page has\n%s", sql, got, want)
				}
			}
		})
	}
}

// everyPageWithSQL fails if a page has SQL and is not in pages.
func everyPageWithSQL(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"../README.md", "../docs/*.md", "../docs/*/*.md", "../docs/*/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			name = strings.TrimPrefix(filepath.ToSlash(name), "../")
			if sqlBlocks.Match(text) && !slices.ContainsFunc(pages, func(p page) bool { return p.name == name }) {
				t.Errorf("%s has SQL that nothing runs", name)
			}
		}
	}
}

// sqlBlocks matches SQL and, where it follows, its output.
var sqlBlocks = regexp.MustCompile("(?s)```sql\n(.*?)```(?:\n```\n(.*?)```)?")

// promptBlocks matches a block with the prompts of psql.
var promptBlocks = regexp.MustCompile("(?s)```\n(shop=# .*?)```")

// sessions returns the sessions of a page, each split into SQL and output.
func sessions(text string) (blocks [][]string) {
	for _, m := range promptBlocks.FindAllStringSubmatch(text, -1) {
		var sql, out strings.Builder
		for line := range strings.Lines(m[1]) {
			if _, command, ok := strings.Cut(line, "# "); ok && strings.HasPrefix(line, "shop=") {
				sql.WriteString(command)
			} else if line != "BEGIN\n" && line != "ROLLBACK\n" { // psql -q leaves these out
				out.WriteString(line)
			}
		}
		blocks = append(blocks, []string{m[0], sql.String(), out.String()})
	}
	return blocks
}

func psql(t *testing.T, dsn, sql string) string {
	t.Helper()
	return psqlOf(t, pgtest.Shared(t), dsn, sql)
}

func psqlOf(t *testing.T, server *pgtest.Server, dsn, sql string) string {
	t.Helper()
	cmd := server.Command("psql", "-X", "-q", "-P", "null=(null)", "-v", "VERBOSITY=terse", "-d", dsn)
	cmd.Stdin = strings.NewReader(sql)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out.String())
	}
	return out.String()
}

var (
	ids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	dates   = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00`)
	lengths = regexp.MustCompile(`(\d\d):(\d\d):(\d\d(?:\.\d+)?)`)
	layout  = regexp.MustCompile(`[-+ ]+|\(\d+ rows?\)`)
	empty   = regexp.MustCompile(`\n\s*`)
)

// plain removes the layout of psql's output and rounds intervals up to whole
// seconds.
func plain(out string) string {
	out = ids.ReplaceAllString(out, "ID")
	out = dates.ReplaceAllString(out, "DATE")
	out = lengths.ReplaceAllStringFunc(out, func(s string) string {
		var h, m int
		var sec float64
		_, _ = fmt.Sscanf(s, "%d:%d:%f", &h, &m, &sec)
		return fmt.Sprint(h*3600+m*60+int(math.Ceil(sec)), "s")
	})
	out = layout.ReplaceAllString(out, " ")
	return strings.TrimSpace(empty.ReplaceAllString(out, "\n"))
}
