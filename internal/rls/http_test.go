package rls_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dipwell/dipwell/internal/rls"
)

func TestJSON(t *testing.T) {
	w := startWith(t, rls.Config{Headers: rls.Headers{Add: true}}, rls.Defaults{}, plain)
	srv := httptest.NewServer(http.HandlerFunc(w.service.JSON))
	defer srv.Close()
	post := func(body string) (status int, h http.Header, answer string) {
		t.Helper()
		resp, err := http.Post(srv.URL, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header, string(b)
	}
	const tenant = `{"domain":"d","descriptors":[{"entries":[{"key":"tenant","value":"x"}]}]}`
	for i, want := range []int{200, 200, 200, 429} {
		status, h, body := post(tenant)
		var answer pb.RateLimitResponse
		if err := protojson.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		if status != want || answer.OverallCode != map[int]pb.RateLimitResponse_Code{200: ok, 429: over}[want] || h.Get("Ratelimit-Limit") != "3" {
			t.Errorf("call %d: %d %s", i+1, status, body)
		}
	}
	for body, want := range map[string]string{
		``:                               "body",
		`{`:                              "body",
		`{"domain":"d"}`:                 "descriptors",
		`{"domian":"d"}`:                 "domian",
		`{"descriptors":[{}]}`:           "domain",
		`{"domain":"` + "\xff" + `"}`:    "UTF-8",
		`{"domain":"d","hitsAddend":-1}`: "hitsAddend",
	} {
		if status, h, got := post(body); status != 400 || !strings.Contains(got, want) || h.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%q: %d %s", body, status, got)
		}
	}
	if status, _, _ := post(`{"domain":"` + strings.Repeat("d", 70_000) + `"}`); status != 413 {
		t.Error(status)
	}
	for err, want := range map[error]int{io.ErrUnexpectedEOF: 400, os.ErrDeadlineExceeded: 408} {
		rec := httptest.NewRecorder()
		if w.service.JSON(rec, httptest.NewRequest(http.MethodPost, "/json", iotest.ErrReader(err))); rec.Code != want {
			t.Errorf("%v: %d %s", err, rec.Code, rec.Body)
		}
	}
}
