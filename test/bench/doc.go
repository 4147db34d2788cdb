// Package bench measures Fairlead and a peer in the same run: on a shared machine absolute times mean little, but
// ratios of interleaved runs are meaningful. `make bench` runs it; no time is a pass or failure.
package bench
