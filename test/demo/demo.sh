#!/bin/bash
# The first run: two nodes on this machine, pods that talk, a Service whose
# backend sees its client, a NetworkPolicy, a firewall between the nodes that is
# found out, an agent killed under a running ping;
# the same again with bridged pods on an underlay with VLANs; and everything
# removed again.
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

# apply_text applies a manifest that is on stdin.
manifests=$(mktemp -d)
apply_text() {
	cat >"$manifests/$1.yaml"
	run apply -f "$manifests/$1.yaml"
}
# service NAME CLUSTERIP ADDRESS: what Kubernetes makes of a Service whose only endpoint is port 8080 of ADDRESS.
service() {
	apply_text "$1" <<-END
		apiVersion: v1
		kind: Service
		metadata: {name: $1}
		spec: {clusterIP: $2, clusterIPs: [$2], ports: [{port: 80, targetPort: 8080}]}
		---
		apiVersion: discovery.k8s.io/v1
		kind: EndpointSlice
		metadata: {name: $1, labels: {kubernetes.io/service-name: $1}}
		addressType: IPv4
		ports: [{port: 8080}]
		endpoints: [{addresses: [$3]}]
	END
}
# write_status POD NODE ADDRESS: a Pod's status, from which policies have its addresses. In a cluster kubelet writes it.
write_status() {
	apply_text "pod-$1" <<-END
		apiVersion: v1
		kind: Pod
		metadata: {name: $1, labels: {app: $1}}
		spec: {nodeName: $2, containers: [{name: main, image: none}]}
		status: {podIP: $3, podIPs: [{ip: $3}]}
	END
}
# serve POD: answers HTTP on port 8080 with both ends of the connection, until the pod ends.
serve() { lab pod "$1" -- "$PWD/bin/e2e-tool" serve >/dev/null 2>&1 & }
# asks POD URL: prints the answer, which must come within five seconds; what is new is there a moment later.
asks() {
	local answer i
	printf '$ bin/lab pod %s -- timeout 2 bin/e2e-tool get %s\n' "$1" "$2"
	for i in {1..25}; do
		answer=$(lab pod "$1" -- timeout 2 bin/e2e-tool get "$2" 2>/dev/null) && break
		[ "$i" -lt 25 ] || { echo "no answer"; exit 1; }
		sleep 0.2
	done
	echo "$answer" | awk '{ print "the backend " $2 " has the client " $3 }'
	[[ $answer == *" $3:"* ]] || { echo "and that is not $3"; exit 1; }
}
# gets_nothing POD URL: expects no answer; a connection of a moment before may still have had one.
gets_nothing() {
	local i
	printf '$ bin/lab pod %s -- timeout 2 bin/e2e-tool get %s\n' "$1" "$2"
	for i in {1..25}; do
		lab pod "$1" -- timeout 2 bin/e2e-tool get "$2" >/dev/null 2>&1 || { echo 'no answer'; return; }
		sleep 0.2
	done
	echo 'it is answered all the same'
	exit 1
}

title 'Two nodes, each with its own network, Open vSwitch and agent'
trap 'title "Clean up"; lab down; rm -rf "$manifests"' EXIT
trap 'exit 130' INT TERM
# Agents probe each other four times as often as else, so that this takes seconds.
FAIRLEAD_TEST_INTERVALS=agent.reach=500ms run up --nodes 2 --datapath netdev --ip-family dual --config test/demo/agent.yaml

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

title 'The path of a packet from a to c, as shown by ofproto/trace'
run trace default/a default/c

title 'A Service: a -> 10.96.0.80, and its backend c sees the address of a itself'
serve default/c
service web 10.96.0.80 "$c4"
asks default/a http://10.96.0.80/ "$a4"

