//go:build race

package main

// memoryFactor is what the race detector keeps beside each byte, and some.
const memoryFactor = 10
