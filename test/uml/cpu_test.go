package uml

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Every processor gets one guest before any gets a second.
func TestUMLGuestsShareProcessors(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("fairlead-uml-test-%d", os.Getpid())
	for round := range 2 {
		used := map[unix.CPUSet]bool{}
		for range all.Count() {
			cpu, done := boundCPU(name)
			t.Cleanup(done)
			used[cpu] = true
		}
		for cpu := range used {
			if cpu.Count() != 1 {
				t.Errorf("guest %d: bound to %d processors", round, cpu.Count())
			}
		}
		if len(used) != all.Count() {
			t.Errorf("guest %d of each processor: on %d of %d", round, len(used), all.Count())
		}
	}
}

// boundCPU returns the processors to which onOneCPU binds a thread. The thread ends.
func boundCPU(name string) (bound unix.CPUSet, done func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		done = onOneCPU(name)
		_ = unix.SchedGetaffinity(0, &bound) // on failure bound is empty, and the caller reports it
	}()
	<-ended
	return bound, done
}
