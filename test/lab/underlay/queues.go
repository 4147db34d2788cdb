package underlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// queueSize is the size of a receive queue of a port of the switch, in bytes of kernel memory. The kernel's default
// holds some 250 small frames, fewer than the burst of a node whose Open vSwitch had to wait; a real switch would
// buffer it.
const queueSize = 16 << 20

// deepQueues lengthens the queues of all packet sockets of the switch, which are its ports' in userspace; the kernel's
// datapath has none. It runs on the host Switch.
func deepQueues() error {
	pid, err := vswitch.PID()
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("opening ovs-vswitchd, process %d: %w", pid, err)
	}
	defer unix.Close(process)
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	for _, file := range files {
		if to, err := os.Readlink(file); err != nil || !strings.HasPrefix(to, "socket:") {
			continue // or closed meanwhile
		}
		fd, err := strconv.Atoi(filepath.Base(file))
		if err != nil {
			return err
		}
		if err := deepQueue(process, fd); err != nil {
			return fmt.Errorf("file descriptor %d of ovs-vswitchd: %w", fd, err)
		}
	}
	return nil
}

// deepQueue lengthens the queue of a process's socket, if it is a packet socket.
func deepQueue(process, fd int) error {
	socket, err := unix.PidfdGetfd(process, fd, 0)
	if errors.Is(err, unix.EBADF) {
		return nil // closed meanwhile
	}
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_PACKET {
		return err
	}
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize)
}
