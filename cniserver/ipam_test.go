package cniserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
)

// secondary is a macvlan network with Fairlead as its IPAM plugin.
func secondary(version, ipam string, others ...string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "net-1", "type": "macvlan", "master": "eth0", %s "ipam": {"type": "antrea", %s}}`,
		version, strings.Join(append(others, ""), ", "), ipam)
}

func given(texts ...string) (out []cniserver.Address) {
	for _, text := range texts {
		prefix, gateway, _ := strings.Cut(text, " ")
		out = append(out, cniserver.Address{Prefix: netip.MustParsePrefix(prefix), Gateway: netip.MustParseAddr(gateway)})
	}
	return out
}

// Every verb calls IPAM with its arguments, and no other Handler.
func TestIPAMVerbs(t *testing.T) {
	needNetns(t)
	h, a := &handler{}, &addresses{given: given("10.10.1.7/24 10.10.1.1", "fd00::7/64 fd00::1")}
	s := start(t, h, cniserver.Config{IPAM: a})
	conf := func(ipam string, others ...string) func(*wire.Request) {
		return config("%s", secondary("1.1.0", ipam, others...))
	}
	const pools = `"ippools": ["a", "b"]`
	prev := func(ips string) string {
		return fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "x"}, {"name": "eth1"}],
			"ips": [%s]}`, ips)
	}
	for _, r := range []wire.Request{
		request("ADD", conf(pools)),
		request("ADD", conf(pools+`, "addresses": [{"address": "10.9.0.1/24"}]`, `"runtimeConfig": {"ips": ["10.10.1.7", "fd00::7/64"]}`)),
		request("ADD", conf(pools), args("IP=10.10.1.8/24")),
		request("ADD", conf(pools, `"args": {"cni": {"ips": ["10.10.1.9"]}}`), args("IP=10.10.1.8")),
		request("ADD", conf(`"addresses": [{"address": "10.9.0.1/24"}]`)),
		request("CHECK", conf(pools, prev(`{"interface": 0, "address": "10.10.1.7/24"}, {"interface": 1, "address": "10.3.0.1/24"},
			{"address": "fd00::7/64"}`))),
		request("CHECK", conf(pools+`, "addresses": [{"address": "10.9.0.1/24", "gateway": "10.9.0.2"}]`,
			prev(`{"address": "10.10.1.7/24"}, {"interface": 0, "address": "10.9.0.1/24", "gateway": "10.9.0.2"}`))),
		request("DEL", conf(`"ippool": 5`)),
		request("DEL", conf(pools), inNetns("")),
		request("GC", conf(pools, `"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "net1"}]`)),
		request("STATUS", conf(pools)),
	} {
		wantSuccess(t, ask(t, s.socket, r))
	}
	want := []string{
		"ADD c1 eth0 shop/web-0 net-1 pools [a b] wanted []",
		"ADD c1 eth0 shop/web-0 net-1 pools [a b] wanted [10.10.1.7/32 fd00::7/64]",
		"ADD c1 eth0 / net-1 pools [a b] wanted [10.10.1.8/24]",
		"ADD c1 eth0 / net-1 pools [a b] wanted [10.10.1.9/32]",
		"ADD c1 eth0 shop/web-0 net-1 pools [] wanted []",
		"CHECK c1 eth0 net-1 prev [10.10.1.7/24 fd00::7/64]",
		"CHECK c1 eth0 net-1 prev [10.10.1.7/24]",
		"DEL c1 eth0 net-1", "DEL c1 eth0 net-1",
		"GC net-1 [{c2 net1}]", "STATUS [a b]",
	}
	if got := a.calls(); !slices.Equal(got, want) {
		t.Errorf("IPAM saw\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(h.calls()) > 0 {
		t.Errorf("the handler of the main plugin saw %v", h.calls())
	}
	a.err = errors.New("no pool")
	wantError(t, ask(t, s.socket, request("STATUS", conf(pools))), 50, "no pool")
	wantError(t, ask(t, s.socket, request("CHECK", conf(pools, prev("")))), cniserver.CodeCheck, "no pool")
	a.err = context.DeadlineExceeded
	wantError(t, ask(t, s.socket, request("ADD", conf(pools))), 11, "deadline")
}

