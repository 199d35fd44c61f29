package pgstore_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// supabase is what docs/how-to/hosted-postgres.md assumes of Supabase and PostgREST.
const supabase = `create role authenticator noinherit login; create role authenticated; grant authenticated to authenticator;
	create schema auth; grant usage on schema auth to authenticated;
	create function auth.uid() returns uuid language sql as $$ select (nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub')::uuid $$;
	grant usage on schema public to authenticated;`

// TestHosted calls the functions of docs/how-to/hosted-postgres.md as PostgREST does: in a
// transaction with the user's role and the request's settings, read-only for GET.
func TestHosted(t *testing.T) {
	server := pgtest.Start(t) // for its roles
	owner := connect(t, server.DSN("postgres"))
	if _, err := pgstore.Migrate(t.Context(), owner, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, owner, supabase)
	page, err := os.ReadFile("../docs/how-to/hosted-postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range sqlBlocks.FindAllStringSubmatch(string(page), -1) {
		must(t, owner, block[1])
	}
	front := connect(t, strings.Replace(server.DSN("postgres"), "postgres@", "authenticator@", 1))
	request := func(method, sub, address, query string) error {
		t.Helper()
		options := pgx.TxOptions{}
		if method == "GET" {
			options.AccessMode = pgx.ReadOnly
		}
		return pgx.BeginTxFunc(t.Context(), front, options, func(tx pgx.Tx) error {
			claims, headers := `{"role": "authenticated"}`, `{"x-forwarded-for": "`+address+`, 10.0.0.1"}`
			if sub != "" {
				claims = `{"role": "authenticated", "sub": "` + sub + `"}`
			}
			_, err := tx.Exec(t.Context(), "select set_config('role', 'authenticated', true), set_config('request.method', $1, true), set_config('request.jwt.claims', $2, true), set_config('request.headers', $3, true)",
				method, claims, headers)
			if err == nil {
				_, err = tx.Exec(t.Context(), "select public.check_request()")
			}
			if err == nil && query != "" {
				_, err = tx.Exec(t.Context(), query)
			}
			return err
		})
	}
	const ann, bob = "0b0c0d0e-0000-4000-8000-000000000001", "0b0c0d0e-0000-4000-8000-000000000002"
	answer := func(err error, status string) {
		t.Helper()
		var e *pgconn.PgError
		if status == "" {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if !errors.As(err, &e) || e.Code != status {
			t.Errorf("%v; want %s", err, status)
			return
		}
		if status != "PGRST" {
			return
		}
		var message struct{ Code, Message string }
		var detail struct {
			Status  int
			Headers map[string]string
		}
		if err := errors.Join(json.Unmarshal([]byte(e.Message), &message), json.Unmarshal([]byte(e.Detail), &detail)); err != nil || message.Message == "" || detail.Status != 429 ||
			detail.Headers["Retry-After"] != "3" {
			t.Errorf("%+v %+v, %v", message, detail, err)
		}
	}
	const failing = "select 1 / 0"
	for range 3 {
		answer(request("POST", ann, "192.0.2.1", failing), "22012") // its token is back
		answer(request("GET", ann, "192.0.2.1", ""), "")            // not counted
	}
	answer(request("POST", ann, "192.0.2.1", ""), "")
	answer(request("POST", ann, "192.0.2.1", ""), "")
	answer(request("POST", ann, "192.0.2.1", ""), "PGRST")
	answer(request("GET", ann, "192.0.2.1", ""), "PGRST")
	answer(request("POST", "", "192.0.2.1", ""), "") // by address
	answer(request("POST", "", "192.0.2.1", ""), "")
	answer(request("POST", "", "192.0.2.1", ""), "PGRST")
	answer(request("POST", "", "192.0.2.2", ""), "")

	must(t, owner, "select dipwell.define('api', rate => 100, per => interval '5 minutes', burst => 50)")
	write := func(author string) string {
		return "insert into public.messages values ('" + author + "', 'hello')"
	}
	answer(request("POST", bob, "192.0.2.3", write(ann)), "42501") // not hers, and not charged
	answer(request("POST", bob, "192.0.2.3", write(bob)), "")
	answer(request("POST", bob, "192.0.2.3", write(bob)+"; "+failing), "22012") // its token is back
	answer(request("POST", bob, "192.0.2.3", write(bob)), "")
	answer(request("POST", bob, "192.0.2.3", write(bob)), "42501")
	answer(request("POST", bob, "192.0.2.3", "select dipwell.take('messages', 'x')"), "42501") // nobody calls dipwell itself
}
