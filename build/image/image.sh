#!/bin/bash
# image.sh: builds the image of the Dockerfile without a registry and without a container engine, as
# root, by debootstrap and buildah, and writes out/image/fairlead.tar, which "ctr image import",
# "docker load" and "podman load" accept. VERSION and IMAGE name the result.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${VERSION:-dev}
image=${IMAGE:-fairlead/fairlead:dev}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead
out=out/image

[[ $(id -u) == 0 ]] || { echo 'image: this needs root: sudo env PATH="$PATH" make image' >&2; exit 1; }
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
	buildah add -q "$container" "$base" / >/dev/null
	buildah commit -q --timestamp 0 --rm "$container" "$base_image" >/dev/null
fi
# With one time for all files and layers the same source and the same packages make the same image.
buildah bud -q --timestamp 0 --isolation chroot --layers --pull-never --build-arg BASE="$base_image" --build-arg PROGRAMS=prebuilt \
	--build-arg BUILDER="$base_image" --build-arg VERSION="$version" -t "localhost/$image" -f Dockerfile . >/dev/null

rm -f "$out/fairlead.tar.new"
buildah push -q "localhost/$image" "docker-archive:$out/fairlead.tar.new:$image"
mv "$out/fairlead.tar.new" "$out/fairlead.tar"
buildah rm --all >/dev/null # leftovers of earlier builds
buildah rmi --prune >/dev/null
"$out/programs/tmp/bom" layers -extract "$out" "$out/fairlead.tar"
