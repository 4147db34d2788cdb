# Fairlead: build, test, lint. "make" alone lists the targets.
SHELL := /bin/bash
# Debian keeps Open vSwitch and iptables where users have no PATH to.
export PATH := $(PATH):/usr/sbin:/sbin
export CGO_ENABLED ?= 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BUILD := go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
FUZZTIME ?= 10s

.PHONY: help build deps root test test-unit lint fuzz bench demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/fairlead-agent, bin/fairlead (the CNI plugin) and bin/lab, static
	$(BUILD) ./cmd/fairlead-agent ./cmd/fairlead ./test/lab

deps: ## install what tests and lab need from Debian and is missing (root)
	@build/deps.sh

root:
	@[ "$$(id -u)" = 0 ] || { echo 'this needs root: sudo env PATH="$$PATH" make ...' >&2; exit 1; }

test: root deps build ## every test (root); a skipped test is a failure unless ALLOW_SKIP=1
	go run ./test/summary -count=1 -p 2 -timeout 20m ./...

test-unit: ## the tests that need neither root nor a cluster's programs
	ALLOW_SKIP=1 go run ./test/summary -p 2 -timeout 5m -skip '^Test(Root|UML|Kube)' ./...

lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w these: $$unformatted" >&2; exit 1; }
	go vet ./...
	go run $(STATICCHECK) -checks 'all,-ST1000,-ST1003,-ST1005,-ST1016,-ST1020,-ST1021,-ST1022' ./...

fuzz: ## each fuzz target for FUZZTIME (10s)
	@build/fuzz.sh $(FUZZTIME)

bench: ## the benchmarks
	go test -p 1 -run '^$$' -bench . -benchmem ./...

demo: root deps build ## two nodes on this machine, pods that talk, an agent killed (root)
	test/demo/demo.sh

clean: ## remove what was built
	rm -rf bin out
