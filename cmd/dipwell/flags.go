package main

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dipwell/dipwell/internal/period"
)

// readers make flags read numbers and lengths of time as files and the API do. The
// parser's own readers would take 010 for 8, and do not know days.
func readers() []kong.Option {
	return []kong.Option{
		kong.KindMapper(reflect.Int, kong.MapperFunc(readInt)),
		kong.KindMapper(reflect.Int64, kong.MapperFunc(readInt)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(readDuration)),
		kong.TypeMapper(reflect.TypeFor[length](), kong.MapperFunc(readDuration)),
	}
}

func between[T cmp.Ordered](flag string, value, least, most T) error {
	if value < least || value > most {
		return fmt.Errorf("%s: %v is not between %v and %v", flag, value, least, most)
	}
	return nil
}

func readInt(c *kong.DecodeContext, to reflect.Value) error {
	text, err := popText(c, "int")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 10, to.Type().Bits())
	if err != nil {
		return fmt.Errorf("%q is not a whole number in digits", text)
	}
	to.SetInt(n)
	return nil
}

func readDuration(c *kong.DecodeContext, to reflect.Value) error {
	text, err := popText(c, "duration")
	if err != nil {
		return err
	}
	d, err := period.ParseSetting(text)
	to.SetInt(int64(d))
	return err
}

func popText(c *kong.DecodeContext, kind string) (text string, err error) {
	err = c.Scan.PopValueInto(kind, &text)
	return text, err
}
