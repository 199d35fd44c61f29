package redisstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// storedLimit is a field of the hash of limits, a public format.
type storedLimit struct {
	Settings   [][2]string      `json:"settings,omitempty"` // as in a configuration file
	Owner      string           `json:"owner,omitempty"`
	Version    uint32           `json:"version,omitempty"`
	Present    *catalog.Version `json:"present,omitempty"`    // the rule of that version
	Past       string           `json:"past,omitempty"`       // older versions, a line each: see pastLine
	Overridden bool             `json:"overridden,omitempty"` // keys may have overrides
	Dropped    uint32           `json:"dropped,omitempty"`    // the last version of a limit that was dropped
}

// encodeDropped encodes a dropped limit.
func encodeDropped(last uint32) string { return encode(storedLimit{Dropped: last}) }

func encode(l storedLimit) string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

func encodeDefinition(d *store.Definition) string {
	present := catalog.NewVersion(catalog.Present(d), &d.Limit)
	l := storedLimit{Settings: d.Explicit(), Owner: d.Owner, Version: d.Number, Present: &present, Overridden: d.Overridden}
	past := make([]byte, 0, 128*len(d.Past))
	for _, v := range d.Past {
		past = appendPast(past, v, d.Overridden)
	}
	l.Past = string(past)
	return encode(l)
}

// appendPast appends the line of an older version: its numbers, policy and zone as words,
// and after a tab its settings, if rows of its plans or of overrides may need them. It is
// short and quickly read, because a limit that is changed in rapid succession has many.
func appendPast(b []byte, v *store.Version, overridden bool) []byte {
	r, c := &v.Rule, v.Rule.Calendar.Spec()
	for _, n := range [pastNumbers]int64{int64(v.Number), v.Since, r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most,
		r.MaxCharge, r.MaxUsed, c.Months, c.Days, c.Clock, bit(r.Leaky), bit(r.Spread), bit(r.Sliding)} {
		b = append(strconv.AppendInt(b, n, 10), ' ')
	}
	b = append(append(append(b, v.Policy.String()...), ' '), c.Zone...)
	if overridden || v.Limit.Plans != (store.Plans{}) {
		b = append(append(b, '\t'), catalog.NewVersion(v, &v.Limit).Settings...)
	}
	return append(b, '\n')
}

// pastNumbers is how many numbers are in the line of a version.
const pastNumbers = 18

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// parsePast reads the lines of appendPast. A version that known has too is taken from
// there, so that it is in memory once.
func parsePast(text string, known *store.Definition) (past []*store.Version, err error) {
	for line := range strings.Lines(text) {
		v, err := parsePastLine(strings.TrimSuffix(line, "\n"), known)
		if err != nil {
			return nil, fmt.Errorf("version %q: %w", line, err)
		}
		past = append(past, v)
	}
	return past, nil
}

func parsePastLine(line string, known *store.Definition) (*store.Version, error) {
	words, settings, _ := strings.Cut(line, "\t")
	word := strings.Split(words, " ")
	if len(word) != pastNumbers+2 {
		return nil, fmt.Errorf("%d words instead of %d", len(word), pastNumbers+2)
	}
	var n [pastNumbers]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(word[i], 10, 64); err != nil {
			return nil, err
		}
	}
	if v := catalog.Known(known, uint32(n[0]), n[1]); v != nil {
		return v, nil
	}
	v := catalog.Version{Number: uint32(n[0]), Since: n[1], Unit: n[2], Every: n[3], Add: n[4], Cap: n[5], Origin: n[6], Burst: n[7], Debt: n[8], Most: n[9],
		MaxCharge: n[10], MaxUsed: n[11], Months: n[12], Days: n[13], Clock: n[14], Leaky: n[15] != 0, Spread: n[16] != 0, Sliding: n[17] != 0,
		Policy: word[pastNumbers], Zone: word[pastNumbers+1], Settings: settings}
	return v.Version()
}

// decodeDefinition reads a field. It returns nil if the field is missing or the limit was
// dropped. known is the definition of the limit that this program has, or nil.
func decodeDefinition(name, text string, known *store.Definition) (*store.Definition, error) {
	if text == "" {
		return nil, nil
	}
	d, err := decode(text, known)
	if err == nil && d != nil && d.Name != name {
		err = fmt.Errorf("its settings are those of %s", d.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: limit %s as it is stored: %w", store.ErrStore, name, err)
	}
	return d, nil
}

func decode(text string, known *store.Definition) (*store.Definition, error) {
	var l storedLimit
	if err := json.Unmarshal([]byte(text), &l); err != nil || l.Dropped > 0 {
		return nil, err
	}
	if l.Present == nil {
		return nil, errors.New("its present version is not there")
	}
	var limit store.Limit
	for _, set := range l.Settings {
		if err := limit.Set(set[0], set[1]); err != nil {
			return nil, err
		}
	}
	d, err := catalog.Definition(limit, l.Owner, l.Version, []catalog.Version{*l.Present}, nil)
	if err == nil {
		d.Past, err = parsePast(l.Past, known)
	}
	if err == nil {
		d.Overridden = d.Overridden || l.Overridden
	}
	return d, err
}

// restore returns the text of a limit that a server which has lost changes should store.
// theirs is the text that it has now, ours the last one that this program has read. If both
// are of one version, the server may have lost the mark of overrides, or that the limit was
// dropped.
func restore(theirs, ours string) string {
	if theirs == ours {
		return theirs
	}
	var has, had storedLimit
	switch mine, there := numberOf(ours), numberOf(theirs); {
	case mine > there, mine == there && dropped(ours) && !dropped(theirs):
		return ours
	case mine < there || json.Unmarshal([]byte(theirs), &has) != nil || json.Unmarshal([]byte(ours), &had) != nil || has.Dropped > 0:
		return theirs
	}
	if has.Overridden || !had.Overridden {
		return theirs
	}
	has.Overridden = true
	return encode(has)
}

// dropped reports whether the limit in a field was dropped.
func dropped(text string) bool {
	var l struct{ Dropped uint32 }
	return json.Unmarshal([]byte(text), &l) == nil && l.Dropped > 0
}

// numberOf returns the highest version that the limit in a field has had, or 0 if the
// field is missing.
func numberOf(text string) uint32 {
	var l struct {
		Version uint32
		Dropped uint32
	}
	_ = json.Unmarshal([]byte(text), &l)
	return max(l.Version, l.Dropped)
}
