// Package catalog keeps the limits of a store: it reads, defines and watches
// them over a Backend, and turns definitions into what is stored and back.
package catalog
