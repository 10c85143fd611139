# The entry points. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:

PREFIX ?= /usr/local
# Of the soak, in seconds.
DURATION ?= 60
DESTDIR ?=
CARGO ?= cargo

# The plugin is exec'ed for every verb: static, and as small and as quick to map as can be.
PLUGIN_FLAGS := -C target-feature=+crt-static -C relocation-model=static

DEMO_PACKAGES := openvswitch-switch iproute2 ethtool iputils-ping util-linux
OVN_PACKAGES := ovn-central ovn-host
CONFORMANCE_PACKAGES := openvswitch-switch iproute2 util-linux containernetworking-plugins
RUNTIME_PACKAGES := containerd runc podman busybox-static iptables containernetworking-plugins
TEST_PACKAGES := $(DEMO_PACKAGES) $(OVN_PACKAGES) $(RUNTIME_PACKAGES) openssl conntrack strace golang-go systemd binutils libfaketime ca-certificates curl jq nftables rpm network-manager firewalld dnsmasq-base kea-dhcp4-server kea-dhcp6-server radvd prometheus stunnel4 gnupg
KERNEL_PACKAGES := qemu-system-x86 busybox-static
BENCH_PACKAGES := openvswitch-switch iproute2 util-linux containernetworking-plugins strace

# What `make install` and `make package` ship; SHIPPED= another directory with the binaries, already built.
SHIPPED ?=
# Where `make package` puts the package.
PACKAGES ?= target/package
RELEASE_BIN := $(if $(SHIPPED),$(SHIPPED)/podwire,target/release/podwire)
RELEASE_PLUGIN := $(if $(SHIPPED),$(SHIPPED)/podwire-cni,target/plugin/podwire-cni)
RELEASE_CONTROLLER := $(if $(SHIPPED),$(SHIPPED)/podwire-controller,target/release/podwire-controller)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# Where the fixtures find the binaries under test; a value from the environment is kept.
export PODWIRE_BIN ?= $(CURDIR)/target/debug/podwire
export PODWIRE_FAULTS_BIN ?= $(CURDIR)/target/debug/podwire-faults
export PODWIRE_CONTROLLER_BIN ?= $(CURDIR)/target/debug/podwire-controller
export PODWIRE_PLUGIN ?= $(CURDIR)/target/plugin/podwire-cni
export PODWIRE_CONFORMANCE ?= $(CURDIR)/target/debug/cni-conformance

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

.PHONY: demo
demo: root ## wire two pods on a private Open vSwitch, show them talking, and clean up
	@.ci/packages $(DEMO_PACKAGES)
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(MAKE) --no-print-directory plugin
	@$(CARGO) build -p podwire-tests --bin podwire-demo
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire target/debug/podwire-demo

.PHONY: demo-ovn
demo-ovn: root ## two nodes in one OVN network: pods that talk through its tunnel, a picture of it, and clean up
	@.ci/packages $(DEMO_PACKAGES) $(OVN_PACKAGES)
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(MAKE) --no-print-directory plugin
	@$(CARGO) build -p podwire-tests --bin podwire-demo
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire target/debug/podwire-demo ovn

.PHONY: demo-node
demo-node: root ## two machines with a router between them made nodes by podwire node: every way a packet takes, damage put back, cleanup, and proof of it
	@.ci/packages $(DEMO_PACKAGES) $(OVN_PACKAGES) nftables
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(MAKE) --no-print-directory plugin
	@$(CARGO) build -p podwire-tests --bin podwire-demo
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire target/debug/podwire-demo node

.PHONY: demo-gateway
demo-gateway: root ## a machine's only NIC is moved into br-ex while a TCP stream goes over it: the longest gap; then a move that fails, and undoes itself
	@.ci/packages $(DEMO_PACKAGES) nftables systemd dbus dnsmasq-base
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(CARGO) build -p podwire-tests --bin podwire-demo
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire target/debug/podwire-demo gateway

.PHONY: demo-underlay
demo-underlay: root ## two machines with spare NICs on a switch with VLANs: podwire node makes their bridges, and pods with addresses of a DHCP server and a host outside talk on VLAN 100
	@.ci/packages $(DEMO_PACKAGES) nftables dnsmasq-base
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(MAKE) --no-print-directory plugin
	@$(CARGO) build -p podwire-tests --bin podwire-demo
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire target/debug/podwire-demo underlay

