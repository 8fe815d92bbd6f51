# Everything a person does here. `make` alone prints the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tools have a module of their own, so that those who build Headgate do not build its linter.
TOOL := go tool -modfile=tools/go.mod
# The tests of the golden lists of flags, fields and metrics (docs/versions.md).
NAMES := -run '^(TestFields|TestNames|TestCompare)$$' ./test/surface ./extproc/metrics ./control/metrics ./control/agent/command ./headgate
# Fuzzing is bounded by runs and not by time: up to Go 1.26 a bound in time may itself be reported as a failure
# (golang/go#75804).
FUZZ := go test -run '^$$' -fuzzminimizetime 5x -fuzz

# The models of make run MODELS=1.
DEMO_MODELS := $(foreach i,01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20,customer-$(i))

# At its end a program with the race detector waits a second for reports of other threads, unless it is told otherwise.
export GORACE := atexit_sleep_ms=50

.PHONY: help run build test e2e release release-check try-wheel try-arm64 ci-full cluster images cluster-down conformance soak try-upgrade real real-repositories stores real-mlserver check fuzz bench bench-against bench-policies bench-cost bench-place bench-place-engines bench-estimate bench-plan bench-flow bench-agent generate objects names protocols clean

help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Run the whole on this machine, on :8080: simulated engines, or ENDPOINTS=HOST:PORT,... your own servers; GATEWAY=1 by Gateway API; MODELS=1 models from storage (ENGINE=mlserver: real ones)
	$(if $(filter mlserver,$(ENGINE)),@bench/real/mlserver install .cache/mlserver && bench/real/mlserver model .cache/mlserver .run/store $(DEMO_MODELS))
	@bin/headgate run --run .run --cache .cache $(if $(ENDPOINTS),--endpoints '$(ENDPOINTS)',--objects headgate/run/$(if $(GATEWAY),gateway --gateway,$(if $(MODELS),models --models,objects))) \
		$(if $(filter mlserver,$(ENGINE)),--mlserver .cache/mlserver/venv/bin/mlserver) $(if $(GATEWAY),,--envoy-config envoy.yaml) $(ARGS)

build: ## Build the programs into bin/
	@mkdir -p bin
	go build -o bin/headgate ./headgate
	@ln -sfn headgate bin/extproc
	@ln -sfn headgate bin/control
	go build -o bin/agent ./control/agent
	go build -o bin/bench ./bench

test: ## Run every test, the end-to-end ones with a real Envoy and real clients too
	@go run ./bench cluster build etcd kube-apiserver kubectl helm # minutes once; not beside tests that measure time
	@go test -count 1 ./test/stores # likewise
	@go -C tools/gateways mod download # 24 MB once: schemas of other gateways' objects
	# Tests wait for more than they compute, so that more of them run than there are cores. The first list has all packages in
	# which goroutines can meet, the second those that test/walls proves pure, and simulations.
	go test -race -p 4 -timeout 20m $$(go run ./test/walls -race)
	go test -p 4 -timeout 10m $$(go run ./test/walls)
	go test -parallel 6 -timeout 20m ./bench/e2e

e2e: ## Run the tests on a real Kubernetes of one node, which they start; needs root
	go test -tags cluster -v -count 1 -timeout 40m ./bench/cluster/e2e $(ARGS)

release: ## Make a release in dist/: VERSION=v0.1.0, and PLATFORMS=linux/amd64,... for fewer than all; uploads nothing
	@go run ./packaging/release --version '$(VERSION)' $(if $(PLATFORMS),--platforms '$(PLATFORMS)') $(if $(CACHE),--cache '$(CACHE)')

release-check: ## Make the release of this platform twice, compare the bytes, install its wheel into a new environment, and use it
	@packaging/check

try-wheel: build ## Measure how long headgate run of the wheel in dist/ takes to answer, beside make run
	@go run ./packaging/try wheel dist

