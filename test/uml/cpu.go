package uml

import (
	"fmt"
	"math/rand/v2"
	"net"

	"golang.org/x/sys/unix"
)

// onOneCPU has the calling thread, and what it starts from now on, run on one processor, on one that no other guest of
// this machine has if there is one. The kernel and its programs hand the guest's only processor to each other at each
// system call, and to wake up another processor for that is slow where the machine is a virtual one: a system call
// took 320 microseconds, on one processor 21, and a fork and exec 43 milliseconds and 12. done is to be called when
// the guest has ended. Where this can't be, or there are more guests than processors, the host distributes them.
func onOneCPU() (done func()) {
	done = func() {}
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return done
	}
	// By chance, as others may be at work where our names are not known, such as in other containers.
	for _, cpu := range rand.Perm(len(all) * 64) {
		if !all.IsSet(cpu) {
			continue
		}
		// An abstract name (unix(7)) is one process's, and ends with it.
		mine, err := net.Listen("unix", fmt.Sprintf("@fairlead-uml-cpu-%d", cpu))
		if err != nil {
			continue // another guest's
		}
		var one unix.CPUSet
		one.Set(cpu)
		_ = unix.SchedSetaffinity(0, &one)
		return func() { mine.Close() }
	}
	return done
}