.PHONY: demo-networks
demo-networks: DEMO = networks
demo-networks: root ## a pod on three networks, what podwire-controller network refuses, and a primary network that the default one does not reach

.PHONY: demo-cluster
demo-cluster: DEMO = cluster
demo-cluster: root ## a cluster's network on podwire and OVN alone: controller, two nodes, pods, a service, the leader killed; with a real kube-apiserver after `make kubernetes`

.PHONY: cluster
cluster: root ## a network of one node with two pods, in namespaces, and a shell on that node to look around; it is removed when the shell ends
	@$(MAKE) --no-print-directory demo-cluster DEMO=stay

.PHONY: demo-policy
demo-policy: DEMO = policy
demo-policy: root ## network policies on two nodes: who reaches whom before and after, with the rule that decides each, by packets too; target/demo-policy.html

# Of these, with a controller.
demo-networks demo-cluster demo-policy:
	@.ci/packages $(DEMO_PACKAGES) $(OVN_PACKAGES) $(if $(filter demo-cluster,$@),nftables)
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(CARGO) build --release -p podwire-controller --bin podwire-controller
	@$(MAKE) --no-print-directory plugin
	@$(CARGO) build -p podwire-tests --bin podwire-demo
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire PODWIRE_CONTROLLER_BIN=$(CURDIR)/target/release/podwire-controller target/debug/podwire-demo $(DEMO)

# A foreign tool that can't be had (no network, another Debian) must not fail our own tests: what
# needs it is left out by name, and the summary says so. Everything is built with the features of the
# whole workspace: any other selection of crates has cargo build most of them once more, on disk too.
.PHONY: test
test: root test-packages plugin ## all tests: unit, property, end-to-end on real components, doc
	$(CARGO) build --workspace --bin podwire --bin podwire-controller --bin cni-conformance
	$(CARGO) build --workspace --bin podwire-faults --features podwire-tools/fault-points
	$(CARGO) test --quiet --workspace --doc
	without=()
	if ! $(MAKE) --no-print-directory cnitool; then
		echo "make: leaving out cnitool's tests: the tool could not be built" >&2
		without=(--skip cnitool --skip readmes_session --skip portmap_follows --skip tuning_changes --skip the_bandwidth_plugin)
	fi
	$(MAKE) --no-print-directory chart || echo "make: leaving out the chart's tests: helm could not be had" >&2
	if $(CARGO) nextest --version >/dev/null 2>&1; then
		$(CARGO) nextest run --workspace $${without:+-E 'not binary(cnitool)'}
	else
		$(CARGO) test --workspace --lib --bins --tests -- "$${without[@]}"
	fi
	if .ci/packages $(KERNEL_PACKAGES) && .ci/kernel target/kernel; then
		CARGO=$(CARGO) .ci/test-kernel target/kernel
	else
		echo "make: leaving out the kernel's datapath: a kernel that has it could not be fetched" >&2
	fi
	target/debug/podwire-soak 60

# Open vSwitch's kernel datapath is a module that a machine for tests may not load: so it runs in a small emulated one.
.PHONY: test-kernel
test-kernel: root test-packages build ## end-to-end tests on the kernel's datapath, plain and OVN, in a small virtual machine
	@.ci/packages $(KERNEL_PACKAGES)
	@.ci/kernel target/kernel
	@$(MAKE) --no-print-directory cnitool || true
	@CARGO=$(CARGO) .ci/test-kernel target/kernel

.PHONY: test-kernel-doors
test-kernel-doors: KERNEL_TESTS = node_door --include-ignored a_client_that_sends
test-kernel-doors: root test-packages build ## what passes between nodes' doors on the kernel's datapath, in the same virtual machine, with binaries as shipped (three minutes after the build)

.PHONY: test-kernel-gateway-modes
test-kernel-gateway-modes: KERNEL_TESTS = gateway --include-ignored connections_that_a_change
test-kernel-gateway-modes: root test-packages build ## which connections a node's change of its gateway's mode ends on the kernel's datapath, in the same virtual machine, with binaries as shipped (three minutes after the build)

# The emulated machine is too slow for a controller and a node role that are not optimised.
test-kernel-doors test-kernel-gateway-modes:
	@.ci/packages $(KERNEL_PACKAGES)
	@.ci/kernel target/kernel
	@$(CARGO) build --release -p podwire-controller --bin podwire-controller
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@CARGO=$(CARGO) PODWIRE_BIN=$(CURDIR)/target/release/podwire PODWIRE_CONTROLLER_BIN=$(CURDIR)/target/release/podwire-controller \
		.ci/test-kernel target/kernel "$(KERNEL_TESTS)"

