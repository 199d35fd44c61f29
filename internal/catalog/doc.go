// Package catalog keeps the limits of a store: it reads, defines and watches them over a
// Backend, and converts definitions to their stored form and back. It also has the bounds
// and the IDs of the entries of a store's logs: its audit, and the busiest keys of each hour.
package catalog
