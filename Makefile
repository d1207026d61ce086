# Two targets do all the set-up on a fresh machine: `make demo` and `make test`.
# Everything they need is a Go module, built from source and kept in caches. Only
# the tests on a real node need root, and then install a few packages of Debian;
# elsewhere they say so and are left out.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

MODULES := . test/cluster test/cluster/coredns test/integration test/release test/chart test/chart/helm4 test/tools test/tools/helm-docs docs/examples/custom-hook
# Those that golangci-lint reads.
LINTED := . test/cluster test/cluster/coredns test/integration test/release test/chart test/chart/helm4
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
APP := github.com/dispatch-admission/dispatch-admission/pkg/app
LDFLAGS = -X $(APP).buildVersion=$(VERSION) -X $(APP).buildCommit=$(COMMIT)
CLUSTER := go -C test/cluster run ./cmd/cluster
# Name of the cluster that `cluster` and `cluster-down` mean.
NAME ?= default
# NODE=1 starts the cluster with a real node.
NODE ?=
# Images whose pods `cluster` runs: IMAGE=/path/of/binaries, several with spaces.
PROGRAMS ?=
# Extra arguments of go test, for instance ARGS='-run TestGate'.
ARGS ?=

# The programs are static. Components and tests are built without cgo too, so
# that they share one build cache; only the race detector needs it.
export CGO_ENABLED := 0

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*## "; printf "Usage: make <target>\n"} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show the gate at work on a local cluster: held, released, evicted, started again.
	@go -C test/cluster run ./cmd/demo $(ARGS)

.PHONY: build
build: ## Build the programs into bin/.
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

##@ Tests

# $(call gotest,MODULE,FORMAT) runs go test in a module, with the arguments that
# follow. The last lines of its output name the tests that failed or were left out.
gotest = cd $(1) && $(CURDIR)/bin/tools/gotestsum --format $(2) --format-icons text --hide-summary output --

.PHONY: test
test: unit verify test-chart test-release test-cluster test-node test-integration test-lifecycle test-demo test-e2e ## Run everything that CI runs. The first run builds the control plane.
	@echo 'all tests passed that could run here: those left out are named above; NOT TESTED: test-kind, which takes a container engine'

.PHONY: unit
unit: bin/tools/gotestsum ## Run the unit and layout tests, without a cluster, in under two minutes.
	@export CGO_ENABLED=1; $(call gotest,.,pkgname) -race -shuffle=on ./...
	@$(call gotest,.,pkgname) ./pkg/internal/gate # without the race detector it looks at more
	@export CGO_ENABLED=1; $(call gotest,docs/examples/custom-hook,pkgname) -race ./...
	@$(call gotest,test/cluster,pkgname) -short ./...

.PHONY: test-release
test-release: bin/tools/gotestsum ## Test the image and what else a release consists of. Builds the programs twice.
	@$(call gotest,test/release,testname) -count=1 $(ARGS) ./...

.PHONY: test-chart
test-chart: bin/tools/gotestsum ## Test the Helm chart with Helm 3 and Helm 4, without a cluster.
	@$(call gotest,test/chart,pkgname) -count=1 $(ARGS) ./...
	@$(call gotest,test/chart/helm4,pkgname) -count=1 $(ARGS) ./...

.PHONY: golden
golden: ## Record what the chart renders, to be reviewed.
	go -C test/chart test -count=1 -run 'TestGolden|TestSelectors' . -update
	git diff --stat -- test/chart/testdata

.PHONY: test-cluster
test-cluster: bin/tools/gotestsum ## Test the local cluster itself.
	@$(CLUSTER) build >/dev/null
	@$(call gotest,test/cluster,testname) -count=1 -timeout 30m -skip '^TestNode$$' $(ARGS) ./...

# As root the tests on a real node get its packages by themselves. Where it cannot
# be, this says why, and the tests are counted as left out.
define with-node
[ "$$(id -u)" != 0 ] || $(MAKE) --no-print-directory node-deps || \
  echo '$@: the packages of a real node cannot be installed here' >&2; \
$(CLUSTER) build -node >/dev/null || echo '$@: NOT TESTED' >&2
endef

.PHONY: test-node
test-node: bin/tools/gotestsum ## Test the local cluster with a real node, as root; else say that it is left out.
	@$(with-node)
	@$(call gotest,test/cluster,testname) -count=1 -timeout 30m -run '^TestNode$$' $(ARGS) .

