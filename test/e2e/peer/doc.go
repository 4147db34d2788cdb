// Package peer compares a cluster with Fairlead and one with the reference bridge plugin, which run at the same time on
// the same machine and are measured alternately.
package peer