try-arm64: ## Run the program for linux/arm64 of dist/ in the emulator of Debian's package qemu-user-static
	@go run ./packaging/try arm64 dist

cluster: build ## Start a real Kubernetes of one node on this machine, with our images; needs root
	@bin/bench cluster up $(ARGS)

images: build ## Make images of our programs and of Envoy, as tarballs in .cache/images, and give them to that Kubernetes if it is up
	@bin/bench cluster images

cluster-down: build ## End it, and remove what it made
	@bin/bench cluster down $(ARGS)

conformance: build ## Run Gateway API's conformance suite on that Kubernetes; ARGS are its flags, such as -run-test NAME; needs root
	@bin/bench conformance $(ARGS)

soak: ## Load the whole for ten minutes while everything around it fails, then restart 64 engines one by one, then 4,000 random histories of placement
	go test -v -count 1 -timeout 20m -run '^TestSoak$$' ./bench/e2e -soak 10m -raced $(ARGS)
	go test -v -count 1 -run '^TestRollingRestartFailsNoRequest$$' ./bench/e2e -engines 64
	go test -v -count 1 -timeout 20m -run '^TestRandomHistories$$' ./control/place/decide -histories 2000

try-upgrade: ## Replace Envoy in both ways, extproc and control under 100 requests a second and 50 streams, and print what fails
	unshare --map-root-user --net sh -c 'ip link set lo up && sysctl -q -w net.ipv4.tcp_migrate_req=1 && exec "$$@"' sh \
		go test -v -count 1 -timeout 10m -run '^TestUpgradesFailNoRequest$$' ./bench/e2e -upgrades 5000

real: real-repositories ## Run the tests on real engines on the CPU: two vLLMs, for which 7 GB are installed into .cache/vllm, and those of the next target
	bench/real/vllm install .cache/vllm
	go test -tags real -v -count 1 -timeout 30m -run '^TestRealVLLM' ./bench/e2e -place 1m $(ARGS)

real-repositories: ## Run the tests of model repositories, and of V2 by REST and by gRPC, on a real MLServer, a real Triton and a real TorchServe; installs 1 GB into .cache
	bench/real/mlserver install .cache/mlserver
	bench/real/triton install .cache/triton
	bench/real/torchserve install .cache/torchserve
	go test -tags real -v -count 1 -timeout 20m -run '^TestReal' ./control/place/loader ./control/profile ./extproc/transcode ./control/agent/command
	go test -tags real -v -count 1 -timeout 10m -run '^TestRealTriton' ./bench/e2e

stores: ## Run the tests of the agent on servers of Google Cloud Storage, Azure and images, and beside KServe's downloader; installs 600 MB into .cache
	go test -tags stores -v -count 1 -timeout 20m -run '^TestGCS|^TestAzure|^TestImagesOfDistribution|^TestKServe' ./control/agent/fetch ./control/agent/files

real-mlserver: ## Send calls through Envoy to two real MLServers, which die in turn; installs 0.5 GB into .cache/mlserver
	bench/real/mlserver install .cache/mlserver
	go test -tags real -v -count 1 -timeout 10m -run '^TestRealMLServers|^TestRuntimesThatDie' ./bench/e2e -crashes 10

check: ## Lint code and prose, and check commit subjects, that modules are tidy and that generated files are up to date
	@.ci/subjects 6f98a610890e9055f00ad79779e3e42b7fe7f95c
	$(TOOL) golangci-lint run
	go test ./test/walls
	go test $(NAMES)
	tools/vale/check
	go mod tidy -diff
	go -C tools mod tidy -diff
	go -C tools/vale mod tidy -diff
	go -C tools/kubernetes mod tidy -diff
	go -C tools/helm mod tidy -diff
	go -C tools/coredns mod tidy -diff
	go -C tools/conformance mod tidy -diff
	go -C tools/stores mod tidy -diff
	@$(MAKE) --no-print-directory generate objects
	git diff --exit-code -- '*/testdata/*' api manifests docs/reference.md

