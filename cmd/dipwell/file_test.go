package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestData checks that buckets survive a restart, and that a second process
// cannot open the same directory.
func TestData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	url := "file:" + filepath.Join(dir, dataFile)
	args := []string{"--listen", "127.0.0.1:0", "--data", dir, "--limit", "slow=1/1d,burst=10"}
	p := start(t, args...)
	if code, out, stderr := program(t, "take", "slow", "k", "--cost", "4", "--server", p.url); code != 0 {
		t.Fatal(code, out, stderr)
	}
	code, _, stderr := program(t, "take", "slow", "k", "--store", url)
	if want := fmt.Sprintf("in use by process %d", p.cmd.Process.Pid); code != 2 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "--server") {
		t.Errorf("while a service has it: %d, %s", code, stderr)
	}
	if text := fetch(t, p.url+"/readyz"); !strings.Contains(text, "ready") {
		t.Error(text)
	}
	for _, name := range []string{"dipwell_keys 1", "dipwell_file_dirty_keys", "dipwell_file_widest_window_seconds", "dipwell_file_last_write_timestamp_seconds", "dipwell_file_late_groups_total"} {
		if !strings.Contains(fetch(t, p.url+"/metrics"), "\n"+name) {
			t.Errorf("no %s on /metrics", name)
		}
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := program(t, "take", "slow", "k", "--store", url); code != 0 || !strings.Contains(out, "5 of 10 remaining") {
		t.Errorf("between two services: %d, %s%s", code, out, stderr)
	}
	if code, out, stderr := program(t, "keys", "slow", "--store", url); code != 0 || !strings.HasPrefix(out, "k ") {
		t.Errorf("keys: %d, %s%s", code, out, stderr)
	}
	p = start(t, args...)
	if code, out, _ := program(t, "take", "slow", "k", "--server", p.url, "--cost", "6"); code != 1 || !strings.Contains(out, "5 of 10 remaining") {
		t.Errorf("after a restart: %d, %s", code, out)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBadFiles(t *testing.T) {
	foreign := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(foreign, []byte(strings.Repeat("my notes\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"take", "x", "--store", "file:" + foreign}, "file is not a database"},
		{[]string{"take", "x", "--store", "file:x?durabilty=each"}, "did you mean durability"},
		{[]string{"take", "x", "--store", "file:x?durability=now"}, "neither each nor a time"},
		{[]string{"serve", "--store", "memory:", "--data", "x"}, "give one"},
		{[]string{"serve", "--data", foreign}, "not a directory"},
	} {
		if code, _, stderr := program(t, c.args...); code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: %d, %s; want %s", c.args, code, stderr, c.want)
		}
	}
}
