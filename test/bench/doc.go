// Package bench measures Fairlead beside a peer in the same run: times on a
// shared machine mean little, ratios of interleaved runs do. `make bench` runs
// it; nothing here passes or fails by a time.
package bench
