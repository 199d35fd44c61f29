// Package examples holds configurations and programs to copy from, and the
// tests that run them.
package examples
