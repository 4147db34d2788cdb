package uml

import (
	"fmt"
	"math/rand/v2"
	"net"

	"golang.org/x/sys/unix"
)

// onOneCPU binds the calling thread, and processes that it starts from now on, to one processor, the one with the
// fewest other guests of this machine. The kernel and its programs pass the guest's only processor to each other at
// each system call, and waking up another processor for that is slow on a virtual machine: a system call took 320
// microseconds, on one processor 21, and a fork and exec 43 milliseconds and 12. done must be called when the guest has
// ended. Where binding fails, or there are more than perCPU guests for each processor, the host distributes them. All
// guests that count each other have one name.
func onOneCPU(guests string) (done func()) {
	done = func() {}
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return done
	}
	for guest := range perCPU {
		// In random order, as there may be others outside of our namespaces, such as in other containers.
		for _, cpu := range rand.Perm(len(all) * 64) {
			if !all.IsSet(cpu) {
				continue
			}
			// An abstract name (unix(7)) belongs to one process, and ends with it.
			mine, err := net.Listen("unix", fmt.Sprintf("@%s-%d-%d", guests, cpu, guest))
			if err != nil {
				continue // in use by another guest
			}
			var one unix.CPUSet
			one.Set(cpu)
			_ = unix.SchedSetaffinity(0, &one)
			return func() { mine.Close() }
		}
	}
	return done
}

// perCPU is how many guests at most are bound to a processor. Most have it idle half of the time.
const perCPU = 4
