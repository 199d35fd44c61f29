package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dipwell/dipwell/internal/server"
)

type remote struct {
	Server    string `placeholder:"URL" env:"DIPWELL_SERVER" help:"Server to call (default http://127.0.0.1:8080)."`
	TokenFile string `aliases:"admin-token-file" placeholder:"FILE" env:"DIPWELL_TOKEN_FILE,DIPWELL_ADMIN_TOKEN_FILE" help:"File with the token of a caller, or of admin calls; or set DIPWELL_TOKEN."`
	clientTLS `embed:""`
}

type target struct {
	remote        `embed:""`
	Store         string        `placeholder:"URL" env:"DIPWELL_STORE" help:"Call a store directly, without a server."`
	Limit         []string      `placeholder:"LIMIT" sep:";" help:"With --store: a limit to define, 'NAME=RATE/PER,SETTING=VALUE,...'."`
	KeySecretFile string        `placeholder:"FILE" env:"DIPWELL_KEY_SECRET_FILE" help:"With --store: file with the secret under which the service hashes keys; or set DIPWELL_KEY_SECRET."`
	Timeout       time.Duration `default:"${timeout}" help:"How long to wait ${for}. Default ${timeout}."`
	JSON          bool          `name:"json" help:"Print the answer as JSON."`
}

// Bounds of a response: of one that may be a long list, and of any other.
const (
	maxAnswer      = 64 << 20
	maxShortAnswer = 1 << 20
)

type answer struct {
	Allowed      bool              `json:"allowed"`
	Limit        string            `json:"limit"`
	Plan         string            `json:"plan,omitempty"`
	Key          *string           `json:"key"`
	Cost         int64             `json:"cost"`
	Granted      int64             `json:"granted"`
	Capacity     int64             `json:"capacity"`
	Remaining    int64             `json:"remaining"`
	RetryAfter   *int64            `json:"retry_after_us"`
	ResetAfter   int64             `json:"reset_after_us"`
	Delay        int64             `json:"delay_us"`
	Never        bool              `json:"never,omitempty"`
	Reservation  string            `json:"reservation,omitempty"`
	RetryIsBound bool              `json:"retry_is_bound,omitempty"`
	Hold         string            `json:"hold,omitempty"`
	Expires      int64             `json:"expires_us,omitempty"`
	Repeated     bool              `json:"repeated,omitempty"`
	Limits       []json.RawMessage `json:"limits,omitempty"`
	BlockedUntil int64             `json:"blocked_until_us,omitempty"`
	server.Look                    // of inspect
	settled      bool              // the hold has ended, although Expires is later
	Shadow       bool              `json:"shadow"`
	Source       string            `json:"source"`
	Detail       string            `json:"detail,omitempty"` // why a refused call can never be allowed
	Asked        string            `json:"asked"`            // URL of the server or of the store
}

func (t *target) decision(b []byte) (a answer, err error) {
	if err = json.Unmarshal(b, &a); err != nil || a.Limit == "" {
		return a, errors.New("the server's answer is not a decision")
	}
	a.Asked = t.asked()
	return a, nil
}

// AfterApply selects the server or the store. The command line has precedence over the
// environment, and in the environment the variable of a server over that of a store.
func (t *target) AfterApply(c *kong.Context) error {
	given := map[string]bool{}
	for _, p := range c.Path {
		if p.Flag != nil {
			given[p.Flag.Name] = true
		}
	}
	store := given["store"] || given["limit"] && t.Store != "" && !given["server"]
	switch {
	case given["server"] && given["store"]:
		return errors.New("server, store: give only one of them")
	case store:
		t.Server = ""
	case given["server"] || t.Server != "":
		t.Store = ""
	}
	if given["limit"] && t.Store == "" {
		return fmt.Errorf("limit: --limit defines a limit in a store, but this command calls %s; give --store", t.asked())
	}
	return checkServer(t.Server)
}

// checkServer checks the URL of a service. "" means the default one.
func checkServer(base string) error {
	if u, err := url.Parse(base); base != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("server: %q is not a URL such as http://127.0.0.1:8080", redact(base))
	}
	return nil
}

func (t *target) direct() bool { return t.Store != "" }

// asked returns the URL of the server or the store without secrets.
func (t *target) asked() string {
	if t.direct() {
		return redact(t.Store)
	}
	return redact(t.server())
}

func (t *target) server() string {
	return strings.TrimSuffix(cmp.Or(t.Server, "http://127.0.0.1:8080"), "/")
}

// printAsked is for commands whose answer does not say who was asked.
func (t *target) printAsked(e *env) { fmt.Fprintln(e.stderr, "dipwell: asked "+t.asked()) }

// rows calls show for each row of the answer to a GET, a page whose member has the rows. With
// --json it prints the answer instead. It returns where the next page begins, nil after the last
// one. If flag is not "", it also prints that flag with this value.
func rows[T any](t *target, e *env, path, member, flag string, show func(*T)) (next *string, err error) {
	b, err := t.call(e, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	t.printAsked(e)
	if t.JSON {
		_, err = e.stdout.Write(b)
		return nil, err
	}
	var page map[string]json.RawMessage
	var list []T
	if json.Unmarshal(b, &page) != nil || json.Unmarshal(page[member], &list) != nil {
		return nil, errors.New("the server's answer is not a list of " + member)
	}
	for i := range list {
		show(&list[i])
	}
	_ = json.Unmarshal(page["next"], &next) // a list of holds has none
	if next != nil && flag != "" {
		fmt.Fprintf(e.stdout, "there may be more: %s %q\n", flag, *next)
	}
	return next, nil
}

// http does the work of call for a server.
func (t *target) http(e *env, method, path string, body []byte) (_ []byte, err error) {
	defer func() {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("timeout: %s has not answered within %v", t.asked(), t.Timeout)
		}
	}()
	token, err := t.token()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(e.ctx, t.Timeout)
	defer cancel()
	r, err := newRequest(ctx, method, t.server()+path, body)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	res, err := client.Do(r)
	if err != nil && strings.Contains(err.Error(), "refused") { // the errors of operating systems differ
		err = fmt.Errorf("%w: is dipwell serve running? It can answer there, or --store URL asks a store without it", err)
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	most, decides := int64(maxShortAnswer), strings.HasPrefix(path, "/v1/")
	if method == http.MethodGet && res.StatusCode == http.StatusOK && decides {
		most = maxAnswer
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("the answer has more than %d KiB", most>>10)
	}
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if res.StatusCode == http.StatusTooManyRequests && !decides { // it refuses to say whether it is well
		return nil, errors.New("server: " + res.Status)
	}
	return b, answered(res.StatusCode, res.Status, b)
}

// limitPath is the path of a list of a limit, such as /keys, with the pairs of query.
func limitPath(limit, list string, pairs ...any) string {
	return "/v1/limits/" + url.PathEscape(limit) + list + query(pairs...)
}

// query encodes names and values. A flag that was not given, nil or "", is left out.
func query(pairs ...any) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		switch value := pairs[i+1].(type) {
		case *string:
			if value != nil {
				q.Set(pairs[i].(string), *value)
			}
		default:
			if text := fmt.Sprint(value); text != "" {
				q.Set(pairs[i].(string), text)
			}
		}
	}
	return "?" + q.Encode()
}
