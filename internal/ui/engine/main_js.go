// Command engine is the part of the page that computes, as WebAssembly for a worker of the
// browser: limits in the playground, and replays of logs. It sets the global object
// dipwell, with functions that return JSON: {"answer": …} or {"error": …, "field": …}.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"syscall/js"
	_ "time/tzdata" // a browser has no time zone files

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/replay"
)

// sortRecords is how many lines of a log are sorted in memory, since a browser has no disk:
// about 256 MiB.
const sortRecords = 1 << 21

func main() {
	js.Global().Set("dipwell", js.ValueOf(map[string]any{"play": function(play), "replay": function(whatIf)}))
	select {}
}

// function makes a function of JavaScript, which returns JSON.
func function(f func(args []js.Value) (any, error)) js.Func {
	return js.FuncOf(func(_ js.Value, args []js.Value) (text any) {
		defer func() {
			if r := recover(); r != nil { // otherwise the program would end, and answer nothing any more
				text = encode(nil, fmt.Errorf("internal error: %v", r))
			}
		}()
		return encode(f(args))
	})
}

func encode(answer any, err error) string {
	var field *dipwell.FieldError
	out := map[string]any{"answer": answer}
	switch {
	case errors.As(err, &field):
		out = map[string]any{"error": field.Reason, "field": field.Field}
	case err != nil:
		out = map[string]any{"error": err.Error()}
	}
	b, err := json.Marshal(out)
	if err != nil {
		b = []byte(`{"error":"the answer has no JSON"}`)
	}
	return string(b)
}

// play makes the calls of replay.PlaySettings, which are its argument as JSON.
func play(args []js.Value) (any, error) {
	var s replay.PlaySettings
	if err := json.Unmarshal([]byte(args[0].String()), &s); err != nil {
		return nil, err
	}
	return replay.Play(s)
}

// candidate has the settings of a replay other than the log.
type candidate struct {
	Limit   string   `json:"limit"`
	By      string   `json:"by"`
	Cost    string   `json:"cost"`
	Where   []string `json:"where"`
	Pattern string   `json:"pattern"`
}

// whatIf decides a log by a limit. Its arguments are a candidate as JSON, the name and size
// of the log, read(from, to), which returns bytes of it, and progress(part, of all).
func whatIf(args []js.Value) (any, error) {
	var c candidate
	if err := json.Unmarshal([]byte(args[0].String()), &c); err != nil {
		return nil, err
	}
	l, err := dipwell.ParseLimit(c.Limit)
	if err != nil {
		return nil, err
	}
	size := int64(args[2].Int())
	in := replay.Input{Name: args[1].String(), Size: size, Again: true,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(&file{read: args[3], size: size}), nil }}
	rep, err := replay.Run(context.Background(), in, replay.Options{
		Limits: []dipwell.Limit{l}, By: c.By, Cost: c.Cost, Where: c.Where, Pattern: c.Pattern, SortRecords: sortRecords,
		Progress: func(_ string, done, total int64) { args[4].Invoke(done, total) },
	})
	if errors.Is(err, syscall.ENOSYS) {
		return nil, fmt.Errorf("the log is not in the order of time, and has more than %d lines: dipwell replay sorts it on disk", sortRecords)
	}
	if err == nil {
		err = rep.Unread()
	}
	if err != nil {
		return nil, err
	}
	return struct {
		*replay.Report
		OverTime replay.OverTime `json:"over_time"`
	}{rep, rep.Limits[0].OverTime()}, nil
}

// file reads the bytes of a file of the browser.
type file struct {
	read     js.Value
	at, size int64
}

func (f *file) Read(p []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	n := js.CopyBytesToGo(p, f.read.Invoke(f.at, min(f.at+int64(len(p)), f.size)))
	f.at += int64(n)
	if n == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}
