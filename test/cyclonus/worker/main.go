// Command worker tries connections from a pod, all at once. Cyclonus' worker of the same name runs one process after
// the other: 324 processes of agnhost in each step keep two processors busy for half a minute.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/worker"
	corev1 "k8s.io/api/core/v1"
)

// timeout is what cyclonus' worker gives a connection.
const timeout = time.Second

func main() {
	jobs := flag.String("jobs", "", "connections, as JSON")
	flag.Parse()
	var batch worker.Batch
	if err := json.Unmarshal([]byte(*jobs), &batch); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(tryAll(batch.Requests)); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func tryAll(requests []*worker.Request) []worker.Result {
	results := make([]worker.Result, len(requests))
	var all sync.WaitGroup
	for i, r := range requests {
		all.Go(func() {
			err := try(r)
			if err != nil { // retry once, like cyclonus' worker: a first packet may be lost
				err = try(r)
			}
			results[i] = worker.Result{Request: r}
			if err != nil {
				results[i].Error = err.Error()
			}
		})
	}
	all.Wait()
	return results
}

// try does what "agnhost connect" does.
func try(r *worker.Request) error {
	network := strings.ToLower(string(r.Protocol))
	if r.Protocol == corev1.ProtocolSCTP {
		return exec.Command("/agnhost", "connect", r.Address(), "--timeout="+timeout.String(), "--protocol=sctp").Run()
	}
	c, err := net.DialTimeout(network, r.Address(), timeout)
	if err != nil || r.Protocol == corev1.ProtocolTCP {
		if err == nil {
			err = c.Close()
		}
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("who is there\n")); err != nil {
		return err
	}
	n, err := c.Read(make([]byte, 1024))
	if err == nil && n == 0 {
		err = errors.New("an empty answer")
	}
	return err
}
