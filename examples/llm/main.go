package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

func main() {
	store, err := memstore.New(memstore.Config{}) // or pgstore, redisstore: every gateway then shares the limits
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := dipwell.New(store, limits...)
	if err != nil {
		log.Fatal(err)
	}
	socket, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.Serve(socket, &model{pause: 50 * time.Millisecond})) }()
	log.Println("the gateway listens on localhost:8080")
	log.Fatal(http.ListenAndServe("localhost:8080", &gateway{limiter, "http://" + socket.Addr().String()}))
}
