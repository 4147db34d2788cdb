#!/bin/bash
# debian-units.sh SUITE DIR: puts the systemd units of that Debian into DIR, with those of the packages that bring up
# Open vSwitch, a network or a firewall. Nothing is installed; apt's own state is not touched.
set -euo pipefail
suite=$1 dir=$2
apt=$(mktemp -d)
trap 'rm -rf --one-file-system "$apt"' EXIT
mkdir -p "$apt"/{etc/preferences.d,lists/partial,cache/archives/partial,debs}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $suite main" \
	>"$apt/etc/sources.list"
get() {
	apt-get -q -o "Dir::Etc=$apt/etc" -o Dir::Etc::parts=- -o Dir::Etc::sourceparts=- -o "Dir::State=$apt" \
		-o "Dir::State::lists=$apt/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$apt/cache" \
		-o APT::Sandbox::User= -o Acquire::Languages=none "$@"
}
get update
cd "$apt/debs"
get download systemd udev openvswitch-switch ifupdown nftables network-manager
for deb in *.deb; do
	dpkg-deb -x "$deb" "$apt/root"
done
# Packages of Debian 12 have units in both; on a node /lib is a link to /usr/lib.
for lib in "$apt"/root/{,usr/}lib/systemd; do
	[[ ! -d $lib/system ]] || cp -a "$lib/system/." "$dir/"
done
