#!/bin/bash
# deps.sh [image|cri-o]: installs the missing Debian packages that the tests and the lab
# need, or with "image" those that build the image, with "cri-o" those that build and run
# CRI-O. Installed ones are not changed.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# requirement                  package that contains it
needs='
ovs-vswitchd                   openvswitch-switch
ovs-vsctl                      openvswitch-switch
ovs-ofctl                      openvswitch-switch
iptables                       iptables
ip6tables                      iptables
nft                            nftables
ip                             iproute2
ethtool                        ethtool
mke2fs                         e2fsprogs
ping                           iputils-ping
ps                             procps
systemd-analyze                systemd
strace                         strace
tcpdump                        tcpdump
iperf3                         iperf3
curl                           curl
dig                            bind9-dnsutils
nc                             netcat-openbsd
wget                           wget
busybox                        busybox-static
promtool                       prometheus
git                            git
ssh-keygen                     openssh-client
/usr/lib/cni/portmap           containernetworking-plugins
containerd                     containerd
runc                           runc
/etc/ssl/certs/ca-certificates.crt ca-certificates
'
if [[ ${1:-} == image ]]; then
	needs='
buildah                        buildah
debootstrap                    debootstrap
'
elif [[ ${1:-} == cri-o ]]; then
	needs='
conmon                         conmon
gcc                            gcc
/usr/include/stdio.h           libc6-dev
'
fi
missing=()
while read -r what package; do
	[[ -z $what || -e $what ]] || command -v "$what" >/dev/null || missing+=("$package")
done <<<"$needs"
[[ ${#missing[@]} -gt 0 ]] || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if ! command -v apt-get >/dev/null; then
	echo "missing, under Debian's names: ${missing[*]}. This machine has no apt-get: install them manually." >&2
	exit 1
fi
if [[ $(id -u) != 0 ]]; then
	echo "missing: ${missing[*]}. As root: apt-get install ${missing[*]}" >&2
	exit 1
fi

# Debian starts daemons when it installs them. That is not needed: tests and labs
# start their own. policy-rc.d is Debian's way to prevent it.
policy=/usr/sbin/policy-rc.d
for service in openvswitch-switch containerd prometheus; do
	[[ " ${missing[*]} " == *" $service "* ]] || continue
	echo "$service: its service is not started now. It will be at the next boot, unless you run"
	echo "    systemctl disable $service"
	if [[ ! -e $policy ]]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
done

echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