// Each row is a configuration that ADD, CHECK and STATUS reject, with a message that names the key.
func TestIPAMConfigRefused(t *testing.T) {
	needNetns(t)
	a := &addresses{}
	s := start(t, &handler{}, cniserver.Config{IPAM: a})
	const pool = `"ippools": ["a"]`
	for name, c := range map[string]struct {
		ipam string
		says []string
		code uint
	}{
		"nothing":          {`"dns": {}`, []string{"ipam", "neither ippools nor addresses"}, 7},
		"no pools":         {`"ippools": []`, []string{"neither ippools nor addresses"}, 7},
		"misspelt":         {`"ippool": ["a"]`, []string{`unknown field "ippool"`, "The keys are", "ippools"}, 7},
		"in capitals":      {`"ipPools": ["a"]`, []string{`unknown field "ipPools"`}, 7},
		"of another":       {pool + `, "subnet": "10.0.0.0/8"`, []string{`unknown field "subnet"`}, 7},
		"twice":            {pool + `, "ippools": ["b"]`, []string{`duplicate field "ippools"`}, 7},
		"key of address":   {`"addresses": [{"adr": "10.0.0.1/8"}]`, []string{`unknown field "addresses[0].adr"`}, 7},
		"key of route":     {pool + `, "routes": [{"dst": "0.0.0.0/0", "via": "10.0.0.1"}]`, []string{`unknown field "routes[0].via"`}, 7},
		"key of dns":       {pool + `, "dns": {"server": []}`, []string{`unknown field "dns.server"`}, 7},
		"pools a string":   {`"ippools": "a"`, []string{`"ipam"`, "ippools", "string"}, 6},
		"pool a number":    {`"ippools": [1]`, []string{`"ipam"`, "ippools", "number"}, 6},
		"pool is empty":    {`"ippools": [""]`, []string{`ipam.ippools[0]: ""`}, 7},
		"pool is a path":   {`"ippools": ["a", "../b"]`, []string{`ipam.ippools[1]: "../b"`}, 7},
		"pool twice":       {`"ippools": ["a", "a"]`, []string{"ipam.ippools names a twice"}, 7},
		"no mask":          {`"addresses": [{"address": "10.0.0.1"}]`, []string{`ipam.addresses[0]: invalid address "10.0.0.1"`, "with its mask"}, 7},
		"no address":       {`"addresses": [{"gateway": "10.0.0.1"}]`, []string{`ipam.addresses[0]: invalid address ""`}, 7},
		"garbage":          {pool + `, "addresses": [{"address": "x/24"}]`, []string{`ipam.addresses[0]: invalid address "x/24"`}, 7},
		"multicast":        {`"addresses": [{"address": "224.0.0.1/24"}]`, []string{`ipam.addresses[0]`}, 7},
		"unspecified":      {`"addresses": [{"address": "0.0.0.0/0"}]`, []string{`ipam.addresses[0]`}, 7},
		"IPv4 in IPv6":     {`"addresses": [{"address": "::ffff:10.0.0.1/120"}]`, []string{`ipam.addresses[0]`}, 7},
		"address twice":    {`"addresses": [{"address": "10.0.0.1/8"}, {"address": "10.0.0.1/24"}]`, []string{"ipam.addresses[1]", "duplicate address"}, 7},
		"bad gateway":      {`"addresses": [{"address": "10.0.0.1/8", "gateway": "10.0.0.0/8"}]`, []string{`ipam.addresses[0].gateway: "10.0.0.0/8"`}, 7},
		"gateway's family": {`"addresses": [{"address": "10.0.0.1/8", "gateway": "fd00::1"}]`, []string{"10.0.0.1/8 and its gateway fd00::1 are of different families"}, 7},
		"route to nowhere": {pool + `, "routes": [{"gw": "10.0.0.1"}]`, []string{`ipam.routes[0].dst: invalid destination ""`}, 7},
		"route by name":    {pool + `, "routes": [{"dst": "default"}]`, []string{`ipam.routes[0].dst: invalid destination "default"`}, 7},
		"bad gw":           {pool + `, "routes": [{"dst": "0.0.0.0/0", "gw": "x"}]`, []string{`ipam.routes[0].gw: "x"`}, 7},
		"gw's family":      {pool + `, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "10.0.0.1"}]`, []string{"ipam.routes[1]", "different families"}, 7},
		"mtu":              {pool + `, "routes": [{"dst": "0.0.0.0/0", "mtu": -1}]`, []string{"ipam.routes[0]", "mtu"}, 7},
		"nameserver":       {pool + `, "dns": {"nameservers": ["dns.example.com"]}`, []string{`ipam.dns.nameservers[0]: "dns.example.com"`}, 7},
		"dns is a list":    {pool + `, "dns": []`, []string{`"ipam"`, "dns", "array"}, 6},
	} {
		conf := config("%s", secondary("1.1.0", c.ipam, `"prevResult": {"cniVersion": "1.1.0", "ips": []}`))
		for _, verb := range []string{"ADD", "CHECK", "STATUS"} {
			t.Run(name+" "+verb, func(t *testing.T) { wantError(t, ask(t, s.socket, request(verb, conf)), c.code, c.says...) })
		}
	}
	for name, c := range map[string]struct {
		r    wire.Request
		code uint
		says []string
	}{
		"no prevResult": {request("CHECK", config("%s", secondary("1.1.0", pool))), 7, []string{"CHECK without prevResult"}},
		"static gone": {request("CHECK", config("%s", secondary("1.1.0", `"addresses": [{"address": "10.0.0.1/8"}]`,
			`"prevResult": {"ips": [{"address": "10.0.0.2/8"}]}`))), cniserver.CodeCheck, []string{"lacks the address 10.0.0.1/8"}},
		"static gateway": {request("CHECK", config("%s", secondary("1.1.0", `"addresses": [{"address": "10.0.0.1/8", "gateway": "10.0.0.2"}]`,
			`"prevResult": {"ips": [{"address": "10.0.0.1/8", "gateway": "10.0.0.3"}]}`))), cniserver.CodeCheck,
			[]string{"another gateway for 10.0.0.1/8 than 10.0.0.2"}},
		"no list": {request("GC", config("%s", secondary("1.1.0", pool))), 7, []string{"cni.dev/valid-attachments", "nothing was removed"}},
		"wanted": {request("ADD", config("%s", secondary("1.1.0", pool, `"runtimeConfig": {"ips": ["x"]}`))), 7,
			[]string{`runtimeConfig.ips: invalid address "x"`}},
		"wanted twice": {request("ADD", config("%s", secondary("1.1.0", pool)), args("IP=10.0.0.1,10.0.0.2/8")), 7,
			[]string{"IP= of CNI_ARGS", "a second address of one family", "10.0.0.2"}},
		"wanted, static": {request("ADD", config("%s", secondary("1.1.0", `"routes": []`, `"args": {"cni": {"ips": ["10.0.0.1"]}}`))), 7,
			[]string{`args.cni.ips[0]: invalid address "10.0.0.1"`, "with its mask"}},
		"gateway of a pool": {request("ADD", config("%s", secondary("1.1.0", pool)), args("GATEWAY=10.0.0.1")), 4,
			[]string{"GATEWAY=10.0.0.1", "their pool's gateway"}},
		"gateway":            {request("ADD", config("%s", secondary("1.1.0", pool)), args("GATEWAY=x")), 4, []string{"GATEWAY=x"}},
		"netns":              {request("ADD", config("%s", secondary("1.1.0", pool)), inNetns("/proc/self/ns/net")), 8, []string{"the node's own"}},
		"of the main plugin": {request("ADD", args("IP=10.0.0.1")), 4, []string{"CNI_ARGS", "unknown", "IP"}},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, ask(t, s.socket, c.r), c.code, c.says...) })
	}
	if len(a.calls()) > 0 {
		t.Errorf("IPAM saw %v", a.calls())
	}
}

