// Package kernel holds what all appliers need besides netlink requests: sysctls, netlink dumps that must be complete,
// and addresses in netlink's form. It owns nothing. Sysctls and dumps are those of the calling thread's network
// namespace: /proc/sys/net shows the namespace of the thread that opens the file.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// root is where the kernel exposes its network parameters. An unprivileged container can only read them there; it has
// the node's directory at mounted, if at all.
const root, mounted = "/proc/sys/net", "/host/proc/sys/net"

// Sysctl reads the network parameter with the given path below net, such as
// "ipv4", "conf", "eth0.10", "rp_filter". It takes path elements because
// interface names may contain dots. A parameter that the kernel does not have
// gives an error that is fs.ErrNotExist. It reads 4 KB at most, which no interface parameter exceeds.
//
// It makes 3 system calls, where os.ReadFile makes 9, some of them for epoll: an interface has some 100 parameters,
// which are read repeatedly.
func Sysctl(path ...string) (string, error) {
	name := file(root, path)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var b [4096]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return strings.TrimSpace(string(b[:n])), nil
}

// SetSysctl sets the network parameter to value and reports whether it had another value before.
func SetSysctl(value string, path ...string) (changed bool, err error) {
	old, err := Sysctl(path...)
	if err != nil {
		return false, fmt.Errorf("reading sysctl: %w", err)
	}
	if old == value {
		return false, nil
	}
	return true, WriteSysctl(value, path...)
}

// WriteSysctl is SetSysctl for a parameter known to differ: one of a new interface.
func WriteSysctl(value string, path ...string) error {
	err := os.WriteFile(file(root, path), []byte(value), 0)
	if errors.Is(err, syscall.EROFS) {
		if _, none := os.Stat(mounted); none == nil {
			err = os.WriteFile(file(mounted, path), []byte(value), 0)
		}
	}
	if err != nil {
		return fmt.Errorf("setting sysctl to %s: %w", value, err)
	}
	return nil
}

// HasIPv6 reports whether the kernel has IPv6 at all: one booted with ipv6.disable=1 has no parameters for it.
func HasIPv6() bool {
	_, err := os.Stat(filepath.Join(root, "ipv6", "conf"))
	return !errors.Is(err, fs.ErrNotExist)
}

// HasIPv6On reports whether an interface has IPv6: the kernel takes it from one whose MTU is below 1280 (RFC 8200,
// section 5), with its parameters.
func HasIPv6On(ifName string) bool {
	_, err := os.Stat(filepath.Join(root, "ipv6", "conf", ifName))
	return !errors.Is(err, fs.ErrNotExist)
}

func file(root string, path []string) string {
	return filepath.Join(append([]string{root}, path...)...)
}

// Dump repeats a netlink dump until no change elsewhere in the kernel has
// interrupted it, since an interrupted one may lack entries (netlink(7),
// NLM_F_DUMP_INTR). It gives up after 100 tries.
func Dump[T any](list func() (T, error)) (T, error) {
	var got T
	var err error
	for range 100 {
		if got, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return got, err
}