# A boot takes half a minute in the emulated machine. POWER_STEPS=2,3 takes the second step and every third one from there.
.PHONY: test-kernel-gateway
test-kernel-gateway: root test-packages ## power lost at each step of moving a NIC into br-ex and back, and the boot after it; bonds, VLANs, teams and netplan; in virtual machines with disks that systemd boots
	@.ci/packages $(KERNEL_PACKAGES) e2fsprogs netplan.io libteam-utils
	@.ci/kernel target/kernel
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(CARGO) build --release -p podwire-tools --bin podwire-faults --features fault-points
	@PODWIRE_BIN=$(CURDIR)/target/release/podwire PODWIRE_FAULTS_BIN=$(CURDIR)/target/release/podwire-faults \
		$(CARGO) test -p podwire-tests --test node_vm -- --ignored --nocapture

# `make test` starts 200. It takes about five minutes; STARTS= for another number.
STARTS ?= 5000
.PHONY: test-policy-starts
test-policy-starts: root test-packages build ## 5,000 starts of pods that a policy isolates, under a flood: nothing may come through (STARTS=)
	POLICY_STARTS=$(STARTS) $(CARGO) test -p podwire-controller --test cluster -- isolates_receives_nothing

.PHONY: test-policy-traces
test-policy-traces: root test-packages ## every case of network policies by ovn-northd and ovn-trace (`make test` asks about one packet of 53)
	POLICY_TRACES=all $(CARGO) test -p podwire-controller --test policy -- --nocapture ovn_lets_pass

.PHONY: test-policy-packets
test-policy-packets: root test-packages ## every packet of every case of network policies, through two nodes with OVN and Open vSwitch (twenty minutes; `make test` sends those of one case of 41)
	POLICY_PACKETS=all $(CARGO) test -p podwire-controller --test policy -- --nocapture packets_pass

.PHONY: test-move
test-move: root test-packages build ## a move of the NIC that is killed at each of its steps, under each network manager (ten minutes; `make test` takes every third step)
	MOVE_STEPS=all $(CARGO) test -p podwire-tests --test node_bridged -- any_step

.PHONY: test-reproducible
test-reproducible: root test-packages build ## packages and images built twice, each time by somebody else with another clock: all bytes are the same (five minutes; `make test` does so with Debian's packages)
	$(CARGO) test -p podwire-tests --test package -- --include-ignored reproducible

# What people run who upgrade: a release's tag, once there is one.
UPGRADE_FROM ?= 199c2b2c
# Releases of Debian whose OVN and Open vSwitch take the place of this machine's.
UPGRADE_OVN ?= trixie sid
.PHONY: test-upgrade
test-upgrade: root test-packages build ## every part replaced by these programs, from those of an earlier revision (UPGRADE_FROM=), then OVN by later ones (UPGRADE_OVN=), under traffic: nothing may be lost (three minutes after the builds)
	@.ci/packages debootstrap
	for release in $(UPGRADE_OVN); do
		.ci/tree "$$release" target/versions/upgrade-"$$release" openvswitch-switch $(OVN_PACKAGES)
	done
	CARGO=$(CARGO) .ci/test-upgrade "$(UPGRADE_FROM)" target/upgrade $(UPGRADE_OVN:%=target/versions/upgrade-%)

# One tree of about a gigabyte for each release, kept in target/versions. Its packages are those of `make test`, without compilers.
VERSIONS ?= trixie sid
VERSION_PACKAGES = $(filter-out golang-go,$(TEST_PACKAGES)) dpkg kmod procps python3

.PHONY: test-versions
test-versions: root test-packages build ## end-to-end tests against the Open vSwitch, OVN, containerd and tools of later Debian releases (VERSIONS=)
	@.ci/packages debootstrap
	@$(MAKE) --no-print-directory cnitool || true
	for release in $(VERSIONS); do
		.ci/tree "$$release" target/versions/"$$release" $(VERSION_PACKAGES)
		CARGO=$(CARGO) .ci/test-versions "$$release" target/versions/"$$release"
	done

CLUSTER_PACKAGES := golang-go openvswitch-switch $(OVN_PACKAGES) nftables containerd runc containernetworking-plugins busybox-static openssl jq iproute2 iputils-ping util-linux

