package uml

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// onOneCPU has the calling thread, and what it starts from now on, run on one processor, on one that no other guest of
// this machine has if there is one. The kernel and its programs hand the guest's only processor to each other at each
// system call, and to wake up another processor for that is slow where the machine is a virtual one: a system call
// took 320 microseconds, on one processor 21, and a fork and exec 43 milliseconds and 12. done is to be called when
// the guest has ended.
func onOneCPU() (done func(), err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	for cpu := range len(all) * 64 {
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
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			mine.Close()
			return nil, fmt.Errorf("sched_setaffinity: %w", err)
		}
		return func() { mine.Close() }, nil
	}
	return func() {}, nil // there are more guests than processors: let the host distribute them
}
