package link

import (
	"runtime"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// OnThread runs f on a thread that ends with it, so f may change the thread's namespaces. It is never the process's
// first thread, which Go does not end, and whose namespaces a command run in the container gets: a goroutine that
// happens to be on that thread occupies it while another runs f. Go guarantees main.main the first thread only if an
// init function locks it.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}

// Within runs f on a thread in the network namespace at path.
func Within(path string, f func() error) error {
	netns, err := ns.GetNS(path)
	if err != nil {
		return err
	}
	defer netns.Close()
	return OnThread(func() error {
		if err := netns.Set(); err != nil {
			return err
		}
		return f()
	})
}
