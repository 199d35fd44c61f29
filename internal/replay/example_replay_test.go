package replay_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/replay"
)

// Three requests within a second, and one a minute later, under a limit of two
// a minute.
func Example() {
	log := `time,user
2026-03-14 09:00:00.0,ann
2026-03-14 09:00:00.2,ann
2026-03-14 09:00:00.4,ann
2026-03-14 09:01:00.0,ann
`
	report, err := replay.Run(context.Background(), replay.Stream("log", strings.NewReader(log)), replay.Options{
		Limits: []dipwell.Limit{{Name: "page", Rate: 2, Period: time.Minute}},
		By:     "user",
	})
	if err != nil {
		panic(err)
	}
	page := report.Limits[0]
	fmt.Println(report.Requests, "requests,", page.Refused, "refused")
	// Output: 4 requests, 1 refused
}
