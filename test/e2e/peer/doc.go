// Package peer measures a cluster over Fairlead beside one over the reference bridge plugin, which are up at the same
// time on the same machine and have their turns.
package peer
