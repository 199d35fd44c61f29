package storetest

// Brief is every case once, with short races and two histories: for tests of
// many combinations of stores that were each tested in full.
func Brief(s *size) { *s = size{rounds: 1, histories: 2, steps: 60, vectors: 47, part: 4} }
