package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// CancelCmd cancels a reservation.
type CancelCmd struct {
	target      `embed:""`
	Reservation string `arg:"" help:"The id that reserve printed."`
}

func (CancelCmd) Help() string {
	return "Example: dipwell cancel 0198c2f3-5b6e-4cc1-9d1a-3f0a5b7c9d11"
}

func (c *CancelCmd) Run(e *env) error {
	id, err := store.ParseReservation(c.Reservation)
	if err != nil {
		return err
	}
	if c.direct() {
		err = c.open(e, func(ctx context.Context, l *dipwell.Limiter) error { return l.Cancel(ctx, id) })
	} else {
		body, _ := json.Marshal(map[string]string{"reservation": id.String()})
		_, err = c.http(e, http.MethodPost, "/v1/cancel", body)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = fmt.Fprintf(e.stdout, "{\"cancelled\":true,\"reservation\":%q,\"asked\":%q}\n", id, c.asked())
	} else {
		_, err = fmt.Fprintf(e.stdout, "cancelled: %s; asked %s\n", id, c.asked())
	}
	return err
}
