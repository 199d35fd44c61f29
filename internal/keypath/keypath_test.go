package keypath

import "testing"

func TestJoin(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"acme"}, "acme"},
		{[]string{"acme", "u7"}, "acme/u7"},
		{[]string{"a/b", "50%", "c"}, "a%2Fb/50%25/c"},
		{[]string{"%2F"}, "%252F"},
		{[]string{"acme", ""}, "acme/"},
	} {
		if got := Join(c.parts...); got != c.want {
			t.Errorf("%q is %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestParent(t *testing.T) {
	for key, want := range map[string]string{"a/b/c": "a/b", "a/b": "a", "a": "", "": "", "a%2Fb": ""} {
		if got := Parent(key); got != want {
			t.Errorf("the parent's key of %q is %q, want %q", key, got, want)
		}
	}
}
