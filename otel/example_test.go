package otel_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/otel"
)

func Example() {
	reader := sdk.NewManualReader() // a program exports: sdk.NewPeriodicReader(exporter)
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))

	memory, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	defer memory.Close()
	store, err := otel.Observed(memory, provider.Meter("github.com/dipwell/dipwell"))
	if err != nil {
		panic(err)
	}
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 2, Period: time.Hour})
	if err != nil {
		panic(err)
	}
	for range 3 {
		if _, err := limiter.Take(context.Background(), "login", "user:7", 1); err != nil {
			panic(err)
		}
	}
	printMetrics(reader)
	// Output:
	// dipwell.decisions limit=login,result=allowed,verb=take 2
	// dipwell.decisions limit=login,result=refused,verb=take 1
	// dipwell.store.duration 3
}

func printMetrics(reader sdk.Reader) {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	var lines []string
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				text := ""
				for _, a := range p.Attributes.ToSlice() {
					text += fmt.Sprintf(",%s=%s", a.Key, a.Value.AsString())
				}
				lines = append(lines, fmt.Sprintln(m.Name, text[1:], p.Value))
			}
		case metricdata.Histogram[float64]:
			lines = append(lines, fmt.Sprintln(m.Name, data.DataPoints[0].Count))
		}
	}
	slices.Sort(lines)
	for _, l := range lines {
		fmt.Print(l)
	}
}