# target/kubernetes keeps what was built; the cluster itself leaves nothing.
.PHONY: kubernetes
kubernetes: root ## Kubernetes 1.20 of Debian's source package in target/kubernetes, for demo-cluster and test-cluster (ten minutes, once)
	@.ci/packages $(CLUSTER_PACKAGES)
	@.ci/kubernetes target/kubernetes

.PHONY: test-cluster
test-cluster: root image kubernetes ## podwire in a real Kubernetes: pods by a Deployment, restarts, a rollout, a drain, rights by the audit log, and off again
	@.ci/test-cluster target/kubernetes target/image/podwire-$(VERSION)-*.oci.tar target/image/podwire-controller-$(VERSION)-*.oci.tar target/image/podwire-ovn-$(VERSION)-*.oci.tar
	@$(MAKE) --no-print-directory demo-cluster

E2E_PACKAGES := $(CLUSTER_PACKAGES) bind9-dnsutils curl ethtool iperf iptables netcat-openbsd procps python3 wget

# What two-nodes is started with, after the image and the programs of Kubernetes.
TWO_NODES = $(or $(KUBERNETES),target/kubernetes) target/image/podwire-$(VERSION)-*.oci.tar target/image/podwire-controller-$(VERSION)-*.oci.tar target/release/podwire-controller target/debug

.PHONY: e2e-parts
e2e-parts: root image
	@.ci/packages $(E2E_PACKAGES)
	@[[ -n "$(KUBERNETES)" ]] || .ci/kubernetes target/kubernetes e2e
	@$(CARGO) build -p podwire-tests --bin podwire-cluster-dns --bin podwire-prober

# FOCUS= a regular expression runs those specs alone; see .ci/test-e2e.
.PHONY: test-e2e
test-e2e: e2e-parts ## Kubernetes' own [sig-network] tests against podwire on two nodes, in target/e2e; KUBERNETES= a directory with another release's programs
	@.ci/test-e2e $(TWO_NODES) target/e2e

# A round of all faults takes about ten minutes.
.PHONY: test-churn
test-churn: DURATION = 900
test-churn: e2e-parts ## the same two nodes under rollouts, drains, reboots and kills, with a prober on every path; DURATION= seconds
	@DURATION=$(DURATION) .ci/test-churn $(TWO_NODES) target/churn

# Neither its source nor its modules are packages: whoever has its programs says where.
.PHONY: test-multus
test-multus: e2e-parts ## the same two nodes with Multus before podwire, thin and thick: MULTUS= a directory with multus, multus-daemon and multus-shim
	@MULTUS="$(MULTUS)" .ci/test-multus $(TWO_NODES) target/multus

# Its program is in no package, either: whoever has it says where.
.PHONY: test-ovn-kubernetes
test-ovn-kubernetes: root test-packages build ## nodes of podwire's under ovn-kubernetes' own control plane, with gateway routers and without: OVN_KUBERNETES= a directory with ovnkube
	@.ci/packages iputils-arping
	@[[ -x "$(OVN_KUBERNETES)/ovnkube" ]] || { echo "make: OVN_KUBERNETES=$(OVN_KUBERNETES) has no program ovnkube" >&2; exit 1; }
	OVN_KUBERNETES=$$(realpath "$(OVN_KUBERNETES)") $(CARGO) test -p podwire-tests --test gateway -- --ignored ovn_kubernetes

# Debian's source is too old for these policies: any newer build serves, beside etcd and kubectl.
.PHONY: test-admission
test-admission: root ## the admission policies in an API server of 1.30 or later: KUBERNETES= a directory with kube-apiserver, etcd, kubectl
	@.ci/packages openssl jq curl iproute2 util-linux
	@.ci/test-admission $(KUBERNETES)

.PHONY: soak
soak: root ## random verbs for hundreds of pods while everything is killed at random; DURATION= seconds
	@.ci/packages $(DEMO_PACKAGES)
	@$(MAKE) --no-print-directory build
	@$(CARGO) build -p podwire-tests --bin podwire-soak
	@target/debug/podwire-soak $(DURATION)

# podwire is measured as it is shipped. The floor's empty process is built like the plugin, by rustc
# alone, so that it is nothing but a runtime's start.
.PHONY: bench
bench: bench-build ## the pod-startup benchmark, all samples: table, target/bench/report.json and report.html
	@$(BENCH) --output target/bench $(BENCH_FLAGS)

