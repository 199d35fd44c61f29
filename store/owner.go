package store

import (
	"fmt"
	"strconv"
	"strings"
)

// Owners of a limit: who may change it.
const (
	OwnerCode = "code" // defined by a program through the library
	OwnerFile = "file" // named in a configuration file; FileOwner says more
	OwnerRLS  = "rls"  // named by descriptors of Envoy's RateLimitService
	OwnerAPI  = "api"  // defined over HTTP or gRPC
	OwnerSQL  = "sql"  // defined by dipwell.define
)

// OwnerCallSite defines a limit at its first use, and never changes one that
// is there. Stores keep such a limit as OwnerCode.
const OwnerCallSite = "call site"

// MainOwner is the owner of a configuration file that names none.
const MainOwner = "main"

// A FileOwner is a configuration file as the owner of limits. Its text is what
// stores keep: "file" or "file:NAME", and after it the revision and the digest
// of the file that defined the limit last.
type FileOwner struct {
	Name     string // as the file's owner setting; "" is MainOwner
	Revision int64  // 0: the file names none
	Digest   string // of the file's bytes, without spaces; "" is unknown
}

func (f FileOwner) String() string {
	s := OwnerFile
	if f.Name != "" && f.Name != MainOwner {
		s += ":" + f.Name
	}
	if f.Digest != "" || f.Revision != 0 {
		s += " " + strconv.FormatInt(f.Revision, 10) + " " + f.Digest
	}
	return s
}

// ParseFileOwner reads the owner of a limit. Not ok: the owner is no file.
func ParseFileOwner(owner string) (f FileOwner, ok bool) {
	who, stamp, _ := strings.Cut(owner, " ")
	kind, name, _ := strings.Cut(who, ":")
	if kind != OwnerFile {
		return f, false
	}
	if f.Name = name; name == "" {
		f.Name = MainOwner
	}
	revision, digest, _ := strings.Cut(stamp, " ")
	f.Revision, _ = strconv.ParseInt(revision, 10, 64) // an older program's has none
	f.Digest = digest
	return f, true
}

// OwnerName is an owner without the state of its file: code, api, sql, rls,
// file or file:NAME.
func OwnerName(owner string) string {
	name, _, _ := strings.Cut(owner, " ")
	return name
}

// checkOwner reports whether an owner may define a limit that another has
// defined before. Files and descriptors take over what no file names, and what
// a program wrote that kept no digests. SQL twin: dipwell_internal.check_owner.
func checkOwner(limit, was, by string) error {
	old, fromFile := ParseFileOwner(was)
	next, toFile := ParseFileOwner(by)
	switch {
	case OwnerName(was) == OwnerName(by):
		if next.Revision < old.Revision {
			return &LimitError{limit, "revision", fmt.Sprintf("%d is lower than %d, which the store has seen of owner %s", next.Revision, old.Revision, old.Name)}
		}
		return nil
	case (toFile || by == OwnerRLS) && (!fromFile || was == OwnerFile):
		return nil
	}
	return &OwnerError{limit, was}
}

// ownerWords are an owner in a sentence.
func ownerWords(owner string) string {
	if f, ok := ParseFileOwner(owner); ok {
		if f.Name == MainOwner {
			return "the configuration file"
		}
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