# Nothing of the machine changes but the packages: no service is started, now or
# at the next boot, because a node runs a containerd of its own.
NODE_PACKAGES := containerd runc containernetworking-plugins iptables iproute2
NO_SERVICES := /usr/sbin/policy-rc.d
.PHONY: node-deps
node-deps: ## Install the Debian packages that a real node needs. Needs root.
	@missing="$$(for p in $(NODE_PACKAGES); do dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || echo $$p; done)"; \
	[ -n "$$missing" ] || { echo 'node-deps: everything is installed'; exit 0; }; \
	[ "$$(id -u)" = 0 ] || { echo "node-deps: to install $$(echo $$missing) needs root: run it as root" >&2; exit 1; }; \
	if [ ! -e $(NO_SERVICES) ]; then \
	  trap 'rm -f $(NO_SERVICES)' EXIT; printf '#!/bin/sh\nexit 101\n' >$(NO_SERVICES); chmod 755 $(NO_SERVICES); \
	fi; \
	apt-get -q update; DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $$missing; \
	case " $$(echo $$missing) " in *' containerd '*) ! command -v systemctl >/dev/null || systemctl disable containerd.service;; esac

.PHONY: test-integration
test-integration: bin/tools/gotestsum ## Test the gate on a real control plane. ARGS='-run TestGate' narrows it.
	@$(call gotest,test/integration,testname) -count=1 -timeout 60m -parallel 8 $(ARGS) . # stories mostly wait

.PHONY: test-lifecycle
test-lifecycle: bin/tools/gotestsum ## Install, upgrade, roll back and remove the chart there, with Helm 3 and Helm 4.
	@$(call gotest,test/integration,testname) -count=1 -timeout 45m $(ARGS) ./lifecycle

.PHONY: test-demo
test-demo: demo ## Run the demo, which ends with an error unless it shows what it is to show.

.PHONY: test-e2e
test-e2e: bin/tools/gotestsum ## Run the chart and jobs as containers on a real node, as root; else say that it is left out.
	@$(with-node)
	@$(call gotest,test/integration,testname) -count=1 -timeout 45m $(ARGS) ./e2e

.PHONY: test-kind
test-kind: bin/tools/gotestsum ## Run the same on kind, for machines with docker, podman or nerdctl. Not part of `test`.
	@$(call gotest,test/integration,testname) -count=1 -timeout 120m $(ARGS) ./e2e -args -provider=kind

.PHONY: bench
bench: ## Print what docs/development.md says of performance, as ratios of one run. Half an hour on an idle machine.
	go test -run '^$$' -bench . $(ARGS) ./pkg/...
	go -C test/integration test -run '^$$' -bench . -timeout 60m $(ARGS) .

##@ Checks

.PHONY: verify
verify: verify-mod verify-generate verify-lint verify-api verify-chart verify-chart-readme ## Check modules, generated files, formatting, vet, linters, the public API, the chart.

.PHONY: verify-mod
verify-mod:
	@for m in $(MODULES); do echo "go mod tidy -diff in $$m"; go -C $$m mod tidy -diff; go -C $$m mod verify >/dev/null; done

# What follows from the types of api/: their deep copies, and the CRD that the
# chart installs.
CRDS := charts/dispatch-admission/files/crds
HELM_DOCS := bin/tools/helm-docs --chart-search-root charts --skip-version-footer --sort-values-order file --log-level warning
.PHONY: generate
generate: bin/tools/controller-gen bin/tools/helm-docs ## Write the deep copies and the CRDs that follow from the types of api/, and the chart's README.
	bin/tools/controller-gen object crd paths=./api/... output:crd:dir=$(CRDS)
	$(HELM_DOCS)

.PHONY: verify-generate
verify-generate: bin/tools/controller-gen
	@new="$$(mktemp -d)"; trap 'rm -rf "$$new"' EXIT; echo 'controller-gen of ./api/...'; \
	bin/tools/controller-gen object crd paths=./api/... output:object:dir="$$new" output:crd:dir="$$new/crds"; \
	diff -u api/v1alpha1/zz_generated.deepcopy.go "$$new/zz_generated.deepcopy.go" && diff -ru $(CRDS) "$$new/crds" || \
	{ echo 'api/ has changed and what is generated from it has not: run make generate' >&2; exit 1; }