.PHONY: bench-quick
bench-quick: bench-build ## the same with few samples, in under two minutes
	@$(BENCH) --quick --output target/bench-quick $(BENCH_FLAGS)

# Both on the kernel's datapath, in a machine whose clock counts instructions: ratios depend neither
# on the machine nor on what else runs there.
.PHONY: bench-kernel
bench-kernel: bench-build bench-machine ## the quick benchmark on the kernel's datapath, in counted instructions, in a small virtual machine
	@$(BENCH_ENVIRONMENT) .ci/bench-kernel target/kernel target/bench-kernel --quick $(BENCH_FLAGS)

.PHONY: bench-check
bench-check: bench-build bench-machine ## fail when the median of three runs of a ratio in counted instructions is more than 15 % worse than in benches/baseline.json
	@$(BENCH_ENVIRONMENT) .ci/bench-kernel target/kernel target/bench-check --quick --runs 3 --only one,eight,burst --subjects floor,podwire,bridge --baseline /vm/baseline.json $(BENCH_FLAGS)

.PHONY: bench-machine
bench-machine:
	@.ci/packages $(KERNEL_PACKAGES)
	@.ci/kernel target/kernel

# Built where the path of the checkout makes no difference: the order of functions costs instructions too.
BENCH_TARGET = $(CURDIR)/target/fixed-path
BENCH_ENVIRONMENT = PODWIRE_BIN=$(BENCH_TARGET)/release/podwire PODWIRE_PLUGIN=$(BENCH_TARGET)/plugin/podwire-cni PODWIRE_EMPTY=$(BENCH_TARGET)/plugin/podwire-empty
BENCH = $(BENCH_ENVIRONMENT) $(BENCH_TARGET)/release/podwire-bench

.PHONY: bench-build
bench-build: root
	@.ci/packages $(BENCH_PACKAGES) $(OVN_PACKAGES)
	@.ci/fixed-path $(MAKE) --no-print-directory bench-binaries

.PHONY: bench-binaries
bench-binaries: plugin
	@$(CARGO) build --release -p podwire-tools --bin podwire
	@$(CARGO) build --release -p podwire-bench --bin podwire-bench
	@rustc --edition 2024 -O -C panic=abort -C strip=symbols $(PLUGIN_FLAGS) -o $$CARGO_TARGET_DIR/plugin/podwire-empty benches/empty.rs

# The tests' API server and a real northbound database; the controller as it is shipped.
.PHONY: bench-controller
bench-controller: root ## podwire-controller with 500 nodes, 50,000 pods and 10,000 services; target/bench-controller.json (about three minutes)
	@.ci/packages $(OVN_PACKAGES)
	@$(CARGO) build --release -p podwire-controller --bin podwire-controller
	@$(CARGO) build --release -p podwire-tests --bin podwire-bench-controller
	@PODWIRE_CONTROLLER_BIN=$(CURDIR)/target/release/podwire-controller target/release/podwire-bench-controller target/bench-controller.json $(BENCH_FLAGS)

# A tree of each other release has its ovsdb-server and ovn-northd; this machine's own are used where it is that release.
SCALE_VERSIONS ?= bookworm trixie sid
SCALE_OUTPUT ?= target/bench-scale
SCALE_FLAGS ?=
SCALE_PACKAGES := ovn-central libjemalloc2 iproute2 ethtool util-linux ca-certificates

.PHONY: bench-scale
bench-scale: root ## what a pod and an endpoint cost ovn-northd, by version of OVN (SCALE_VERSIONS=) and size (SCALE_FLAGS=--pods 500,5000,50000); target/bench-scale (five minutes)
	@.ci/packages $(SCALE_PACKAGES) debootstrap
	@$(CARGO) build --release -p podwire-controller --bin podwire-controller
	@$(CARGO) build --release -p podwire-tests --bin podwire-bench-controller
	mkdir -p $(SCALE_OUTPUT)
	export PODWIRE_CONTROLLER_BIN=$(CURDIR)/target/release/podwire-controller
	own=$$(. /etc/os-release; echo "$${VERSION_CODENAME:-}")
	for release in $(SCALE_VERSIONS); do
		run=(target/release/podwire-bench-controller scale --output $(SCALE_OUTPUT)/$$release.json $(SCALE_FLAGS))
		if [[ $$release != "$$own" ]]; then
			.ci/tree "$$release" target/versions/ovn-"$$release" $(SCALE_PACKAGES)
			run=(.ci/in-tree target/versions/ovn-"$$release" "$${run[@]}")
		fi
		"$${run[@]}"
	done

