# Fairlead: build, test, lint. "make" alone lists the targets.
SHELL := /bin/bash
# Debian keeps Open vSwitch and iptables where users have no PATH to.
export PATH := $(PATH):/usr/sbin:/sbin
export CGO_ENABLED ?= 0
# Compiled once for programs, tests and vet, and for other working copies.
export GOFLAGS := $(GOFLAGS) -trimpath

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BUILD := go build -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
DEADCODE := golang.org/x/tools/cmd/deadcode@v0.49.0
TRIVY := github.com/aquasecurity/trivy/cmd/trivy@v0.74.0
FUZZTIME ?= 10s
TESTS ?= ./...

# Packages that are also tested on the kernel datapath: those whose tests ask which datapath to use. A test to which it
# would add nothing, or which is too expensive for a guest's one processor, says so itself: ovstest.UserspaceOnly.
KERNEL_TESTS := ./test/suite ./test/crash ./datapath/uplink ./test/bridged ./datapath/... ./test/chain ./test/ovstest ./build/ovs

# OVS=3.5 runs tests on that release of Open vSwitch: another Debian's programs, next to the installed ones
# (test/ovsrelease). It does not affect "make build" or "make image".
OVS ?=
WITH_OVS = $(if $(OVS),go run ./test/withovs $(OVS))

# LINUX=6.1 runs what needs the kernel datapath in User-Mode Linux of that release: 6.1 or 6.12, instead of Debian's newest
# (test/uml/kernel).
LINUX ?=
export FAIRLEAD_TEST_LINUX ?= $(LINUX)

# Lint vets. Without debug information, linking a package's tests takes a quarter less time, and stack traces are the same.
SUMMARY = $(WITH_OVS) go run ./test/summary -count=1 -vet=off -ldflags=-w

# This many packages of the first pass are tested at once, since tests mostly wait, and this many guests of the second
# run, each with one package. The slowest come first, in this order.
AT_ONCE ?= 4
GUESTS ?= 3
LONGEST := ./test/suite ./test/crash ./test/kube ./datapath/uplink ./test/bridged ./test/pools ./test/lab/lab ./kube/inputs \
	./agent/reach ./controller ./ctl ./datapath/nat ./test/chain ./build/ovs ./datapath/wire ./test/lab ./diagnose/podcidr \
	./build/release ./test/alarms ./ipam/pool ./ipam/allocator

IMAGE ?= fairlead/fairlead:dev
# An SSH key, or a public key whose private key is in ssh-agent.
SIGN_KEY ?=

.PHONY: help manifests build image release \
	test-in-container deps root once plugins test test-userspace test-image test-ovs test-kernel e2e e2e-upgrade e2e-kernel test-unit lint scan soak fuzz bench bench-functions bench-uplink oracle bench-ipam \
	bench-controller bench-scale bench-cluster conformance demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/fairlead-agent, fairlead-controller, fairlead (the CNI plugin), fairleadctl, lab and e2e, static
	$(BUILD) ./cmd/fairlead-agent ./cmd/fairlead-controller ./cmd/fairlead ./cmd/fairleadctl \
		./test/lab ./test/e2e ./test/e2e/e2e-tool

ARCH ?=
image: root ## out/image/fairlead.tar, with all of Fairlead and Open vSwitch; no container engine needed (root); ARCH=arm64
	@build/deps.sh image
	@VERSION='$(VERSION)' IMAGE='$(IMAGE)' ARCH='$(ARCH)' build/image/image.sh

release: root ## the files of a release in out/release: VERSION=v0.1.0, SIGN_KEY=... signs, ARCHES='amd64 arm64' (root)
	@go run ./build/release -version '$(VERSION)' -key '$(SIGN_KEY)' $(if $(ARCHES),-arches '$(ARCHES)')

# A privileged container may load modules and set kernel parameters, so this is for people's own machines, too. What is
# built once stays in volumes of the engine.
CONTAINER ?= $(firstword $(foreach engine,docker podman,$(shell command -v $(engine))))
test-in-container: ## the tests that need root, in a privileged container of docker or podman; TESTS=./datapath/... for some
	@[ -n '$(CONTAINER)' ] || { echo 'this needs docker or podman (CONTAINER=... names another like them)' >&2; exit 1; }
	$(CONTAINER) build --target test -t localhost/fairlead-test .
	$(CONTAINER) run --rm --privileged --volume '$(CURDIR):/src' --volume fairlead-cache:/root/.cache \
		--volume fairlead-modules:/go/pkg localhost/fairlead-test \
		sh -c 'git config --global safe.directory /src && go run ./test/summary -count=1 -p 2 -timeout 20m -run "^TestRoot" $(TESTS)'

