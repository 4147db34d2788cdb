// Package desired computes the desired state of the node: one value, computed from all inputs by a pure function. The
// same inputs in any order give the same value, so an agent that starts with an empty memory computes the same as its
// predecessor, and its appliers find nothing to change.
//
// The value has one part for each applier (package apply), which recognises on the node what is Fairlead's. Nothing
// here reads the node or the API server.
package desired
