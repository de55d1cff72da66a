# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PKG       ?= ./...
TESTFLAGS ?=
FUZZTIME  ?= 60s
ARGS      ?=
# The modules beside this one that have tests of their own.
MODULES   := $(patsubst %/go.mod,%,$(filter-out tools/%,$(wildcard */go.mod)))

# The race detector needs a C compiler. Without one `make test` still runs; CI
# installs one.
RACE      := $(shell command -v "$$(go env CC)" >/dev/null && echo -race)
SERVICES  := bin/services -install --
GOLANGCI  := bin/golangci-lint

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/inboxd, static
	CGO_ENABLED=0 go build -trimpath -o bin/inboxd ./cmd/inboxd

# One package at a time (-p 1): several start brokers, databases and daemons of
# their own, and kill and freeze them; side by side they would measure each other.
.PHONY: test
test: bin/services ## all tests, on a private RabbitMQ and PostgreSQL (PKG=./internal/forward/... TESTFLAGS='-run X')
	@$(if $(RACE),,echo 'no C compiler here: the tests run without the race detector')
	@$(if $(filter ./... ./test/%,$(PKG)),scripts/install-test-deps || echo 'the tests that need more programs are skipped (in CI they fail)')
	$(SERVICES) go test $(RACE) -p 1 -timeout 20m $(TESTFLAGS) $(PKG)
ifeq ($(PKG),./...)
	@for m in $(MODULES); do echo "module $$m"; $(SERVICES) go -C $$m test $(RACE) -timeout 20m $(TESTFLAGS) ./...; done
endif

.PHONY: test-short
test-short: ## the tests that need no server, quickly
	INBOXD_TEST_AMQP_URL= INBOXD_TEST_DATABASE_URL= CI= go test -short $(TESTFLAGS) $(PKG)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (60s) each
	@go test -list '^Fuzz' $(PKG) | awk '/^Fuzz/ { t[++n] = $$1 } /^ok/ { for (i = 1; i <= n; i++) print t[i], $$2; n = 0 }' | \
	while read -r target pkg; do \
		echo "$$pkg $$target"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null; \
	done

.PHONY: lint
lint: $(GOLANGCI) ## formatting, go vet, linters, import rules, tidy modules
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [[ -n $$unformatted ]]; then printf 'gofmt would change:\n%s\n' "$$unformatted"; exit 1; fi
	go vet ./...
	$(GOLANGCI) run ./...
	@for m in . tools $(MODULES); do echo "go -C $$m mod tidy -diff"; go -C $$m mod tidy -diff; done
	go mod verify

.PHONY: fmt
fmt: $(GOLANGCI) ## format the code as the linter wants it
	$(GOLANGCI) fmt ./...

.PHONY: vuln
vuln: bin/govulncheck ## known vulnerabilities in what the binary calls (asks an online database)
	bin/govulncheck ./...

.PHONY: demo
demo: ## the main job in one command, checked (KEEP=1 leaves it running to look at)
	KEEP=$(KEEP) go run ./demo $(ARGS)

.PHONY: bench
bench: ## throughput, latency and cost against loops without deduplication (BENCH='latency', docs/benchmarks.md)
	go -C bench run . $(BENCH)

.PHONY: services
services: bin/services ## a private RabbitMQ and PostgreSQL until interrupted, and their URLs
	$(SERVICES) sleep infinity

.PHONY: check-clean
check-clean: ## fail where the work tree differs from the commit
	@changed=$$(git status --porcelain); \
	if [[ -n $$changed ]]; then printf 'the work tree is not clean:\n%s\n' "$$changed"; exit 1; fi

.PHONY: clean
clean: ## remove what these targets built
	rm -rf bin

# Built instead of `go run`, which hides exit codes and keeps signals to itself.
.PHONY: bin/services
bin/services:
	@go build -o $@ ./internal/testenv/services

$(GOLANGCI) bin/govulncheck: tools/go.mod tools/go.sum
	go -C tools build -o ../bin/ $$(go -C tools list -f '{{.ImportPath}}' tool | grep '/$(@F)$$')
	@touch $@
