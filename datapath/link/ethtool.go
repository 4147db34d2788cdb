package link

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// txChecksumsOff disables the device's checksum offload; the kernel disables segmentation offload with it.
func txChecksumsOff(ifName string) error {
	if _, err := ethtoolValue(ifName, unix.ETHTOOL_STXCSUM, 0); err != nil {
		return fmt.Errorf("switching tx checksum offload of %s off: %w", ifName, err)
	}
	return nil
}

// Driver returns the name of an interface's driver; empty if it has none or reports none.
func Driver(ifName string) string {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return ""
	}
	defer e.Close()
	name, err := e.DriverName(ifName)
	if err != nil {
		return ""
	}
	return name
}

// txChecksums reports whether any checksum is left to the device.
func txChecksums(ifName string) (bool, error) {
	value, err := ethtoolValue(ifName, unix.ETHTOOL_GTXCSUM, 0)
	if err != nil {
		return false, fmt.Errorf("reading tx checksum offload of %s: %w", ifName, err)
	}
	return value != 0, nil
}

// ethtoolValue sends a command with a value, and returns the resulting value: ethtool's ioctl (linux/ethtool.h). The
// package for the rest of ethtool lists the names of all features to change one, which takes a megabyte and two more
// waits for the kernel's lock on all links (RTNL).
func ethtoolValue(ifName string, command, data uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening a socket for ethtool: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command, data}
	var request struct { // netdevice(7)
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of the union
	}
	copy(request.name[:unix.IFNAMSIZ-1], ifName)
	request.data = unsafe.Pointer(&value)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return 0, errno
	}
	return value.data, nil
}
