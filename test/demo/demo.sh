#!/bin/bash
# The first run: two nodes on this machine, pods that talk, an agent killed
# under a running ping, and everything removed again.
set -euo pipefail
cd "$(dirname "$0")/../.."

lab() { bin/lab --dir /run/fairlead-demo "$@"; }
title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '$ bin/lab %s\n' "$*"; lab "$@"; }
# The first address of a family (4 or 6) of a pod.
address() { lab pod "$1" -- ip -json -"$2" address show dev eth0 scope global |
	sed -n 's/.*"local":"\([^"]*\)".*/\1/p' | head -n 1; }
# The first packet to another node waits until Open vSwitch has resolved the
# node's address, up to a second on the userspace datapath: it is not counted.
ping_from() {
	lab pod "$1" -- ping -c 1 -W 3 -q "$2" >/dev/null || true
	run pod "$1" -- ping -c 3 -i 0.2 -W 2 -q "$2"
}

title 'Two nodes, each with its own network, Open vSwitch and agent'
trap 'title "Clean up"; lab down' EXIT
trap 'exit 130' INT TERM
run up --nodes 2 --datapath netdev --ip-family dual

title 'Three pods: a and b on node1, c on node2'
run apply --wait 30s -f test/demo/pods.yaml
run status

a4=$(address default/a 4) b4=$(address default/b 4) c4=$(address default/c 4) c6=$(address default/c 6)

title 'Pod to pod on one node: a -> b'
ping_from default/a "$b4"
title 'Pod to pod across nodes, through the tunnel: a -> c, IPv4 and IPv6'
ping_from default/a "$c4"
ping_from default/a "$c6"
title 'Pod to its node: a -> gateway'
ping_from default/a "${a4%.*}.1"
title 'Pod to the outside: a -> 203.0.113.1, masqueraded by the node'
ping_from default/a 203.0.113.1

title 'The way of a packet from a to c, told by ofproto/trace'
run trace default/a default/c

title 'The agent of node1 is killed (SIGKILL) and started under a running ping, 100 a second'
out=$(mktemp)
lab pod default/a -- ping -c 500 -i 0.01 -W 2 -q "$c4" >"$out" &
ping=$!
sleep 1
run agent node1 kill
sleep 1
run agent node1 start
wait "$ping"
tail -n 3 "$out"
grep -q ' 0% packet loss' "$out" || { echo "packets were lost"; exit 1; }
rm -f "$out"
printf '\nAll of this worked. "make test" runs the tests.\n'
