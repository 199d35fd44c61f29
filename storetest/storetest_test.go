package storetest_test

import (
	"testing"

	"github.com/dipwell/dipwell/storetest"
)

func TestReference(t *testing.T) { storetest.Run(t, openRef(bug{})) }
