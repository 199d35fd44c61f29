package storetest

// Brief is every case once, with short races and two histories: for tests of
// many combinations of stores that were each tested in full.
func Brief(s *size) { s.rounds, s.histories, s.steps, s.vectors, s.part = 1, 2, 60, 47, 4 }
