// Package owner reads and writes the owner of a limit: who may change it.
package owner

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Owners of limits.
const (
	Code = "code" // a program, through the library
	File = "file" // a configuration file that names no owner; see FileState
	RLS  = "rls"  // descriptors of Envoy's RateLimitService
	API  = "api"  // a client of HTTP or gRPC
	SQL  = "sql"  // dipwell.define
)

// CallSite is the owner for a call that defines a limit on first use. It never changes a
// limit that exists. Stores keep its limits with the owner Code.
const CallSite = "call site"

// Main is the owner of a configuration file that names none.
const Main = "main"

// FileState is a configuration file as the owner of limits. Its text is what
// stores keep: "file" or "file:NAME", then the revision and the digest of the
// file that defined the limit last.
type FileState struct {
	Name     string // the file's owner setting; "" is Main
	Revision int64  // 0 if the file has none
	Digest   string // of the file's bytes other than spaces; "" if unknown
}

func (f FileState) String() string {
	s := File
	if f.Name != "" && f.Name != Main {
		s += ":" + f.Name
	}
	if f.Digest != "" || f.Revision != 0 {
		s += " " + strconv.FormatInt(f.Revision, 10) + " " + f.Digest
	}
	return s
}

// ParseFile reads an owner that is a file. It returns false for any other.
func ParseFile(owner string) (f FileState, ok bool) {
	who, state, _ := strings.Cut(owner, " ")
	kind, name, _ := strings.Cut(who, ":")
	if kind != File {
		return f, false
	}
	if f.Name = name; name == "" {
		f.Name = Main
	}
	revision, digest, _ := strings.Cut(state, " ")
	f.Revision, _ = strconv.ParseInt(revision, 10, 64) // older programs wrote none
	f.Digest = digest
	return f, true
}

// Name returns an owner without the state of its file: code, api, sql, rls, file
// or file:NAME.
func Name(owner string) string {
	name, _, _ := strings.Cut(owner, " ")
	return name
}

// Err is wrapped by an Error.
var Err = errors.New("the limit has another owner")

// An Error refuses a change of a limit by anyone but its owner.
type Error struct{ Limit, Owner string }

func (e *Error) Error() string {
	return fmt.Sprintf("limit %s belongs to %s and can only be changed there", e.Limit, describe(e.Owner))
}

func (e *Error) Unwrap() error { return Err }

// describe names an owner in a sentence.
func describe(owner string) string {
	if f, ok := ParseFile(owner); ok {
		return "the configuration file of owner " + f.Name
	}
	switch owner {
	case Code:
		return "a program's code or flags"
	case RLS:
		return "the descriptors of the RateLimitService"
	case API:
		return "the API"
	case SQL:
		return "SQL"
	}
	return owner
}