deps: ## install missing Debian packages that the tests and the lab need (root)
	@build/deps.sh

root:
	@[ "$$(id -u)" = 0 ] || { echo 'this needs root: sudo env PATH="$$PATH" make ...' >&2; exit 1; }

once: ## build what is built once per machine: the kernel in which tests run, Kubernetes, Helm, Multus, containerd 2.3, Open vSwitch 3.5
	go run ./test/once

# Two passes run at the same time, as tests mostly wait; with NAMED each line of output begins with the pass. CI runs
# "e2e demo" like that as well.
NAMED ?=
named = $(if $(NAMED),2>&1 | sed -u 's/^/$(1): /')
test: root deps build plugins once ## every test but e2e (root); a skipped test is a failure unless ALLOW_SKIP=1; OVS=3.5
	@$(MAKE) --no-print-directory -k -j2 $(if $(OVS),test-userspace,NAMED=1 test-userspace test-kernel test-ovs)

test-userspace: root deps build plugins once ## only its first pass: the userspace datapath, and all that needs none
	@set -o pipefail; FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' $(SUMMARY) -p $(AT_ONCE) -timeout 40m \
		-skip '^TestE2E' $(LONGEST) ./... $(call named,userspace)

# The packages that talk to Open vSwitch themselves, and a lab on each datapath, in three minutes. "make test OVS=3.5"
# runs everything on the userspace datapath.
OVS_TESTS := ./datapath/ovsdb ./agent/apply ./policy/compile ./openflow/... ./datapath/link ./datapath/vswitchd ./test/ovstest
OVS_LABS := ^TestRoot(Services|TunnelBelievesNodesOnly)$$
test-ovs: OVS := 3.5
test-ovs: root deps build once ## some tests on Open vSwitch 3.5, the version in the image
	@set -o pipefail; { failed=0; \
	FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' $(SUMMARY) -p $(AT_ONCE) -timeout 10m $(OVS_TESTS) || failed=1; \
	FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' $(SUMMARY) -timeout 10m -run '$(OVS_LABS)' ./test/suite || failed=1; \
	FAIRLEAD_TEST_DATAPATH=system FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' $(SUMMARY) -timeout 15m \
		-exec '$(CURDIR)/bin/lab --uml=auto --' -run '^TestRootNetwork$$' ./test/suite || failed=1; \
	exit $$failed; } $(call named,Open vSwitch $(OVS))

plugins: ## bin/cni: the reference plugins with which Fairlead is tested as IPAM plugin
	go build -o bin/cni/ $(addprefix github.com/containernetworking/plugins/plugins/main/,bridge macvlan ipvlan)

test-kernel: root deps build plugins once ## the datapath tests on the kernel datapath, in User-Mode Linux if this kernel lacks it; LINUX=6.1
	@set -o pipefail; FAIRLEAD_TEST_DATAPATH=system FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' $(SUMMARY) -p $(GUESTS) -parallel 3 \
		-timeout 40m -exec '$(CURDIR)/bin/lab --uml=auto --' -run '^TestRoot' $(KERNEL_TESTS) $(call named,kernel)

# KUBERNETES=1.37 runs tests and labs on that release of Kubernetes: one of which test/kubeparts has a go-X.Y.mod.
KUBERNETES ?=
export FAIRLEAD_TEST_KUBERNETES ?= $(KUBERNETES)

# Half of the functions run on containerd 2.3, all else on Debian's 1.6. With RUNTIME=containerd-2.3 or RUNTIME=cri-o,
# which is built at its first use, everything runs on that.
RUNTIME ?=
e2e: root deps build image once ## a real cluster of 3 nodes: kubelets, containerd, pods, deaths and upgrades (minutes); RUNTIME=cri-o, KUBERNETES=1.37
	@[ '$(RUNTIME)' != cri-o ] || build/deps.sh cri-o
	@set -o pipefail; rm -rf out/e2e; { failed=0; \
	FAIRLEAD_TEST_RUNTIME='$(RUNTIME)' FAIRLEAD_E2E_OUT='$(CURDIR)/out/e2e' $(SUMMARY) -p 3 -timeout 40m -run '^TestE2E' -skip '^TestE2E(Kernel|Upgrade)' ./test/e2e/... \
		|| failed=1; \
	for table in out/e2e/*.txt; do [ ! -e "$$table" ] || { echo "What was lost in $$(basename "$$table" .txt):"; cat "$$table"; }; done; \
	exit $$failed; } $(call named,e2e)

# The earlier release is a commit, because no version has been released yet.
FROM ?= a34be2f
e2e-upgrade: root deps build image once ## upgrade a cluster from an earlier release, FROM=COMMIT, roll it back, and upgrade it again (minutes)
	@[ '$(RUNTIME)' != cri-o ] || build/deps.sh cri-o
	@rm -rf out/e2e-upgrade; mkdir -p out/e2e-upgrade; failed=0; \
	FAIRLEAD_TEST_FROM='$(FROM)' FAIRLEAD_TEST_RUNTIME='$(RUNTIME)' FAIRLEAD_E2E_OUT='$(CURDIR)/out/e2e-upgrade' $(SUMMARY) \
		-timeout 60m -run '^TestE2EUpgrade' ./test/e2e/events || failed=1; \
	cat out/e2e-upgrade/*.txt; exit $$failed

test-image: root ## the images of amd64 and arm64, if both are in out: the same packages, and programs that run (root)
	go test -tags imagetest -count=1 -v -run '^TestRootImageOfArm64$$' ./build/image

# Two kubelets, two containerds and a control plane on the guest's single processor.
e2e-kernel: root deps build image once ## the default installation on the kernel datapath, in User-Mode Linux if this kernel lacks it (minutes)
	@rm -rf out/e2e-kernel; mkdir -p out/e2e-kernel; failed=0; \
	FAIRLEAD_E2E_OUT='$(CURDIR)/out/e2e-kernel' FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' $(SUMMARY) \
		-timeout 60m -exec '$(CURDIR)/bin/lab --uml=auto --mem 6144 --write $(CURDIR)/out/e2e-kernel --' \
		-run '^TestE2EKernel' ./test/e2e/functions || failed=1; \
	cat out/e2e-kernel/*.txt; exit $$failed

test-unit: ## the tests that need neither root nor cluster programs
	ALLOW_SKIP=1 go run ./test/summary -short -vet=off -ldflags=-w -p 4 -timeout 5m -skip '^Test(Root|UML|Kube|E2E)' ./...

manifests: ## build/manifests/fairlead.yaml, the schema and the table of its values, from the chart
	go test ./test/chart -count=1 -run '^TestSchema$$' -update
	go test ./test/chart -count=1 -run '^Test(Manifest|Docs)$$' -update

# What tests alone reach belongs to tests. Two things stay where they are, since they need what their packages have inside:
# hoststate/node.go, which reads the network of a whole node, and uplink.Steps.
lint: ## gofmt, the linters of .golangci.yml, and a check for unreachable code
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w these: $$unformatted" >&2; exit 1; }
	go run $(GOLANGCI) run ./...
	@set -o pipefail; dead=$$(GOGC=400 go run $(DEADCODE) -test ./... && \
		GOGC=400 go run $(DEADCODE) ./cmd/... | sed -E '\:^datapath/uplink/next.go.* Steps$$:d') || exit 1; \
		[ -z "$$dead" ] || { echo "nothing reaches these: $$dead" >&2; exit 1; }

# Trivy is built with it, for minutes, the first time.
scan: ## Trivy's checks of build/manifests; exceptions and their reasons are in build/trivyignore.yaml
	GOEXPERIMENT=jsonv2 go run -ldflags=-s $(TRIVY) config --skip-check-update --exit-code 1 \
		--ignorefile build/trivyignore.yaml build/manifests

# Each in turn, with FAIRLEAD_TEST_LONG: what a run of the suite has no time for, and what is the datapath's on the kernel's
# as well. A seed that fails goes to testdata/seeds.
SOAK ?= 10m
SOAK_KERNEL := RootDeaths|RootSteerLeavesHostAlone|Root(Steer)?DeathAtEveryStep|RootYield|RootYieldIsTheLast
soak: root deps build plugins once ## random schedules, models and deaths, each for SOAK (10m): before a release, or overnight
	@failed=0; export FAIRLEAD_TEST_CHAOS='$(SOAK)' FAIRLEAD_TEST_LONG=1 FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin'; \
	go run ./test/summary -count=1 -p 1 -timeout 10h -run \
		'^Test(RootRandomFaults|RootRandomAPIFaults|$(SOAK_KERNEL)|RootDeathAtAnyTime|Root(Steer)?DiskFaults|KubeModel|RootReachSoak)$$' \
		./test/crash ./datapath/uplink ./controller ./test/alarms || failed=1; \
	FAIRLEAD_TEST_DATAPATH=system go run ./test/summary -count=1 -p 1 -parallel 3 -timeout 10h \
		-exec '$(CURDIR)/bin/lab --uml=auto --' -run '^Test($(SOAK_KERNEL))$$' ./test/crash ./datapath/uplink || failed=1; \
	exit $$failed

fuzz: ## each fuzz target for FUZZTIME (10s)
	@build/fuzz.sh $(FUZZTIME)

# BenchmarkRoot... run here, BenchmarkKernel... where the kernel's datapath is. They store what they measure by package
# test/bench/report. BENCH chooses some of them: BENCH=CNI.
BENCH ?=
bench: root deps build once ## speed and size compared with the peers (two hours): a table, docs/benchmarks.md, and plots in out/bench
	@rm -rf out/bench; mkdir -p out/bench; failed=0; \
	export FAIRLEAD_BENCH_OUT='$(CURDIR)/out/bench' FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin'; \
	go test -count=1 -p 1 -timeout 2h -run '^$$' -bench '^BenchmarkRoot.*$(BENCH)' -benchtime 1x \
		./test/bench/... ./test/scale/... || failed=1; \
	FAIRLEAD_TEST_DATAPATH=system go test -count=1 -p 1 -timeout 2h -run '^$$' -bench '^BenchmarkKernel.*$(BENCH)' \
		-benchtime 1x -exec '$(CURDIR)/bin/lab --uml=auto --write $(CURDIR)/out/bench --' ./test/bench || failed=1; \
	go run ./test/bench/table || failed=1; \
	[ $$failed = 1 -o -n '$(BENCH)' ] || cp out/bench/results.md docs/benchmarks.md || failed=1; exit $$failed

bench-functions: ## single functions: flows, stores, the CNI socket
	go test -p 1 -run '^$$' -bench . -benchmem ./openflow ./ipam/hostlocal ./cniserver ./controller

bench-uplink: root deps build once ## throughput of host and pods in each uplink mode, and losses at attach, restore and deaths
	@set -o pipefail; failed=0; for datapath in netdev system; do \
		FAIRLEAD_TEST_DATAPATH=$$datapath FAIRLEAD_BENCH_ROUNDS=10 FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin' \
		go test -count=1 -p 1 -timeout 30m -v -run '^TestRoot(Gaps|Speed|AgentKeepsUplink|SteerLeavesHostAlone)$$/^gaps$$' \
		-exec "$$([ $$datapath = netdev ] || echo '$(CURDIR)/bin/lab --uml=auto --')" ./datapath/uplink ./test/crash \
		| sed -nE 's/.*(GAP|SPEED) //p; /FAIL/p' || failed=1; done; exit $$failed

conformance: root deps once image ## Kubernetes' own network tests over Fairlead, on real nodes (CONFORMANCE='-help': flags); KUBERNETES=1.37, RUNTIME=cri-o
	@[ '$(RUNTIME)' != cri-o ] || build/deps.sh cri-o
	go test -count=1 -timeout 60m -run '^TestE2ESuiteAndDNS$$' ./test/kubebin
	go test -C test/cyclonus -count=1 ./generate
	FAIRLEAD_TEST_RUNTIME='$(RUNTIME)' go run ./test/conformance $(CONFORMANCE)

bench-controller: deps once ## memory of fairlead-controller in a cluster of 5,000 Nodes and 20,000 pods (minutes)
	go test -run '^$$' -bench '^BenchmarkControllerMemory$$' -benchtime 1x -timeout 60m ./test/bench

bench-scale: root deps build once ## agent and controller from 100 to 5,000 Nodes, with 100,000 Pods: plots in out/bench (half an hour)
	@mkdir -p out/bench; export FAIRLEAD_BENCH_OUT='$(CURDIR)/out/bench' FAIRLEAD_TEST_BINDIR='$(CURDIR)/bin'; \
	go test -count=1 -timeout 90m -run '^$$' -bench '^BenchmarkScale$$' -benchtime 1x ./test/scale && go run ./test/bench/table

bench-cluster: root deps build image once ## 60 pods on real nodes compared with the reference bridge plugin; the agent's memory (minutes); RUNTIME=containerd-2.3
	@[ '$(RUNTIME)' != cri-o ] || build/deps.sh cri-o
	FAIRLEAD_TEST_RUNTIME='$(RUNTIME)' go test -run '^$$' -bench '^BenchmarkE2EPods$$' -benchtime 1x -timeout 40m ./test/e2e/peer

oracle: ## policy verdicts compared with a reference and with cyclonus: 10,000 random clusters each, 300 on a real Open vSwitch (minutes)
	FAIRLEAD_TEST_LONG=1 go test -count=1 -v -run '^TestOracle' ./policy/compile
	cd test/cyclonus && go test -count=1 -v -run '^TestOracle$$' .

bench-ipam: deps once ## addresses per second from one pool, compared with plain creates and a single-object pool (minutes)
	GOMEMLIMIT=12GiB go test -run '^$$' -bench '^BenchmarkIPAM$$' -benchtime 1x -timeout 60m ./test/bench

demo: root deps build ## two nodes on this machine, routed and bridged pods that communicate, an agent that is killed (root)
	@set -o pipefail; test/demo/demo.sh $(call named,demo)

clean: ## remove build output
	rm -rf bin out
