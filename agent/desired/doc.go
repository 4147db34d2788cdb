// Package desired says what the node should look like: one value, computed from all inputs by a pure function. The same
// inputs in any order give the same value, so an agent that starts with an empty memory computes what the one before
// did, and its appliers find nothing to change.
//
// The value has one part for each applier (package apply), which recognises on the node what is Fairlead's. Nothing
// here reads the node or the API server.
package desired
