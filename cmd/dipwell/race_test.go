//go:build race

package main

// memoryFactor allows for the memory of the race detector.
const memoryFactor = 10
