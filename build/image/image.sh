#!/bin/bash
# image.sh: builds the image of the Dockerfile without a registry and without a container engine, as
# root, by debootstrap and buildah, and writes out/image/fairlead.tar, which "ctr image import",
# "docker load" and "podman load" accept. VERSION and IMAGE name the result. ARCH is amd64 or arm64; if it is not this
# machine's, the result is in out/image-ARCH, and programs of Debian's packages run by emulation.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${VERSION:-dev}
image=${IMAGE:-fairlead/fairlead:dev}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead
native=$(dpkg --print-architecture)
export ARCH=${ARCH:-$native}
out=out/image
[[ $ARCH == "$native" ]] || out=out/image-$ARCH

[[ $ARCH == amd64 || $ARCH == arm64 ]] || { echo "image: ARCH is $ARCH: amd64 and arm64 can be built" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo 'image: this needs root: sudo env PATH="$PATH" make image' >&2; exit 1; }
emulator=/proc/sys/fs/binfmt_misc/qemu-$([[ $ARCH == arm64 ]] && echo aarch64 || echo x86_64)
if [[ $ARCH != "$native" && $(head -n 1 "$emulator" 2>/dev/null) != enabled ]]; then
	cat >&2 <<-EOT
		image: this machine does not run programs of $ARCH: the kernel has no ${emulator##*/} in /proc/sys/fs/binfmt_misc. As root:
		    apt-get install qemu-user-static binfmt-support
		    mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
		    update-binfmts --enable ${emulator##*/}
	EOT
	exit 1
fi
mkdir -p "$cache" "$out"
exec 8>>"$cache/image.lock" # one at a time: they share the tag
flock 8

build/image/programs.sh "$out/programs" "$version" # unchanged programs are not linked again

base=$(build/image/base.sh)
base_image=localhost/fairlead-base:$(basename "$base" .tar)-timeless
# A store of its own, which "rm -r" of the cache removes; vfs where overlay is not supported there.
buildah() { command buildah --root "$cache/images" --runroot /run/fairlead-images "$@"; }
if ! buildah inspect --type image "$base_image" >/dev/null 2>&1; then
	container=$(buildah from scratch)
	buildah config --arch "$ARCH" "$container"
	buildah add -q "$container" "$base" / >/dev/null
	buildah commit -q --timestamp 0 --rm "$container" "$base_image" >/dev/null
fi
# With one time for all files and layers the same source and the same packages make the same image.
tag=localhost/$ARCH/$image
buildah bud -q --timestamp 0 --isolation chroot --layers --pull-never --arch "$ARCH" --build-arg BASE="$base_image" \
	--build-arg PROGRAMS=prebuilt --build-arg PREBUILT="$out/programs" --build-arg BUILDER="$base_image" \
	--build-arg VERSION="$version" -t "$tag" -f Dockerfile . >/dev/null

rm -f "$out/fairlead.tar.new"
buildah push -q "$tag" "docker-archive:$out/fairlead.tar.new:$image"
mv "$out/fairlead.tar.new" "$out/fairlead.tar"
buildah rm --all >/dev/null # leftovers of earlier builds
buildah rmi --prune >/dev/null
"$out/programs/tmp/bom" layers -extract "$out" "$out/fairlead.tar"
