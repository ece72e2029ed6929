# Every target installs what a fresh Debian machine lacks and says so.
# `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/node-upgrader
TOOLS := $(CACHE)/tools
LINT_VERSION := v2.15.0
VULN_VERSION := v1.8.0
LINT := $(TOOLS)/golangci-lint-$(LINT_VERSION)/golangci-lint
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
# The component set that images are made of: see test/components.
SET ?= 1.36
REF ?= node-upgrader.dev/upgrader:v$(SET)

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | column -t -s$$'\t'

build: ## the static program, out/upgrader
	@mkdir -p out
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o out/upgrader ./cmd/upgrader

test: deps vet lint unit tables ## everything that needs no cluster

deps:
	@command -v gcc >/dev/null || { echo "== installing gcc, for the race detector"; apt-get update -qq; apt-get install -y -qq gcc libc6-dev; }

unit: ## unit, crash and command-line tests, with the race detector
	@echo "== tests with the race detector"
	go run ./test/measure test 600 -race -timeout 25m ./...

tables: ## an upgrade on a node of files is killed at each of its changes, and each fails in each way (test/tables)
	@echo "== crash table and fault table"
	go run ./test/measure tables 300 -count=1 -timeout 20m ./test/tables

vet:
	@echo "== go vet, also of the end-to-end tests"
	go vet ./...
	go vet -tags e2e,e2e_upstream,e2e_vm,e2e_crash ./steps ./test/...

lint: $(LINT) ## golangci-lint
	@echo "== golangci-lint"
	$(LINT) run ./...
	$(LINT) run --build-tags e2e,e2e_upstream,e2e_vm,e2e_crash ./steps/... ./test/...

$(LINT):
	@echo "== building golangci-lint $(LINT_VERSION) (once, a few minutes)"
	@mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

vuln: ## known vulnerabilities of the program: asks https://vuln.go.dev, or a copy of it: GOVULNDB=file:///DIR
	go run golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION) $(if $(GOVULNDB),-db $(GOVULNDB)) ./cmd/...

components: ## build the components of all versions into the cache
	go run ./test/components/build 1.35 1.36

e2e: ## the real node: pod's way, by hand, refusals, crashes, a registry and nothing else
	@echo "== throwaway nodes: hosts, then upgrades"
	go run ./test/measure e2e-kubelet 300 -tags e2e -count=1 -run TestTryRealKubelet -v ./steps
	go run ./test/measure e2e 3600 -tags e2e -count=1 -timeout 80m -p 1 -parallel 2 -v ./test/registry ./test/host ./test/cluster ./test/uml ./test/e2e

e2e-vm: ## one whole upgrade on a kernel of its own: cgroup v2, systemd driver (half an hour)
	go run ./test/measure e2e-vm 3600 -tags e2e,e2e_vm -count=1 -timeout 90m -run TestVirtualMachine -v ./test/e2e

e2e-crash: ## the real node: 21 crashes of the host, 7 kills of pod and unit, a control plane that does not run; UPGRADER_CRASH_SEED repeats them
	go run ./test/measure e2e-crash 3600 -tags e2e,e2e_crash -count=1 -timeout 90m -v -run 'TestHostCrashes|TestPodStruck|TestControllerManager' ./test/e2e

e2e-recovery: ## docs/recovery.md, each entry as it is written, on a throwaway node (half an hour)
	go run ./test/measure e2e-recovery 3600 -tags e2e,e2e_recovery -count=1 -timeout 60m -run 'TestRecovery$$' -v ./test/e2e

e2e-upstream: ## critest of sigs.k8s.io/cri-tools against the upgraded node's containerd
	go test -tags e2e_upstream -count=1 -timeout 40m -v ./test/upstream

bench: ## figures against a plain script and cp, into out/figures-bench.json
	go run ./test/bench

demo: ## upgrade a throwaway node by the upgrader's pod, and show it
	go run ./test/demo

demo-by-hand: ## the same by the program on the node
	go run ./test/demo --by-hand

image-content: build ## what the image holds, out/image: for the Dockerfile
	@mkdir -p out/image
	cp out/upgrader out/image/upgrader
	out/upgrader bundle build --from "$$(go run ./test/components/build --print-dir $(SET))" --out out/image/bundle

dockerfile: ## the Dockerfile's image by buildah, its files compared with the archive's
	go test -tags e2e -count=1 -run TestDockerfile -v ./test/registry

image: image-content ## the container image as an OCI archive, out/upgrader.tar; no Docker needed
	out/upgrader bundle image --bundle out/image/bundle --upgrader out/image/upgrader --ref $(REF) --out out/upgrader.tar
	@ls -l out/upgrader.tar

clean: ## what was built here; the caches stay
	rm -rf out

.PHONY: help build test deps unit tables vet lint vuln components e2e e2e-crash e2e-vm e2e-recovery e2e-upstream bench demo demo-by-hand image image-content dockerfile clean