title 'A NetworkPolicy: nothing may connect to c, then only a, also through the Service'
write_status a node1 "$a4"
write_status b node1 "$b4"
write_status c node2 "$c4"
apply_text policy <<END
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: c}
spec: {podSelector: {matchLabels: {app: c}}, policyTypes: [Ingress]}
END
gets_nothing default/a "http://$c4:8080/"
apply_text policy <<END
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: c}
spec:
  podSelector: {matchLabels: {app: c}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 8080}]}]
END
asks default/a http://10.96.0.80/ "$a4"
gets_nothing default/b http://10.96.0.80/
run delete -f "$manifests/policy.yaml"
ping_from default/a "$c4"

# ping_while_killed WHERE ADDRESS...: pings all along, a hundred times a second, while the agent of node1 is killed
# and started again.
ping_while_killed() {
	local where=$1 out pings=() i=0
	shift
	out=$(mktemp -d)
	for address in "$@"; do
		lab $where -- ping -c 500 -i 0.01 -W 2 -q "$address" >"$out/$i" &
		pings+=($!)
		i=$((i + 1))
	done
	sleep 1
	run agent node1 kill
	sleep 1
	run agent node1 start
	for ping in "${pings[@]}"; do
		wait "$ping" || true # what it counted is looked at below
	done
	for file in "$out"/*; do
		tail -n 3 "$file" | head -n 2
		grep -q ' 0% packet loss' "$file" || { echo "packets were lost"; exit 1; }
	done
	rm -rf "$out"
}

# doctor_says WORDS: what doctor says on node1, once it says that, within a minute.
doctor_says() {
	local said i
	printf '$ bin/lab node node1 -- bin/fairleadctl doctor reach --node-local\n'
	for i in {1..120}; do
		said=$(lab node node1 -- "$PWD/bin/fairleadctl" doctor reach --node-local 2>&1) || true # its exit code is the finding
		[[ $said != *"$1"* ]] || { echo "$said"; return; }
		sleep 0.5
	done
	printf '%s\nand not: %s\n' "$said" "$1"
	exit 1
}

title 'A firewall between the nodes drops the tunnel from node1 to node2 only: the agents find out where packets are lost'
run node underlay -- nft 'table bridge f { chain c { type filter hook forward priority 0; ip saddr 192.168.77.11 udp dport 6081 drop; }; }'
doctor_says 'they leave this node through eth0'
run node underlay -- nft 'delete table bridge f'
doctor_says 'No problems were found.'

title 'The agent of node1 is killed (SIGKILL) and started during a ping, 100 packets a second'
ping_while_killed 'pod default/a' "$c4"
title 'Clean up'
lab down

title 'Two nodes on an underlay with VLANs: the agents attach eth0 to Open vSwitch'
run up --nodes 2 --datapath netdev --ip-family dual --mode bridge

title 'Bridged pods next to routed ones: d and e in VLAN 10, f in VLAN 20'
run apply --wait 30s -f test/demo/bridged.yaml -f test/demo/pods.yaml
run status

a4=$(address default/a 4) d4=$(address default/d 4) e4=$(address default/e 4) e6=$(address default/e 6)
f4=$(address default/f 4)

title 'One VLAN, two nodes: d -> e, IPv4 and IPv6'
ping_from default/d "$e4"
ping_from default/d "$e6"
title 'From one VLAN to the other, on the same node, through the router of the underlay: d -> f'
ping_from default/d "$f4"
title 'Bridged to routed: d -> a; and to the outside, with its own address: d -> 203.0.113.1'
ping_from default/d "$a4"
ping_from default/d 203.0.113.1

title 'Services: bridged backend e sees the address of bridged d, in the same VLAN, and of f, in another'
serve default/e
service shop 10.96.0.81 "$e4"
asks default/d http://10.96.0.81/ "$d4"
asks default/f http://10.96.0.81/ "$f4"

title 'node1, d and f answer the outside host throughout, while the agent of node1 is killed and started'
ping_while_killed 'node outside' 192.168.77.11 fd77::11 "$d4" "$f4"
printf '\nAll of this worked. "make test" runs the tests.\n'
