package uml

import (
	"fmt"
	"math/rand/v2"
	"net"

	"golang.org/x/sys/unix"
)

// onOneCPU binds the calling thread, and processes that it starts from now on, to one processor, the one with the
// fewest other guests of this machine. The kernel and its programs hand the guest's only CPU to each other at each
// system call, and waking up another processor for that is slow on a virtual machine: a system call took 320 µs across
// processors and 21 µs on one, a fork and exec 43 ms and 12 ms. done must be called when the guest has ended. If
// binding fails, or there are more than perCPU guests for each processor, the host schedules them freely. Guests that
// share processors must use the same name.
func onOneCPU(guests string) (done func()) {
	done = func() {}
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return done
	}
	for guest := range perCPU {
		// In random order: there may be guests outside this network namespace, such as in other containers.
		for _, cpu := range rand.Perm(len(all) * 64) {
			if !all.IsSet(cpu) {
				continue
			}
			// An abstract socket (unix(7)) belongs to one process, and disappears with it.
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

// perCPU is the maximum number of guests bound to one processor. Most guests are idle half of the time.
const perCPU = 4
