# The image with all of Fairlead: agent, controller, fairleadctl, CNI plugins, and Open vSwitch
# with its helper programs. docs/image.md describes its contents and how it is built.
#
# With network:    docker build -t fairlead/fairlead:dev .
# Without:         BASE is a local Debian image, and PROGRAMS=prebuilt takes
#                  the programs from PREBUILT. "make image" does that.
ARG BUILDER=golang:1.26-trixie
ARG BASE=debian:trixie-slim
ARG PROGRAMS=compiled

FROM ${BASE} AS runtime
COPY build/image/packages.sh /tmp/
RUN sh /tmp/packages.sh && rm /tmp/packages.sh

# For "make test-in-container": what the tests need, without source or programs.
FROM ${BUILDER} AS test
COPY build/deps.sh /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends make git && /tmp/deps.sh && \
    rm -rf /tmp/deps.sh /var/lib/apt/lists/*
WORKDIR /src

FROM ${BUILDER} AS compiled
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN build/image/programs.sh /programs "${VERSION}"

FROM scratch AS prebuilt
ARG PREBUILT=out/image/programs
COPY ${PREBUILT} /programs

FROM ${PROGRAMS} AS programs

# The SBOM: the Go modules are listed in the programs, the Debian packages in dpkg's database.
FROM runtime AS listed
ARG VERSION=dev
COPY --from=programs /programs /
COPY --from=programs /programs/tmp/bom /tmp/bom
RUN /tmp/bom sbom -root / -version "${VERSION}" -o /usr/share/fairlead/sbom.cdx.json \
    /usr/local/bin /usr/local/lib/cni

FROM runtime
COPY --from=programs /programs/usr /usr
COPY --from=listed /usr/share/fairlead/sbom.cdx.json /usr/share/fairlead/
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LABEL org.opencontainers.image.title=Fairlead \
      org.opencontainers.image.description="Kubernetes node agent that puts pods on the network through Open vSwitch" \
      org.opencontainers.image.licenses=Apache-2.0
ENTRYPOINT ["/usr/local/bin/fairlead-agent"]