.PHONY: verify-chart-readme
verify-chart-readme: bin/tools/helm-docs
	@echo 'helm-docs of the chart'; $(HELM_DOCS) --dry-run | diff -u charts/dispatch-admission/README.md - || \
	{ echo 'values.yaml has changed and the README of the chart has not: run make generate' >&2; exit 1; }

.PHONY: verify-lint
verify-lint: bin/tools/golangci-lint
	@for m in $(LINTED); do echo "golangci-lint in $$m"; (cd $$m && $(CURDIR)/bin/tools/golangci-lint run -c $(CURDIR)/.golangci.yml ./...); done

# The contract may grow, but a patch release must not break it. It is compared
# with the highest release in the history of HEAD, never with a tag of HEAD, so
# that a release too is compared with the one before. Before the first release
# there is nothing to compare with; a shallow clone only looks like that.
CONTRACT := pkg/admission pkg/admission/httphook pkg/admission/hooktest pkg/app pkg/startgate
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
	@for m in $(LINTED); do (cd $$m && $(CURDIR)/bin/tools/golangci-lint fmt -c $(CURDIR)/.golangci.yml ./...); done

.PHONY: tidy
tidy: ## Tidy every go.mod.
	@for m in $(MODULES); do go -C $$m mod tidy; done

bin/tools/golangci-lint: test/tools/go.mod test/tools/go.sum
	go -C test/tools build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/tools/gotestsum: test/tools/go.mod test/tools/go.sum
	go -C test/tools build -o $(CURDIR)/$@ gotest.tools/gotestsum

bin/tools/controller-gen: test/tools/go.mod test/tools/go.sum
	go -C test/tools build -o $(CURDIR)/$@ sigs.k8s.io/controller-tools/cmd/controller-gen

bin/tools/helm-docs: test/tools/helm-docs/go.mod test/tools/helm-docs/go.sum
	go -C test/tools/helm-docs build -o $(CURDIR)/$@ github.com/norwoodj/helm-docs/cmd/helm-docs

bin/tools/apidiff: test/tools/go.mod test/tools/go.sum
	go -C test/tools build -o $(CURDIR)/$@ golang.org/x/exp/cmd/apidiff

##@ Release

CHART := charts/dispatch-admission
# What is built says what the sources say, not what git makes of tags and of the
# folder, so that every clone of a commit builds the same.
APP_VERSION = $(shell awk '$$1 == "appVersion:" {gsub(/"/, "", $$2); print $$2}' $(CHART)/Chart.yaml)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
IMAGE ?= dispatch-admission
TAG ?= $(APP_VERSION)
PLATFORMS ?= linux/$(shell go env GOARCH)

# Not run by `go run`, which adds a line of its own to an error.
.PHONY: bin/tools/release
bin/tools/release:
	@go -C test/release build -o $(CURDIR)/$@ ./cmd/release

.PHONY: image
image: VERSION = v$(APP_VERSION)
image: bin/tools/release ## Build the container image and its bill of materials into bin/. IMAGE, TAG and PLATFORMS change it.
	@[ -z "$$(git status --porcelain)" ] || echo 'image: WARNING: there are changes that are not in commit $(COMMIT), which the image will name' >&2
	@bin/tools/release image -image '$(IMAGE)' -tag '$(TAG)' -platforms '$(PLATFORMS)' \
	  -version '$(APP_VERSION)' -revision '$(COMMIT)' -created '$(or $(SOURCE_DATE_EPOCH),0)' -ldflags '$(LDFLAGS)'

.PHONY: package-chart
package-chart: ## Package the chart into bin/.
	@helm="$$($(CLUSTER) build)/helm"; mkdir -p bin; $$helm package $(CHART) -d bin

.PHONY: release-notes
release-notes: bin/tools/release ## Print what CHANGELOG.md says of VERSION=v0.1.0, or of VERSION=Unreleased.
	@bin/tools/release notes '$(VERSION)'

##@ Local cluster

.PHONY: cluster
cluster: ## Start a local cluster and print its KUBECONFIG. NAME=x for another one, NODE=1 for a real node.
	@$(CLUSTER) up -name $(NAME) $(if $(NODE),-node) $(addprefix -programs ,$(PROGRAMS))

.PHONY: cluster-down
cluster-down: ## Stop exactly what `make cluster` started.
	@$(CLUSTER) down -name $(NAME)

.PHONY: cluster-status
cluster-status: ## Show the components of the local cluster.
	@$(CLUSTER) status -name $(NAME)

.PHONY: clean
clean: ## Remove bin/.
	rm -rf bin
