package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/dipwell/dipwell"
)

type CancelCmd struct {
	target      `embed:""`
	Reservation string `arg:"" help:"The id that reserve printed."`
}

func (c *CancelCmd) Run(e *env) error {
	var id dipwell.Reservation
	err := id.UnmarshalText([]byte(c.Reservation))
	if err != nil {
		return err
	}
	body, _ := json.Marshal(map[string]string{"reservation": id.String()})
	if _, err = c.call(e, http.MethodPost, "/v1/cancel", body); err != nil {
		return err
	}
	if c.JSON {
		_, err = fmt.Fprintf(e.stdout, "{\"cancelled\":true,\"reservation\":%q,\"asked\":%q}\n", id, c.asked())
	} else {
		_, err = fmt.Fprintf(e.stdout, "cancelled: %s; asked %s\n", id, c.asked())
	}
	return err
}
