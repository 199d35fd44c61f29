package store

import "fmt"

// Differs compares a limit with the definition. Differs returns nil if both mean the same, or
// else a *FieldError that names the first setting that differs, with both values: "limit
// login: burst: 20 here and 10 in force". Two limits that are written differently mean the
// same if they count alike: for example, one without a burst and one whose burst equals the
// rate. If l is invalid, Differs returns the error of NewDefinition.
func (d *Definition) Differs(l Limit) error {
	if d.Limit == l {
		return nil
	}
	own := l // escapes to the heap in place of l, so that equal limits allocate nothing
	here, err := NewDefinition(own)
	if err != nil {
		return err
	}
	alike := sameCounting(d, here)
	for i := range settings {
		s := &settings[i]
		ours, theirs := s.inWords(&own), s.inWords(&d.Limit)
		if ours != theirs && (!alike || !s.counts) {
			return &FieldError{Limit: l.Name, Field: s.name, Reason: fmt.Sprintf("%s here and %s in force", ours, theirs)}
		}
	}
	return nil
}

// inWords returns the value of a setting for an error's text, also if the setting was left
// out.
func (s *setting[Limit]) inWords(l *Limit) string {
	if value, explicit := s.value(l); explicit {
		return value
	}
	return "the default"
}
