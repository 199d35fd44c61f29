// Package catalog keeps the limits of a store: it reads, defines and watches them over a
// Backend, and converts definitions to their stored form and back.
package catalog
