package apitest

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// No client on this machine can have the port of a server that is yet to start.
func TestFreePortIsNoClients(t *testing.T) {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.Atoi(strings.Fields(string(data))[0])
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if port, err := FreePort(); err != nil || port >= first {
			t.Fatalf("port %d, %v; clients have those from %d", port, err, first)
		}
	}
}
