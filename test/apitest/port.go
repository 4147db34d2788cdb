package apitest

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreePort returns a loopback port for a server that starts soon, or again. It is below Linux's ephemeral ports: one of
// these may be in use by then, even by one of the server's own clients, which retry while it is down and so connect to
// themselves.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 12000 + rand.IntN(20000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}
