package link

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// OnThread never uses the process's first thread: enough threads are held that it would be among them.
func TestOnThreadIsNotTheFirst(t *testing.T) {
	const threads = 50
	var began, ended sync.WaitGroup
	began.Add(threads)
	for range threads {
		ended.Go(func() {
			err := OnThread(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("the process's first thread is given away")
				}
				began.Done()
				began.Wait()
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
}
