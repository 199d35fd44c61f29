package main

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/filestore"
)

const dataFile = "dipwell.db" // the file that --data keeps in its directory

// openFile opens a store for a service, or for a client while no service has it.
func openFile(_ context.Context, url string, o *storeOptions) (closer, error) {
	path, every, err := filestore.ParseURL(url)
	if err != nil {
		return nil, err
	}
	if o.once {
		every = filestore.Each // so that the answer is printed only when it is on the disk
	}
	s, err := filestore.Open(path, filestore.Config{Every: every, MaxKeys: o.maxKeys, MaxKeyBytes: o.maxKeyBytes, MaxHolds: o.maxHolds, MaxOverrides: o.maxOverrides, OnError: o.report})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return s, nil
}
