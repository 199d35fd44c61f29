package pgstore_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// TestQueueRecipe lets 16 workers claim jobs by the function of the recipe. Each customer
// starts as many as the limit allows, and no token is taken for a job that does not start.
func TestQueueRecipe(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/how-to/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	recipe := regexp.MustCompile("(?s)```sql\n(create table jobs .*?)```").FindStringSubmatch(string(text))
	if recipe == nil {
		t.Fatal("no recipe")
	}
	pool := newPool(t)
	must(t, pool, strings.Replace(recipe[1], "rate => 2, per => interval '1 minute'", "rate => 5, per => interval '1 day'", 1))
	must(t, pool, "insert into jobs (customer) select 'c' || i % 7 from generate_series(1, 140) i")
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for {
				var id *int64
				if err := pool.QueryRow(context.Background(), "select (claim_job()).id").Scan(&id); err != nil {
					t.Error(err)
					return
				}
				if id == nil {
					return
				}
			}
		})
	}
	workers.Wait()
	running := number(t, pool, "select count(*) from jobs where state = 'running'")
	used := number(t, pool, "select sum(capacity - remaining) from dipwell.status where limit_name = 'jobs'")
	most := number(t, pool, "select max(n) from (select count(*) n from jobs where state = 'running' group by customer) x")
	if running != 35 || used != 35 || most != 5 {
		t.Errorf("%d jobs run, at most %d of a customer, and %d tokens are taken; want 35, 5 and 35", running, most, used)
	}

	// The customers that have no tokens are more than one call of ready has keys.
	must(t, pool, "insert into jobs (customer) select 'a' || i from generate_series(1, 1100) i; select dipwell.take('jobs', 'a' || i, 5) from generate_series(1, 1100) i; insert into jobs (customer) values ('z')")
	var customer string
	if err := pool.QueryRow(context.Background(), "select (claim_job()).customer").Scan(&customer); err != nil || customer != "z" {
		t.Errorf("beside 1,100 customers without tokens the job of %q starts, %v", customer, err)
	}
}
