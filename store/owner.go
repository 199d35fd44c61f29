package store

import (
	"fmt"

	"github.com/dipwell/dipwell/internal/terms"
)

// OwnerCode is the owner of limits that a program defines through the library.
// Only the owner of a limit may change or drop it; see Registry.Define. A configuration
// file takes over a limit of the owner OwnerCode that it names: from then on a change
// by a program is ErrOwner.
const OwnerCode = terms.OwnerCode

// checkOwner returns an error unless the owner by may change a limit of the owner was.
// Configuration files and descriptors may take over limits that no file names, and those
// of programs that stored no digest. Its twin in SQL is dipwell_internal.check_owner.
func checkOwner(limit, was, by string) error {
	old, fromFile := terms.ParseFileOwner(was)
	next, toFile := terms.ParseFileOwner(by)
	switch {
	case terms.OwnerName(was) == terms.OwnerName(by):
		if next.Revision < old.Revision {
			return &FieldError{Limit: limit, Field: "revision", Reason: fmt.Sprintf("%d is lower than %d, which the store has seen of owner %s", next.Revision, old.Revision, old.Name)}
		}
		return nil
	case (toFile || by == terms.OwnerRLS) && (!fromFile || was == terms.OwnerFile):
		return nil
	}
	return &terms.OwnerError{Limit: limit, Owner: was}
}
