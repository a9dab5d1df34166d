# jobmesh's front door. "make help" lists what there is.
SO       := jobmesh.so
PREFIX   ?= /usr/local
FUZZTIME ?= 5s
LONGFUZZ ?= 30s
SEEDS    ?= 1000
TIME     ?= 30m
NODES    ?= 3
SEED     ?= 0
FAULTS   ?=
LONGTIME ?= 3m
LONGSEEDS ?= 20
GO       ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
SHELL    := /bin/bash

.PHONY: all build setup run demo test test-long test-all chaos test-servers sanitize sim bench fuzz lint vet install clean help

all: build ## Build jobmesh.so (the same as: make build)

build: ## Build jobmesh.so
	$(GO) build -buildmode=c-shared -trimpath -o $(SO) ./module
	@chmod +x $(SO) && rm -f jobmesh.h

setup: ## Install what is missing (redis-server, gcc), or say how
	@tests/setup.sh

run: setup build ## Start a node on port 7711 (PORT=… for another)
	@tests/run.sh

demo: setup build ## Watch one job in a mesh of three nodes: a node is killed, a worker crashes
	@$(GO) run ./tests/demo

# One JSON stream through one tally, so that one line adds everything up.
TALLY = $(GO) run ./tests/tally
# The packages that take longest begin first. They mostly wait, and so do their tests: so one more than there are cores runs at once.
PACKAGES = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
TEST  = $(GO) test -vet=off -tags check -json -count=1 -p $(PACKAGES) -parallel $(PACKAGES) -timeout 15m -skip '^TestLong' ./tests/single ./tests/cluster ./tests/migrate ./tests/chaos ./module/engine ./... || bad=1; tests/fuzz.sh $(FUZZTIME) -json || bad=1
# The same plans and histories each time, so that a failure comes from the change. make chaos
# and make sim draw new ones.
CHAOS = $(GO) test -json -count=1 -timeout 0 ./tests/chaos -run TestChaos -args
LONG  = $(GO) test -vet=off -tags check -json -count=1 -timeout 15m -run '^TestLong' ./... || bad=1; tests/fuzz.sh $(LONGFUZZ) -json || bad=1; $(CHAOS) -seed 1000 -time $(LONGTIME) -nodes 3 || bad=1; $(CHAOS) -seed 2000 -time $(LONGTIME) -nodes 5 || bad=1; \
  $(GO) test -tags check -json -count=1 -timeout 0 ./module/engine/sim -run Histories -sim.more $(LONGSEEDS) || bad=1

test: setup build ## Run all tests but the long ones, and each fuzzer for FUZZTIME (5s): ten minutes
	@set -o pipefail; { bad=0; $(TEST); exit $$bad; } | $(TALLY)

test-long: setup build ## Run what takes longer: tests that are named TestLong…, each fuzzer for LONGFUZZ (30s), chaos on three nodes and on five, LONGTIME (3m) each, and LONGSEEDS (20) more histories of each kind
	@set -o pipefail; { bad=0; $(LONG); exit $$bad; } | $(TALLY)

test-all: setup build vet ## Run both, and gofmt and go vet, as CI does: within forty minutes
	@set -o pipefail; { bad=0; $(TEST); $(LONG); exit $$bad; } | $(TALLY)

chaos: setup build ## Torment a mesh of NODES (3) for TIME (30m), and account for every job (SEED=… again, FAULTS=… some alone)
	@$(GO) test ./tests/chaos -count=1 -timeout 0 -v -run TestChaos -args -seed $(SEED) -nodes $(NODES) -time $(TIME) -faults "$(FAULTS)"

test-servers: setup build ## Run what needs a server on other releases too: Redis 8, Valkey 8 and 9
	@tests/servers.sh test

sanitize: setup ## Run what needs a server under AddressSanitizer and UBSan, with a module built for them
	@tests/sanitize.sh test

sim: ## Play SEEDS (1000) more random histories of each kind on simulated meshes, and measure large ones
	@GOGC=400 $(GO) test -tags check ./module/engine/sim -count=1 -timeout 0 -v -run "Histories|TestScale" -sim.seeds $(SEEDS) -sim.full

bench: setup build ## Compare with Redis streams and lists (BENCH='-scale': ten million jobs, '-mesh': three nodes, '-uq': unique queues, '-unique': unique jobs, '-bulk': ADDJOBS, '-locks': locks, '-life': failure, priorities, limits, recurring jobs, '-slowest': what keeps a full server longest, '-against FILE': another build of the module)
	@$(GO) run ./tests/bench $(BENCH)

fuzz: ## Run each fuzzer for LONGFUZZ (30s)
	@tests/fuzz.sh $(LONGFUZZ)

vet:
	@unformatted=$$(gofmt -l cgo lua rm module tests); if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted" >&2; exit 1; fi
	@$(GO) vet ./... && $(GO) vet -tags check ./module/engine

lint: vet ## gofmt, go vet, staticcheck, and the C compiler's warnings
	$(GO) run $(STATICCHECK) ./...
	@# The packages' own flags have -Wall -Wextra -Werror: a build from nothing is the check.
	CGO_CFLAGS="-O2 -g -DLINT" $(GO) build ./cgo/...

install: build ## Copy jobmesh.so to PREFIX/lib/redis/modules
	install -D -m 755 $(SO) $(DESTDIR)$(PREFIX)/lib/redis/modules/$(SO)

clean: ## Remove what was built
	rm -f $(SO) jobmesh.h

help: ## List these
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'