.PHONY: bench-policy
bench-policy: ## what a label and a network policy cost: until the southbound database and until a node's flow, by version of OVN (SCALE_VERSIONS=), beside rows of ovn-kubernetes' shape; SCALE_FLAGS=--pods 500,5000 (ten minutes)
	@$(MAKE) --no-print-directory bench-scale SCALE_PACKAGES="$(SCALE_PACKAGES) ovn-host" SCALE_OUTPUT=target/bench-policy SCALE_FLAGS="--policies 2000 --changes 30 $(SCALE_FLAGS)"

.PHONY: bench-node
bench-node: root ## how long the node role takes to make a machine a node, and to put back what is removed, beside the same steps by commands (one minute)
	@.ci/packages $(DEMO_PACKAGES) nftables iptables
	@$(MAKE) --no-print-directory release
	@$(CARGO) build --release -p podwire-tests --bin podwire-bench-node
	@PODWIRE_BIN=$(abspath $(RELEASE_BIN)) PODWIRE_PLUGIN=$(abspath $(RELEASE_PLUGIN)) target/release/podwire-bench-node

.PHONY: bench-move
bench-move: root ## for how long a machine is not reached while its NIC is moved into br-ex, beside one transaction and one `ip -batch` with the same end state (two minutes)
	@.ci/packages $(DEMO_PACKAGES) nftables
	@$(MAKE) --no-print-directory release
	@$(CARGO) build --release -p podwire-tests --bin podwire-bench-node
	@PODWIRE_BIN=$(abspath $(RELEASE_BIN)) PODWIRE_PLUGIN=$(abspath $(RELEASE_PLUGIN)) target/release/podwire-bench-node move

.PHONY: bench-host
bench-host: root ## what 500 nodes and 10,000 services cost each node: memory and processor time of node role and agent, their requests to the API server (two minutes)
	@.ci/packages $(DEMO_PACKAGES) nftables
	@$(MAKE) --no-print-directory release
	@$(CARGO) build --release -p podwire-tests --bin podwire-bench-controller
	@PODWIRE_BIN=$(abspath $(RELEASE_BIN)) PODWIRE_PLUGIN=$(abspath $(RELEASE_PLUGIN)) target/release/podwire-bench-controller host

.PHONY: conformance
conformance: root ## check podwire and Debian's plugins against the CNI specification; writes docs/conformance.md
	@.ci/packages $(CONFORMANCE_PACKAGES)
	@$(MAKE) --no-print-directory build
	@$(CARGO) build -p podwire-tests --bin podwire-conformance
	@target/debug/podwire-conformance docs/conformance.md

