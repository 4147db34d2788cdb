#!/bin/bash
# debian.sh SUITE DIR: puts the Open vSwitch of that Debian into DIR, with the libraries that it needs. DIR/bin has its
# programs as scripts, which start them with their own loader and libraries; DIR/vswitch.ovsschema is its schema. The
# packages come from the mirror that apt is configured with, and are checked with Debian's keys. Nothing is installed,
# and but for lists of packages where there are none, apt's own state is not touched.
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
packages=$(get install --simulate --no-install-recommends openvswitch-switch |
	sed -nE 's/^Inst ((openvswitch-|lib|zlib)[^ ]*) .*/\1/p')
cd "$apt/debs"
get download $packages
for deb in *.deb; do
	dpkg-deb -x "$deb" "$apt/root"
done

mkdir -p "$dir"/{bin,lib,loader,programs}
loader=$(find "$apt/root/usr/lib" -name 'ld-linux-*' -print -quit)
libraries=$(dirname "$loader")
cp "$apt/root/usr/share/openvswitch/vswitch.ovsschema" "$dir/"
for program in "$apt"/root/usr/{bin,sbin,lib/openvswitch-switch}/{ovs-vswitchd,ovs-{vs,of,app,dp}ctl,ovsdb-{server,tool,client}}; do
	[[ -e $program ]] || continue
	name=${program##*/}
	cp "$program" "$dir/programs/"
	# The process has the name of the program that is executed, which is the loader.
	cp "$loader" "$dir/loader/$name"
	needed=$("$loader" --inhibit-cache --library-path "$libraries" --list "$program")
	[[ $needed != *"not found"* ]] || { echo "$name: $needed" >&2; exit 1; }
	sed -n 's/.* => \(.*\) (0x.*/\1/p' <<<"$needed" | while read -r library; do
		[[ $library == "$libraries/"* ]] || { echo "$name would use $library" >&2; exit 1; }
		cp -L "$library" "$dir/lib/"
	done
	cat >"$dir/bin/$name" <<-END
		#!/bin/sh
		dir=\${0%/bin/*}
		exec "\$dir/loader/$name" --inhibit-cache --argv0 $name --library-path "\$dir/lib" "\$dir/programs/$name" "\$@"
	END
	chmod 755 "$dir/bin/$name"
done