ci-full: ## Run make check and make test, then what .ci/run may leave out: real MLServers, Kubernetes, fuzzing; if all pass, write the commit into .ci/full
	.ci/run --full

fuzz: ## Fuzz each parser beside its oracle and the exchange, some 15 s each on two cores
	$(FUZZ) '^FuzzParseJSON$$' -fuzztime 80000x ./extproc/openai
	$(FUZZ) '^FuzzParseForm$$' -fuzztime 100000x ./extproc/openai
	$(FUZZ) '^FuzzDecode$$' -fuzztime 30000x ./extproc/decode
	$(FUZZ) '^FuzzSplice$$' -fuzztime 40000x ./extproc/kserve
	$(FUZZ) '^FuzzMessages$$' -fuzztime 40000x ./extproc/kserve
	$(FUZZ) '^FuzzRequest$$' -fuzztime 40000x ./extproc/transcode
	$(FUZZ) '^FuzzResponse$$' -fuzztime 25000x ./extproc/transcode
	$(FUZZ) '^FuzzExchange$$' -fuzztime 12000x ./extproc/stream
	$(FUZZ) '^FuzzCall$$' -fuzztime 15000x ./extproc/stream
	$(FUZZ) '^FuzzRequests$$' -fuzztime 40000x ./extproc/processing
	$(FUZZ) '^FuzzOpen$$' -fuzztime 30000x ./extproc/relay/relaytoken
	$(FUZZ) '^FuzzRecords$$' -fuzztime 30000x ./extproc/accesslog
	$(FUZZ) '^FuzzAnswer$$' -fuzztime 70000x ./extproc/outcome
	$(FUZZ) '^FuzzLoad$$' -fuzztime 60000x ./internal/engine
	$(FUZZ) '^FuzzPage$$' -fuzztime 20000x ./extproc/scrape
	$(FUZZ) '^FuzzParse$$' -fuzztime 25000x ./internal/objects/dir

bench: ## Benchmark hot paths beside what they replace; prints medians, spread and ratios
	@mkdir -p bin
	go test -run '^$$' -bench 'Parse|Load|Inject|Transcode' -count 10 -benchtime 100ms ./extproc/openai ./extproc/kserve ./extproc/transcode ./extproc/accesslog ./internal/engine > bin/bench.txt
	@$(TOOL) benchstat -col '/impl@(plain headgate)' bin/bench.txt
	go test -run '^$$' -bench Replaced -benchtime 300ms ./extproc/openai
	go test -run '^$$' -bench SentBesideHash -benchtime 500x ./extproc/prefix
	go test -run '^$$' -bench Pick -count 10 -benchtime 50ms ./extproc/pick > bin/bench-pick.txt
	@$(TOOL) benchstat -col /rule bin/bench-pick.txt
	go test -run '^$$' -bench Gate -count 10 -benchtime 50ms ./extproc/pick > bin/bench-gate.txt
	@$(TOOL) benchstat -col '/gate@(false true)' bin/bench-gate.txt
	go test -run '^$$' -bench Choose -count 10 -benchtime 50ms ./extproc/stream > bin/bench-choose.txt
	@$(TOOL) benchstat -col '/flow@(off on)' bin/bench-choose.txt
	go test -run '^$$' -bench 'Join|Room' -count 10 -benchtime 50ms ./extproc/flow ./extproc/flow/queue > bin/bench-queue.txt
	@$(TOOL) benchstat -col '/waiting@(10 10000)' bin/bench-queue.txt
	go test -run '^$$' -bench HeldRequest -benchtime 1x ./extproc/stream
	go test -run '^$$' -bench Gateway -count 6 -benchtime 1s ./bench/e2e > bin/bench-gateway.txt
	@$(TOOL) benchstat -col '/path@(direct original-dst gateway)' bin/bench-gateway.txt
	go test -run '^$$' -bench Catalogue -benchtime 12x ./bench/e2e
	go test -run '^$$' -bench 'DataPlanes|Calls' -benchtime 12x ./bench/e2e
	go test -run '^$$' -bench Build ./internal/objects
	go test -run '^$$' -bench FlappingEndpoints -benchtime 1x ./control/statuswriter
	go test -run '^$$' -bench 'Miss|Stuck|Tick' -benchtime 300x ./control/place/decide
	go test -run '^$$' -bench Replan -count 10 -benchtime 20x ./control/attach/controller > bin/bench-replan.txt
	@$(TOOL) benchstat -col '/change@(whole route)' bin/bench-replan.txt
	go test -run '^$$' -bench KubeChurn -benchtime 1200x ./extproc/command
	go test -run '^TestScale$$' -count 1 -v ./internal/objects/kube -scale
	go test -run '^TestControlAtScale$$' -count 1 -v ./bench/e2e -scale
	go test -run '^TestChangesAtAGatewayLoseNoRequest$$' -count 1 -v ./bench/e2e -changes 100
	go test -run '^TestRealEnvoyGetsNewEndpoints' -count 1 -v ./extproc/eds ./control/attach/ads -changes 100

