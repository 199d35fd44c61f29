package terms

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	OwnerCode = "code" // a program, through the library
	OwnerFile = "file" // a configuration file that names no owner; see FileState
	OwnerRLS  = "rls"  // descriptors of Envoy's RateLimitService
	OwnerAPI  = "api"  // a client of HTTP or gRPC
	OwnerSQL  = "sql"  // dipwell.define
)

// OwnerCallSite is the owner for a call that defines a limit on first use. A call site never
// changes an existing limit. Limits that a call site defines are stored with the owner Code.
const OwnerCallSite = "call site"

// OwnerMain is the owner of a configuration file that names none.
const OwnerMain = "main"

// FileOwner is a configuration file as the owner of limits. Its text is what
// stores keep: "file" or "file:NAME", then the revision and the digest of the
// file that defined the limit last.
type FileOwner struct {
	Name     string // the setting owner of the file; "" is Main
	Revision int64  // revision of the file; 0 if it has none
	Digest   string // of the file's bytes other than spaces; "" if unknown
}

func (f FileOwner) String() string {
	s := OwnerFile
	if f.Name != "" && f.Name != OwnerMain {
		s += ":" + f.Name
	}
	if f.Digest != "" || f.Revision != 0 {
		s += " " + strconv.FormatInt(f.Revision, 10) + " " + f.Digest
	}
	return s
}

// ParseFileOwner reads an owner that is a file. ParseFileOwner returns false for any other.
func ParseFileOwner(owner string) (f FileOwner, ok bool) {
	who, state, _ := strings.Cut(owner, " ")
	kind, name, _ := strings.Cut(who, ":")
	if kind != OwnerFile {
		return f, false
	}
	if f.Name = name; name == "" {
		f.Name = OwnerMain
	}
	revision, digest, _ := strings.Cut(state, " ")
	f.Revision, _ = strconv.ParseInt(revision, 10, 64) // older programs wrote no number
	f.Digest = digest
	return f, true
}

// OwnerName returns an owner without the state of its file: code, api, sql, rls, file
// or file:NAME.
func OwnerName(owner string) string {
	name, _, _ := strings.Cut(owner, " ")
	return name
}

// ErrOwner is wrapped by an Error.
var ErrOwner = errors.New("the limit has another owner")

// An Error refuses a change of a limit by anyone but its owner.
type OwnerError struct{ Limit, Owner string }

func (e *OwnerError) Error() string {
	return fmt.Sprintf("limit %s belongs to %s and can only be changed there", e.Limit, describe(e.Owner))
}

func (e *OwnerError) Unwrap() error { return ErrOwner }

func describe(owner string) string {
	if f, ok := ParseFileOwner(owner); ok {
		return "the configuration file of owner " + f.Name
	}
	switch owner {
	case OwnerCode:
		return "a program's code or flags"
	case OwnerRLS:
		return "the descriptors of the RateLimitService"
	case OwnerAPI:
		return "the API"
	case OwnerSQL:
		return "SQL"
	}
	return owner
}