// examples are the configurations of Antrea's page, the last as a NetworkAttachmentDefinition's spec, to which Multus
// adds the name. KEYS stands for the keys in which Fairlead and the plugin static differ.
var examples = map[string]struct {
	conf   string
	pools  string   // what follows "ipam": {"type": "antrea",
	static []string // addresses of ipam.addresses
	given  []string
}{
	"one pool": {`{"cniVersion": "0.3.0", "name": "ipv4-net-1", "type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": {KEYS}}`,
		`"ippools": [ "ipv4-pool-1" ]`, nil, []string{"10.10.1.7/24 10.10.1.1"}},
	"both families": {`{"cniVersion": "0.3.0", "name": "dual-stack-net-1", "type": "macvlan", "master": "eth0", "mode": "bridge",
		"ipam": {KEYS}}`, `"ippools": [ "ipv4-pool-1", "ipv6-pool-1" ]`, nil,
		[]string{"10.10.1.7/24 10.10.1.1", "3ffe:ffff:1:1ff::107/64 3ffe:ffff:1:1ff::1"}},
	"pool and static": {`{"cniVersion": "0.3.0", "name": "pool-and-static-net-1", "type": "bridge", "bridge": "br0", "ipam": {KEYS,
		"routes": [ { "dst": "0.0.0.0/0" }, { "dst": "192.168.0.0/16", "gw": "10.10.5.1" }, { "dst": "3ffe:ffff:0:01ff::1/64" } ],
		"dns": { "nameservers" : ["8.8.8.8"], "domain": "example.com", "search": [ "example.com" ] }}}`,
		`"ippools": [ "ipv4-pool-1" ]`,
		[]string{"10.10.0.1/24 10.10.0.254", "3ffe:ffff:0:01ff::1/64 3ffe:ffff:0::1"}, []string{"10.10.1.7/24 10.10.1.1"}},
	"definition": {`{"cniVersion": "0.3.0", "name": "ipv4-net-1", "type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": {KEYS}}`,
		`"ippools": [ "ipv4-pool-1" ]`, nil, []string{"10.10.1.7/24 10.10.1.1"}},
}