bench-against: ## Compare extproc with an earlier commit (BASE=COMMIT), in alternating runs: CPU time per request, median latency, and memory
	@[ -n "$(BASE)" ] || { echo 'set the commit to compare with: make bench-against BASE=COMMIT' >&2; exit 2; }
	rm -rf .run/against && git clone -q . .run/against && git -C .run/against checkout -q $(BASE)
	$(MAKE) -s -C .run/against build
	go test -run '^$$' -bench ExtprocAgainst -benchtime 24x -v ./bench/e2e -against $(CURDIR)/.run/against

bench-cost: build ## Measure what a request costs beside less of the gateway, and beside smg, within 30 minutes on two cores; ARGS=--short within 5, ARGS='--base COMMIT' beside an earlier one
	@bin/bench cost $(ARGS)

bench-agent: build ## Measure the agent: downloads of 1 GiB beside the AWS SDK's, one that is killed halfway, and latency and CPU time of its relay beside a real MLServer; needs 3 GB of disk, and installs 0.5 GB into .cache/mlserver
	go test -tags bench -count 1 -timeout 30m -run '^TestBenchS3' ./control/agent/files -v
	bench/real/mlserver install .cache/mlserver
	bin/bench agent $(ARGS)

bench-policies: build ## Judge policies in a simulated fleet, on the traces of $TRACE_DIR if it names some; prints a table for each workload, and draws it in .run/policies
	@mkdir -p .run/policies
	@for workload in adapters prefixes plain $(if $(TRACE_DIR),azure-conversation azure-code mooncake-conversation mooncake-synthetic); do bin/bench fleet --workload $$workload --goodput --seeds 5 --plots .run/policies $(ARGS) || exit 1; echo; done
	@for flags in 'chat --rate 23 --requests 6000' 'prefixes --endpoints 2 --rate 1.1 --requests 3000' 'long --rate 22 --requests 4000' \
		'prefixes --slow-endpoints 8 --rate 6 --requests 4000' 'bursts --rate 12.5 --requests 4000' 'cancelled --rate 21 --requests 4000'; do \
		bin/bench fleet --workload $$flags --seeds 5 $(ARGS) || exit 1; echo; \
	done

