package link

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// txChecksumsOff tells the device to compute no checksum, and the kernel switches segmentation offload off with that.
func txChecksumsOff(ifName string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("opening a socket for ethtool: %w", err)
	}
	defer e.Close()
	features, err := e.Features(ifName)
	if err != nil {
		return fmt.Errorf("reading tx checksum offload of %s: %w", ifName, err)
	}
	change := map[string]bool{}
	for name, is := range features {
		if is && strings.HasPrefix(name, "tx-checksum-") {
			change[name] = false
		}
	}
	if len(change) > 0 {
		if err := e.Change(ifName, change); err != nil {
			return fmt.Errorf("switching tx checksum offload of %s off: %w", ifName, err)
		}
	}
	return nil
}

// Driver is the name of an interface's driver; empty: it has none, or does not say.
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

// txChecksums reports whether the device is left to compute any checksum. It asks for that alone (ethtool's ioctl,
// linux/ethtool.h): pods are checked again and again, and a list of the names of all features takes a megabyte.
func txChecksums(ifName string) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("opening a socket for ethtool: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_GTXCSUM}
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
		return false, fmt.Errorf("reading tx checksum offload of %s: %w", ifName, errno)
	}
	return value.data != 0, nil
}
