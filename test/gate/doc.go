// Package gate counts what an ADD and a DEL cost: system calls, transactions and operations of OVSDB, flows, memory
// allocations, tables on a packet's way. Counts are the same on every machine, however busy; who makes something
// dearer finds it here, and not in a benchmark that nobody runs. How long it takes is measured in test/bench.
package gate
