# fairlead-agent and the CNI plugin in one image. Open vSwitch itself runs beside
# it, on the node or in a pod of its own: in this one, every upgrade would stop it.
ARG BUILDER=golang:1.26
ARG BASE=debian:bookworm-slim

FROM ${BUILDER} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" \
    -o /out/ ./cmd/fairlead-agent ./cmd/fairlead

FROM ${BASE}
# ovs-vsctl, ovs-ofctl and ovs-appctl are for people; the agent calls iptables.
RUN apt-get update && apt-get install -y --no-install-recommends \
    openvswitch-switch iptables iproute2 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /usr/local/bin/
ENTRYPOINT ["/usr/local/bin/fairlead-agent"]
