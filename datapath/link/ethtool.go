package link

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct{ cmd, data uint32 }

// ifreqData is struct ifreq of netdevice(7) with ifr_data.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the union is larger than a pointer
}

// setTxChecksum is "ethtool -K ifName tx on|off". The kernel switches
// segmentation offload off with it.
func setTxChecksum(ifName string, on bool) error {
	v := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		v.data = 1
	}
	if err := ethtool(ifName, &v); err != nil {
		return fmt.Errorf("switching tx checksum offload of %s: %w", ifName, err)
	}
	return nil
}

// txChecksum reports whether the device is left to compute checksums.
func txChecksum(ifName string) (bool, error) {
	v := ethtoolValue{cmd: unix.ETHTOOL_GTXCSUM}
	if err := ethtool(ifName, &v); err != nil {
		return false, fmt.Errorf("reading tx checksum offload of %s: %w", ifName, err)
	}
	return v.data != 0, nil
}

func ethtool(ifName string, v *ethtoolValue) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req := ifreqData{data: unsafe.Pointer(v)}
	copy(req.name[:unix.IFNAMSIZ-1], ifName)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(v)
	if errno != 0 {
		return errno
	}
	return nil
}
