package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// maxProcessors is the most that a pass of the loop, the CNI calls beside it and a garbage collection keep busy.
const maxProcessors = 4

// limitProcessors has the agent's own code use a fourth of the processors that it may use, between 1 and maxProcessors,
// unless the environment variable GOMAXPROCS says otherwise. docs/decisions.md says why.
func limitProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors(runtime.GOMAXPROCS(0))) // 0 asks: the node's, less by affinity and CPU limit
	}
}

// moreGarbage is how much the heap may grow, in percent of what is in use, before garbage is collected. With Go's 100
// an agent with 10,000 Services had 68 to 85 MiB resident and took 1.5 to 1.8 % of a core at rest, with 50 63 to 69 MiB
// and 1.9 to 2.2 %; one with 2 Services 38 MiB and 0.26 %, with 50 37 MiB and 0.34 %.
const moreGarbage = 50

// limitGarbage sets that, unless the environment variable GOGC says otherwise.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(moreGarbage)
	}
}

func processors(available int) int { return min(max(available/4, 1), maxProcessors) }
