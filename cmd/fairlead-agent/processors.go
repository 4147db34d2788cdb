package main

import (
	"os"
	"runtime"
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

func processors(available int) int { return min(max(available/4, 1), maxProcessors) }
