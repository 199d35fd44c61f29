package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
)

func (x *examination) server(ctx context.Context, client *http.Client, base string) {
	base = strings.TrimSuffix(cmp.Or(base, "http://127.0.0.1:8080"), "/")
	if err := healthy(ctx, client, base+"/healthz"); err != nil {
		x.problem("service", "", "%s does not answer: %v", base, unreached(timeoutError(err)))
		return
	}
	x.ok("service", "%s answers", base)
	if err := healthy(ctx, client, base+"/readyz"); err != nil {
		x.problem("store", "see the service's log, and run dipwell doctor --store there", "%v", timeoutError(err))
		return
	}
	x.ok("store", "it can decide")
}

func healthy(ctx context.Context, client *http.Client, url string) error {
	r, err := newRequest(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := readAnswer(res, maxShortAnswer)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s is %d: %w", r.URL.Path, res.StatusCode, problem(http.StatusText(res.StatusCode), body))
	}
	return err
}