# What is left out: drift, flash and noise at other exponents (--workload drift --zipf 1.2), and a fifth of 1000 models on 100 endpoints
# (--endpoints 100 --cache 0.2). 100 models do not fit on 100 endpoints: one has room for less than one.
bench-place: build ## Judge policies of placement in a simulated fleet, on the clients of $TRACE_DIR if it names some, with SEEDS=5 on two cores within the hour; prints a table for each workload, and draws it in .run/place
	@mkdir -p .run/place
	@place() { bin/bench place --seeds $(or $(SEEDS),5) "$$@" $(ARGS) && echo; }; \
	for workload in zipf drift flash noise; do place --workload $$workload --cache 0.2,0.6 --plots .run/place; done; \
	for zipf in 0.8 1.2; do place --zipf $$zipf --cache 0.2,0.6 --plots .run/place; done; \
	for zipf in 0.8 1 1.2; do place --models 100 --zipf $$zipf --cache 0.2,0.6 --plots .run/place; done; \
	place --workload hot --models 100 --cache 1.2; \
	for workload in $(if $(TRACE_DIR),servegen-small servegen-reason); do place --workload $$workload --cache 0.1,0.2 --plots .run/place; done; \
	place --size-spread 0.5 --load-spread 0.5 --cache 0.2,0.6; \
	place --endpoints 100; \
	place --measure 15m --join 5m --cache 0.6,1.2; \
	place --measure 15m --leave 5m --cache 0.6,1.2; \
	place --models 20000 --endpoints 1000 --warm --warmup 0 --seeds 1 --policy headgate,lru,optimum

bench-flow: build ## Judge how tenants share a simulated fleet, beside other orders and another project, with SEEDS=5 within 40 minutes, then a flood through a real Envoy; fails if a target is missed
	@bin/bench flow --seeds $(or $(SEEDS),5) $(ARGS)
	go test -v -count 1 -timeout 20m -run '^TestFloodDelaysOtherTenantsLittle$$' ./bench/e2e -flood 100s

bench-plan: build ## Judge plans of pipelines by what exhaustive search finds, and of InferLine's pipelines beside plans of the whole, in fifteen minutes on two cores; draws these in .run/plan
	@mkdir -p .run/plan
	bin/bench provision $(ARGS)
	bin/bench provision pipelines --plots .run/plan

bench-place-engines: ## Send requests to ten simulated engines for sixteen minutes, and print how many wait for a load, beside what bench place foretells
	go test -v -count 1 -timeout 30m -run '^TestMissesAreAsForetold$$' ./bench/e2e -foretold 8m

bench-estimate: ## Send queries for an hour, to chains of two models that sleep, then to a real MLServer and a real Triton, then to a real vLLM, and print how long they took, beside what is estimated; installs 8 GB into .cache
	bench/real/mlserver install .cache/mlserver
	bench/real/triton install .cache/triton
	bench/real/vllm install .cache/vllm
	go test -v -count 1 -timeout 30m -run '^TestEstimatesAreAsMeasured$$' ./bench/e2e -estimates 1000 $(ARGS)
	go test -tags real -v -count 1 -timeout 40m -run '^TestRealEstimatesAreAsMeasured$$' ./bench/e2e -estimates 200 $(ARGS)
	go test -tags real -v -count 1 -timeout 40m -run '^TestRealVLLMEstimatesAreAsMeasured$$' ./bench/e2e -estimates 100 -estimates-again 1 $(ARGS)

generate: ## Write what the scenarios answer into their files anew; read the difference before you keep it
	go test ./extproc/pick ./extproc/stream ./internal/sim ./control/place/loader ./control/place/decide -run Scenarios -update

objects: ## Write the CRDs, deepcopy, docs/reference.md and the cluster's envoy.yaml anew, from the types in api/ and envoy.yaml
	cp envoy.yaml manifests/static/envoy.yaml
	$(TOOL) controller-gen object crd:allowDangerousTypes=true paths=./api/v1alpha1 paths=./api/pool output:crd:dir=manifests/crds
	$(TOOL) crd-ref-docs --source-path=api --config=tools/reference.yaml --renderer=markdown --output-path=docs/reference.md --log-level=ERROR

names: ## Add new flags, fields and metrics to the golden lists
	go test $(NAMES) -update

protocols: ## Compile the protocols in api/ anew
	go tool -modfile=tools/go.mod buf generate

clean: ## Remove what was built and what a run left; downloads in .cache stay
	rm -rf bin dist .run