.PHONY: lint
lint: ## formatting, clippy, rustdoc and licences, each without a warning
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p podwire-tools --bin podwire-faults --features fault-points -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	rustfmt --check --edition 2024 fuzz/entries.rs fuzz/fuzz_targets/*.rs
	if $(CARGO) deny --version >/dev/null 2>&1; then
		$(CARGO) deny --all-features check bans licenses sources
	else
		echo "make: leaving out licences, bans and duplicates: cargo install cargo-deny" >&2
	fi

FUZZ_TARGETS := cni wire annotations ovsdb config spool kubeconfig manifest
DURATION ?= 60

# libFuzzer wants flags of a nightly compiler; RUSTC_BOOTSTRAP has the stable one take them.
.PHONY: fuzz
fuzz: ## fuzz each thing that is read from outside, DURATION seconds each (needs cargo-fuzz)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || { echo "make: cargo install cargo-fuzz" >&2; exit 1; }
	export RUSTC_BOOTSTRAP=1
	for target in $(FUZZ_TARGETS); do
		mkdir -p fuzz/target/corpus/$$target
		$(CARGO) fuzz run $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(DURATION) -max_len=16384 -timeout=20 -rss_limit_mb=1024 -dict=fuzz/json.dict
	done

.PHONY: lines
lines: ## the product's lines of code by crate and room, without blank lines, comments and tests
	@$(CARGO) run --quiet -p podwire-tests --bin podwire-lines

.PHONY: build
build: plugin ## what the tests exec: the agent (also with fault points) and the conformance suite (debug), and the plugin (as shipped)
	$(CARGO) build -p podwire-tools --bin podwire -p cni-conformance --bin cni-conformance -p podwire-controller --bin podwire-controller
	$(CARGO) build -p podwire-tools --bin podwire-faults --features fault-points

.PHONY: plugin
plugin: ## the static plugin, target/plugin/podwire-cni
	@$(CARGO) rustc -p podwire-cni --bin podwire-cni --profile plugin -- $(PLUGIN_FLAGS)

.PHONY: release
release: ## the binaries as shipped: target/release/podwire and target/plugin/podwire-cni
	@if [[ -z "$(SHIPPED)" ]]; then
		$(MAKE) --no-print-directory plugin
		$(CARGO) build --release -p podwire-tools --bin podwire
	fi

.PHONY: release-controller
release-controller:
	@[[ -n "$(SHIPPED)" ]] || $(CARGO) build --release -p podwire-controller --bin podwire-controller

.PHONY: install
install: release ## podwire, units and manual into $(PREFIX), the plugin into /opt/cni/bin; DESTDIR= for elsewhere
	deploy/stage "$(DESTDIR)" $(RELEASE_BIN) $(RELEASE_PLUGIN) "$(PREFIX)"
	$(RELEASE_BIN) install --plugin-only --plugin $(RELEASE_PLUGIN) --root "$(DESTDIR)/"

.PHONY: package
package: release release-controller ## Debian packages of a node's part and of the controller in target/package
	@CARGO=$(CARGO) deploy/debian/build $(RELEASE_BIN) $(RELEASE_PLUGIN) $(VERSION) $(PACKAGES)
	@CARGO=$(CARGO) deploy/debian/build $(RELEASE_CONTROLLER) "" $(VERSION) $(PACKAGES)

.PHONY: rpm
rpm: release ## the same as an RPM
	@.ci/packages rpm
	@deploy/rpm/build $(RELEASE_BIN) $(RELEASE_PLUGIN) $(VERSION) $(PACKAGES)

.PHONY: image
image: release release-controller ## the images of the DaemonSet, of the controller and of OVN as OCI archives in target/image, with bills of materials
	@.ci/packages nftables ovn-common ovn-central ovn-host openvswitch-switch busybox-static ca-certificates jq binutils
	@CARGO=$(CARGO) deploy/image/build $(RELEASE_BIN) $(RELEASE_PLUGIN) $(VERSION) target/image
	@CARGO=$(CARGO) deploy/image/build $(RELEASE_CONTROLLER) "" $(VERSION) target/image
	@deploy/image/build ovn "" $(VERSION) target/image

.PHONY: chart
chart: target/tools/helm ## the Helm chart, made of the kustomizations, in target/chart
	@KUBECTL=$(CURDIR)/target/tools/kubectl deploy/helm/build $(VERSION) target/chart
	echo target/chart/podwire-$(VERSION).tgz

target/tools/helm: .ci/helm
	@.ci/packages python3-pip
	.ci/helm $(@D)
	touch $@

# With `make kubernetes` also in a real API server.
.PHONY: test-helm
test-helm: root test-packages chart ## the chart by helm: the same objects as by kustomize, refusals, and, after `make kubernetes`, installed, upgraded and removed in a real API server
	@$(CARGO) test -p podwire-tests --test kubernetes helm::

# KEY= a key of gpg, or its default one.
.PHONY: sign
sign: ## SHA256SUMS of the packages and images that were built, with a signature of gpg's (KEY=)
	@deploy/sign "$(KEY)" $(wildcard $(PACKAGES) target/image target/chart)

# KEY= as for sign. A release is of one commit: its version is in Cargo.toml and CHANGELOG.md.
.PHONY: dist
dist: package image chart ## a release: packages, images, chart, what breaks, checksums and their signature by gpg (KEY=) in target/dist/VERSION
	@deploy/release "$(KEY)" $(VERSION) target/dist/$(VERSION) $(PACKAGES) target/image target/chart

.PHONY: cnitool
cnitool: target/tools/cnitool ## the reference client of the CNI project, built from Debian's source package

target/tools/cnitool: .ci/cnitool | test-packages
	.ci/cnitool $@

.PHONY: test-packages
test-packages:
	@.ci/packages $(TEST_PACKAGES)

# Namespaces, veths and Open vSwitch are made for real.
.PHONY: root
root:
	@if (( EUID != 0 )); then echo "make: the fixtures make namespaces and links: run this as root" >&2; exit 1; fi
