package main

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// conflict reports whether the server's error asks the caller to try again.
func conflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}
