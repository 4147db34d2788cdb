// Package bench measures Fairlead beside a peer in the same run: on a shared machine absolute times mean little, ratios
// of interleaved runs do. `make bench` runs it; nothing here passes or fails by a time.
package bench
