// Package gate counts the cost of an ADD and a DEL: system calls, OVSDB transactions and operations, flows, memory
// allocations, tables on a packet's path. Counts are the same on every machine, however busy; a regression shows here,
// not only in a benchmark that is rarely run. Times are measured in test/bench.
package gate
