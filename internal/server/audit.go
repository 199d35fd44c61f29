package server

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

const (
	auditPage = 1000 // number of entries that are read at a time
	auditTime = 2 * time.Second
)

const (
	didOverride    = "override"
	didEndOverride = "end-override"
	didDefine      = "define"
	didDrop        = "drop"
)

func checkNote(note string) error {
	if wrong := terms.WrongNote(note); wrong != "" {
		return bad("note", wrong)
	}
	return nil
}

// record adds a request's change to the store's audit. A failure is logged, and undoes nothing.
func (a *api) record(r *http.Request, e store.AuditEntry) {
	if a.can.Audit == nil {
		return
	}
	e.Who = a.who(r)
	if e.Key == dipwell.Shared {
		e.Key = ""
	}
	e.What = cut(e.What, terms.MaxNote)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), auditTime) // the change has been made, even if the client has gone
	defer cancel()
	if err := a.can.Audit.Record(ctx, e); err != nil {
		slog.Error("audit: " + e.Action + " of limit " + e.Limit + " by " + e.Who + " could not be recorded: " + err.Error())
	}
}

// requestOf returns a request that has what is known about the client of a gRPC call.
func requestOf(ctx context.Context) *http.Request {
	r := http.Request{Header: http.Header{"X-Forwarded-For": metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")}}
	if from, ok := peer.FromContext(ctx); ok {
		r.RemoteAddr = from.Addr.String()
	}
	return r.WithContext(ctx)
}

// cut returns the beginning of a text, at most n bytes of whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// who returns who sent a request: the name of the caller, or without callers the address.
func (a *api) who(r *http.Request) string {
	if c := callerOf(r.Context()); c != nil {
		return c.Name
	}
	return a.address(r)
}

// address returns the address of the client, or Config.Who for a caller in this process.
func (a *api) address(r *http.Request) string {
	l := a.live.Load()
	if r.RemoteAddr == "" {
		return l.Who
	}
	if who, err := l.clientIP(r); err == nil {
		return who
	}
	return r.RemoteAddr
}

// entriesOf yields the entries of a log older than before, newest first, and reads size at a time.
func entriesOf(ctx context.Context, log store.Auditor, before string, size int) iter.Seq2[*store.AuditEntry, error] {
	return func(yield func(*store.AuditEntry, error) bool) {
		for more := true; more; {
			page, err := log.Audit(ctx, before, size)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page {
				if before = page[i].ID; !yield(&page[i], nil) {
					return
				}
			}
			more = len(page) == size
		}
	}
}

func (a *api) audit(w http.ResponseWriter, r *http.Request, q *query) error {
	one, n := q.given["key"], cmp.Or(q.n, pageSize) // an empty key is the shared bucket
	may := func(limit string) error { return callerOf(r.Context()).mayName("limit", limit) }
	if q.limit != "" {
		if err := may(q.limit); err != nil {
			return err
		}
	}
	if a.can.Audit == nil {
		return fmt.Errorf("audit: %w", store.ErrNotSupported)
	}
	size := auditPage
	if q.limit == "" && !one && mayList(r.Context()) == "" { // the page has every entry
		size = n
	}
	page, last := []AuditEntry{}, ""
	for e, err := range entriesOf(r.Context(), a.can.Audit, q.after, size) {
		if err != nil {
			return err
		}
		if (q.limit == "" || e.Limit == q.limit) && (!one || e.Key == q.key && ofKey(e)) && may(e.Limit) == nil {
			page, last = append(page, entryOf(e)), e.ID
		}
		if len(page) == n {
			break
		}
	}
	return writePage(w, "entries", page, len(page) == n, last)
}

// ofKey reports whether an entry is about a key, and not about a limit itself.
func ofKey(e *store.AuditEntry) bool { return e.Action != didDefine && e.Action != didDrop }

// AuditEntry is an entry of the audit as JSON.
type AuditEntry struct {
	ID     string    `json:"id"`
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Action string    `json:"action"`
	Limit  string    `json:"limit"`
	Key    *Nullable `json:"key,omitempty"` // nil: the entry is about the limit itself
	What   string    `json:"what,omitempty"`
	Note   string    `json:"note,omitempty"`
	Role   string    `json:"role,omitempty"`
}

func entryOf(e *store.AuditEntry) AuditEntry {
	out := AuditEntry{e.ID, time.UnixMicro(e.At).UTC(), e.Who, e.Action, e.Limit, nil, e.What, e.Note, e.Role}
	if ofKey(e) {
		key := Nullable(e.Key)
		out.Key = &key
	}
	return out
}
