package trace

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseRequested(t *testing.T) {
	for text, want := range map[string]string{
		"db:80": "default/db 80 6", "shop/db:http/TCP": "shop/db http 6", "db:53/UDP": "default/db 53 17",
		"10.96.0.1:80": "10.96.0.1 80 6", "[fd00::1]:53/UDP": "fd00::1 53 17",
		"fd00::1": "", "10.96.0.1": "", "shop/a": "", ":80": "", "a:": "",
	} {
		r, is := parseRequested(text)
		got := strings.TrimSpace(fmt.Sprintf("%s %s %d", r.service, r.port, r.protocol))
		if r.service == "" {
			got = fmt.Sprintf("%s %s %d", r.addr, r.port, r.protocol)
		}
		if is != (want != "") || is && got != want {
			t.Errorf("%s: %v, %q, want %q", text, is, got, want)
		}
	}
}
