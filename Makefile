# Two targets do all the set-up on a fresh machine: `make demo` and `make test`.
# Everything they need is a Go module, built from source and kept in caches.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

MODULES := . test/cluster test/integration test/tools
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
APP := github.com/dispatch-admission/dispatch-admission/pkg/app
LDFLAGS := -X $(APP).buildVersion=$(VERSION) -X $(APP).buildCommit=$(COMMIT)
CLUSTER := go -C test/cluster run ./cmd/cluster
# Name of the cluster that `cluster` and `cluster-down` mean.
NAME ?= default
# Extra arguments of the integration tests, for instance ARGS='-run TestGate -v'.
ARGS ?=

# The programs are static. Components and tests are built without cgo too, so
# that they share one build cache; only the race detector needs it.
export CGO_ENABLED := 0

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*## "; printf "Usage: make <target>\n"} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show the gate at work on a local cluster: held, released, evicted, started again.
	@go -C test/cluster run ./cmd/demo $(ARGS)

.PHONY: build
build: ## Build the programs into bin/.
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

##@ Tests

.PHONY: test
test: unit verify test-cluster test-integration ## Run everything that CI runs. The first run builds the control plane.
	@echo 'all tests passed'

.PHONY: unit
unit: ## Run the unit and layout tests, without a cluster, in under two minutes.
	CGO_ENABLED=1 go test -race -shuffle=on ./...
	go test ./pkg/internal/gate
	go -C test/cluster test -short ./...

.PHONY: test-cluster
test-cluster: ## Test the local cluster itself.
	go -C test/cluster test -count=1 -timeout 30m ./...

.PHONY: test-integration
test-integration: ## Test the gate on a real control plane. ARGS='-run TestGate -v' narrows it.
	go -C test/integration test -count=1 -timeout 30m $(ARGS) ./...

##@ Checks

.PHONY: verify
verify: verify-mod verify-lint verify-api verify-chart ## Check modules, formatting, vet, linters, the public API, the chart.

.PHONY: verify-mod
verify-mod:
	@for m in $(MODULES); do echo "go mod tidy -diff in $$m"; go -C $$m mod tidy -diff; go -C $$m mod verify >/dev/null; done

.PHONY: verify-lint
verify-lint: bin/tools/golangci-lint
	@for m in . test/cluster test/integration; do echo "golangci-lint in $$m"; (cd $$m && $(CURDIR)/bin/tools/golangci-lint run -c $(CURDIR)/.golangci.yml ./...); done

# The contract may grow, but a patch release must not break it. It is compared
# with the highest release in the history of HEAD, never with a tag of HEAD, so
# that a release too is compared with the one before. Before the first release
# there is nothing to compare with; a shallow clone only looks like that.
CONTRACT := pkg/admission pkg/admission/httphook pkg/admission/hooktest
.PHONY: verify-api
verify-api: bin/tools/apidiff
	@tag="$$(git -c versionsort.suffix=- tag --list 'v[0-9]*' --merged HEAD --no-contains HEAD --sort=-v:refname | sed -n 1p || true)"; \
	if [ "$$(git rev-parse --is-shallow-repository)" = true ]; then \
	  echo "apidiff: WARNING: this clone is shallow, releases may be missing; 'git fetch --unshallow --tags' gets them" >&2; \
	  [ -n "$$tag" ] || { echo 'apidiff: NOT CHECKED: no earlier release in this shallow clone' >&2; exit 0; }; \
	fi; \
	if [ -z "$$tag" ]; then echo 'apidiff: no release yet, nothing to compare with'; exit 0; fi; \
	old="$$(mktemp -d)"; trap 'git worktree remove --force "$$old/tree"; rm -rf "$$old"' EXIT; \
	git worktree add --quiet --detach "$$old/tree" "$$tag"; \
	for p in $(CONTRACT); do \
	  [ -d "$$old/tree/$$p" ] || continue; echo "apidiff of $$p against $$tag"; \
	  (cd "$$old/tree" && $(CURDIR)/bin/tools/apidiff -w "$$old/export" "./$$p"); \
	  broken="$$(bin/tools/apidiff -incompatible "$$old/export" "./$$p")"; \
	  if [ -n "$$broken" ]; then echo "$$broken"; exit 1; fi; \
	done

.PHONY: verify-chart
verify-chart:
	@helm="$$($(CLUSTER) build)/helm"; $$helm lint --strict charts/dispatch-admission; $$helm template x charts/dispatch-admission --kube-version 1.33.0 >/dev/null

.PHONY: fmt
fmt: bin/tools/golangci-lint ## Format the sources.
	@for m in . test/cluster test/integration; do (cd $$m && $(CURDIR)/bin/tools/golangci-lint fmt -c $(CURDIR)/.golangci.yml ./...); done

.PHONY: tidy
tidy: ## Tidy every go.mod.
	@for m in $(MODULES); do go -C $$m mod tidy; done

bin/tools/golangci-lint: test/tools/go.mod test/tools/go.sum
	go -C test/tools build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/tools/apidiff: test/tools/go.mod test/tools/go.sum
	go -C test/tools build -o $(CURDIR)/$@ golang.org/x/exp/cmd/apidiff

##@ Local cluster

.PHONY: cluster
cluster: ## Start a local cluster and print its KUBECONFIG. NAME=x for another one.
	@$(CLUSTER) up -name $(NAME)

.PHONY: cluster-down
cluster-down: ## Stop exactly what `make cluster` started.
	@$(CLUSTER) down -name $(NAME)

.PHONY: cluster-status
cluster-status: ## Show the components of the local cluster.
	@$(CLUSTER) status -name $(NAME)

.PHONY: clean
clean: ## Remove bin/.
	rm -rf bin
