#!/bin/bash
# programs.sh DIR VERSION: builds in DIR the image's files beyond Debian's packages, for ARCH (Go's name, by default
# this machine). The Dockerfile calls it in its build stage, "make image" on the host.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1 version=$2
export CGO_ENABLED=0
umask 022

bin=$out/usr/local/bin cni=$out/usr/local/lib/cni share=$out/usr/share/fairlead
mkdir -p "$bin" "$cni" "$share" "$out/usr/local/lib/fairlead" "$out/tmp"
arch=${ARCH:-$(go env GOARCH)}
flags=(-trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version")
GOARCH=$arch go build "${flags[@]}" -o "$bin/" ./cmd/...
GOARCH=$arch go build "${flags[@]}" -o "$cni/" github.com/containernetworking/plugins/plugins/meta/{portmap,bandwidth}
go build -trimpath -buildvcs=false -o "$out/tmp/bom" ./build/bom # runs here

install -m 755 build/ovs/fairlead-{ovs,ovs-guard,uplink-boot} "$bin/"
install -m 755 build/image/iptables "$out/usr/local/lib/fairlead/iptables"
install -m 644 LICENSE "$share/LICENSE"
"$out/tmp/bom" licences -o "$share/LICENCES.txt" "$bin" "$cni"
