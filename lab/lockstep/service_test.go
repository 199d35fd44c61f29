package lockstep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// service is a store behind the JSON API, under the decorators of dipwell
// serve. Every other single call is a form.
type service struct {
	*library // sweeps, and reserves with a bound: the API has neither
	url      string
	client   *http.Client
}

func newService(t testing.TB, open storetest.Open) *service {
	t.Helper()
	s := &service{library: newLibrary(t, func(t testing.TB, now func() int64) store.Store { return all(t, open(t, now), now) })}
	api := httptest.NewServer(server.New(s.Limiter, server.Config{}).API(server.Site{Loopback: true}))
	t.Cleanup(api.Close)
	s.url, s.client = api.URL+"/v1/", api.Client()
	return s
}

// decision is the decision object of the API and of its problem documents.
type decision struct {
	Field       string
	Allowed     *bool
	Never       bool
	Shadow      bool
	Granted     int64
	Remaining   int64
	Retry       *int64               `json:"retry_after_us"`
	Reset       *int64               `json:"reset_after_us"`
	Delay       *int64               `json:"delay_us"`
	Reservation *dipwell.Reservation `json:"reservation"`
	Limits      []decision
}

func (d *decision) answer() answer {
	a := answer{allowed: *d.Allowed, never: d.Never, shadow: d.Shadow, granted: d.Granted, remaining: d.Remaining, reset: *d.Reset, delay: *d.Delay}
	if d.Retry != nil {
		a.retry = *d.Retry
	}
	return a
}

// send makes a call. A problem document that is not a refusal becomes an error
// of the library's class.
func (s *service) send(ctx context.Context, method, path, kind string, body []byte) (*decision, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", kind)
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusNoContent {
		return nil, err
	}
	d := new(decision)
	if err = json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated:
		return d, nil
	case http.StatusTooManyRequests:
		return d, retryAfter(d, resp.Header.Get("Retry-After"))
	case http.StatusBadRequest:
		return nil, &dipwell.FieldError{Field: d.Field}
	case http.StatusNotFound:
		return nil, dipwell.ErrUnknownLimit
	case http.StatusConflict:
		return nil, dipwell.ErrReservation
	}
	return nil, fmt.Errorf("%s: %s", resp.Status, text)
}

// retryAfter compares the header with the body: whole seconds, rounded up,
// absent for never.
func retryAfter(d *decision, header string) error {
	want := ""
	if d.Retry != nil {
		want = strconv.FormatInt(max(1, (*d.Retry+999_999)/1_000_000), 10)
	}
	if header != want {
		return fmt.Errorf("Retry-After is %q, not %q", header, want)
	}
	return nil
}

func (s *service) json(ctx context.Context, method, path string, body any) (*decision, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return s.send(ctx, method, path, "application/json", b)
}

func (s *service) cancel(ctx context.Context, id dipwell.Reservation) error {
	_, err := s.json(ctx, http.MethodPost, "cancel", map[string]any{"reservation": id})
	return err
}

func (s *service) define(ctx context.Context, l dipwell.Limit) error {
	settings := map[string]string{}
	for _, v := range l.Explicit() {
		settings[v[0]] = v[1]
	}
	_, err := s.json(ctx, http.MethodPut, "limits/"+url.PathEscape(l.Name), settings)
	return err
}

func (s *service) drop(ctx context.Context, name string) error {
	_, err := s.send(ctx, http.MethodDelete, "limits/"+url.PathEscape(name), "", nil)
	return err
}

// members returns the JSON members of a take.
func members(t dipwell.Take) map[string]any {
	m := map[string]any{"limit": t.Limit, "cost": t.Cost}
	if t.Key != dipwell.Shared {
		m["key"] = t.Key
	}
	return m
}

func (s *service) call(ctx context.Context, e *event) (*decision, error) {
	path := e.verb.String()
	switch {
	case e.several:
		var takes []map[string]any
		for _, t := range e.takes {
			takes = append(takes, members(t))
		}
		return s.json(ctx, http.MethodPost, path, map[string]any{"takes": takes})
	case e.number%2 == 0:
		return s.json(ctx, http.MethodPost, path, members(e.takes[0]))
	}
	form := url.Values{}
	for name, v := range members(e.takes[0]) {
		form.Set(name, fmt.Sprint(v))
	}
	return s.send(ctx, http.MethodPost, path, "application/x-www-form-urlencoded", []byte(form.Encode()))
}

func (s *service) ask(ctx context.Context, e *event) (reply, dipwell.Reservation) {
	if e.within >= 0 {
		return s.library.ask(ctx, e)
	}
	d, err := s.call(ctx, e)
	if err == nil && (d.Allowed == nil || d.Delay == nil || d.Reset == nil || e.several != (d.Limits != nil)) {
		err = errors.New("the answer is no decision")
	}
	if err != nil {
		return reply{err: classOf(err)}, dipwell.Reservation{}
	}
	r, id := reply{allowed: *d.Allowed}, dipwell.Reservation{}
	if d.Reservation != nil {
		r.reserved, r.delay, id = true, *d.Delay, *d.Reservation
	}
	limits := d.Limits
	if !e.several {
		limits = []decision{*d}
	}
	var list []answer
	for _, l := range limits {
		list = append(list, l.answer())
	}
	r.answers = fmt.Sprint(list)
	return r, id
}