func addressKeys(list []string) string {
	var out []string
	for _, text := range list {
		address, gateway, _ := strings.Cut(text, " ")
		out = append(out, fmt.Sprintf(`{"address": %q, "gateway": %q}`, address, gateway))
	}
	return `"addresses": [` + strings.Join(out, ", ") + "]"
}

// Fairlead's output equals that of the reference plugin static with the same addresses.
func TestIPAMLikeStatic(t *testing.T) {
	needNetns(t)
	for name, e := range examples {
		for _, version := range wire.Versions() {
			t.Run(name+" "+version, func(t *testing.T) {
				s := start(t, &handler{}, cniserver.Config{IPAM: &addresses{given: given(e.given...)}})
				conf := strings.Replace(e.conf, "0.3.0", version, 1)
				ours, ref := `"type": "antrea", `+e.pools, `"type": "static", `+addressKeys(append(e.given, e.static...))
				if len(e.static) > 0 {
					ours += ", " + addressKeys(e.static)
				}
				conf = strings.Replace(conf, "{", fmt.Sprintf(`{"cniSocket": %q, `, s.socket), 1)
				sameAsStatic(t, env("ADD"), strings.Replace(conf, "KEYS", ours, 1), strings.Replace(conf, "KEYS", ref, 1))
			})
		}
	}
	// Without pools the runtime's addresses are handled as by static.
	s := start(t, &handler{}, cniserver.Config{})
	const two = `"addresses": [{"address": "10.9.0.1/24"}, {"address": "fd00::1/64", "gateway": "fd00::2"}]`
	for name, c := range map[string]struct {
		env    []string
		others string
	}{
		"alone":          {env("ADD"), ""},
		"CNI_ARGS":       {append(env("ADD"), "CNI_ARGS=IgnoreUnknown=1;IP=10.9.0.7/24, 10.8.0.7/24;GATEWAY=10.9.0.254,10.8.0.1"), ""},
		"args":           {env("ADD"), `"args": {"cni": {"ips": ["10.9.0.8/24"]}},`},
		"runtimeConfig":  {env("ADD"), `"args": {"cni": {"ips": ["10.9.0.8/24"]}}, "runtimeConfig": {"ips": ["10.9.0.9/24", "fd00::9/64"]},`},
		"with all of it": {append(env("ADD"), "CNI_ARGS=IP=10.9.0.7/24;GATEWAY=10.9.0.254"), `"runtimeConfig": {"ips": ["10.9.0.9/24"]},`},
	} {
		t.Run(name, func(t *testing.T) {
			conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "cniSocket": %q, %s "ipam": {"type": "TYPE", %s}}`,
				s.socket, c.others, two)
			sameAsStatic(t, c.env, strings.Replace(conf, "TYPE", "fairlead", 1), strings.Replace(conf, "TYPE", "static", 1))
		})
	}
}

// sameAsStatic compares the output of the two plugins.
func sameAsStatic(t *testing.T, environ []string, conf, ref string) {
	t.Helper()
	ours, _, code := run(t, "fairlead", environ, conf)
	theirs, _, refCode := run(t, "static", environ, ref)
	if code != 0 || refCode != 0 || !json.Valid([]byte(theirs)) || canonical(t, ours) != canonical(t, theirs) {
		t.Errorf("exit codes %d and %d, Fairlead printed\n%s\nand static\n%s", code, refCode, ours, theirs)
	}
}
