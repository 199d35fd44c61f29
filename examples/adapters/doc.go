// Package adapters puts the middleware of package httplimit into routers and frameworks.
// The package is here to be copied, not to be imported.
//
// A framework whose middleware is func(http.Handler) http.Handler, or that adapts such,
// needs one line:
//
//	chi:    r.Use(limit)
//	Echo:   e.Use(echo.WrapMiddleware(limit))
//	Fiber:  app.Use(adaptor.HTTPMiddleware(limit))
//
// Fiber's adaptor calls the handler after the middleware has returned. A concurrency limit
// then releases what a request holds before the handler runs: use it with the others.
//
// [Gin] is for Gin, and [Connect] for Connect, whose clients expect errors of their own.
package adapters
