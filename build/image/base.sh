#!/bin/bash
# base.sh: prints the path of a tar of a small Debian, for machines that reach Debian's mirrors and
# no registry of images. It is made once, as root, and kept in ${XDG_CACHE_HOME:-~/.cache}/fairlead.
# DEBIAN_SUITE and DEBIAN_MIRROR say which, ARCH for which architecture (Debian's name); the mirror is debootstrap's own
# by default, and the architecture this machine's. Remove the file to have a newer one.
set -euo pipefail
suite=${DEBIAN_SUITE:-trixie}
mirror=${DEBIAN_MIRROR:-}
arch=${ARCH:-$(dpkg --print-architecture)}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead

mkdir -p "$cache"
key=$( (cat "$0"; echo "$suite $mirror") | sha256sum | head -c 16)
tar=$cache/debian-$arch-$key.tar
exec 9>>"$cache/debian.lock"
flock 9
if [[ -e $tar ]]; then
	echo "$tar"
	exit
fi
echo "debian: not in the cache: $suite for $arch is installed once, into $tar, in a minute or two" >&2
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
debootstrap --arch="$arch" --variant=minbase "$suite" "$root" ${mirror:+"$mirror"} >"$work/log" 2>&1 || {
	tail -20 "$work/log" >&2
	echo "debian: debootstrap of $suite${mirror:+ from $mirror} failed, its last words are above" >&2
	exit 1
}
# A private mirror under another name is used as it is.
security=$(sed -n "s,/debian/\{0\,1\} $suite main.*,/debian-security $suite-security main,p" "$root/etc/apt/sources.list")
[[ -z $security ]] || echo "$security" >>"$root/etc/apt/sources.list"
rm -rf "$root"/var/cache/{apt,ldconfig}/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/{man,locale,info,lintian}
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/dev" -mindepth 1 -delete # the container's own are mounted there
rm -f "$cache/debian-$arch"-*.tar "$cache/debian-$arch"-*.tar.new
tar -C "$root" --numeric-owner -cf "$tar.new" .
mv "$tar.new" "$tar"
echo "$tar"
