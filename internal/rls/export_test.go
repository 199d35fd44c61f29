package rls

// Tokens is tokens, for its tests.
var Tokens = tokens
