#!/bin/bash
# debian-units.sh SUITE DIR: puts the systemd units of that Debian into DIR, with those of the packages that bring up
# Open vSwitch, a network or a firewall. They come from the mirror that apt is configured with. Nothing is installed, and
# but for lists of packages where there are none, apt's own state is not touched.
set -euo pipefail
suite=$1 dir=$2
apt=$(mktemp -d)
trap 'rm -rf --one-file-system "$apt"' EXIT
mirror() {
	apt-get indextargets --format '$(ORIGIN)/$(LABEL)/$(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		sed -n 's|^Debian/Debian/main ||p' | sort -u | sed 1q
}
[[ -n $(mirror) ]] || apt-get update -q # images of containers have no lists
mirror=$(mirror)
[[ -n $mirror ]] || { echo "apt has no Debian mirror: add one to /etc/apt/sources.list" >&2; exit 1; }
mkdir -p "$apt"/{etc/preferences.d,lists/partial,cache/archives/partial,debs}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
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
