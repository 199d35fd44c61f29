# Tasks of dipwell. `make help` lists them.
GO            ?= go
# Where nothing but the go command and its tools run: less frequent garbage collection saves
# a sixth of their processor time.
COMPILE        = GOGC=400 $(GO)
GOLANGCI_LINT ?= v2.15.0
LINTER         = $(COMPILE) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)
# Each operating system, 32 bits and arm64: no file is for Linux on arm64 alone.
CROSS         ?= linux/386 darwin/arm64 windows/amd64
# The packages that synchronise goroutines, for race-concurrent; the longest first, so that
# none of them is left to run alone.
CONCURRENT    ?= ./redisstore ./internal/coalesce ./internal/denycache ./internal/memory ./stack ./internal/server \
                 ./internal/lease ./internal/away ./internal/rls ./internal/keyhash ./internal/config . ./internal/background ./internal/bounded \
                 ./internal/front ./grpclimit ./httpclient ./httplimit
# Tests of one goroutine, or of one caller at a time, that take minutes under the race detector.
ONEGOROUTINE  ?= TestAgreesWithMap|TestErrorIsSmall|TestMostRules|TestChangesReadNoMore|TestManyChanges|TestAgreesWithModel|TestBytesPerKey|TestChurn|TestMovesPerInsert|TestRowsLieNearTheirPlaces|TestWindowBytesPerKey|TestStoreAsKeysExpire|TestAgreesWithModelAsKeysExpire|TestKeysEnd|TestGolden|TestGoldenGiveBack|TestAgreesWithTable|TestOldVersionsOfVariants|TestCancelledRecordsAreForgotten|TestDocLinks|TestEveryLimitBounds|TestLabelsAreBounded|TestManyCallSites|TestBatchesChargeWhatTheyGrant|TestAgreesWithTableAsKeysExpire|TestFilter|TestKeyBytes|TestPhases|TestRemove|TestSweepLooksAtEveryRow|TestTakeInWindowIsStep|TestTextsAreUsedAgain|TestThousandsWait
# The suite in configurations whose goroutines do what they do in another one: a cluster with
# all keys in one slot, which decides as one server; and batches there, which TestBatches has
# on one server and TestCluster one by one. Of those two only the cases of callers that race;
# TestStore has all cases.
AGAIN         ?= ^TestCluster$$/^all$$|^TestBatches$$/^cluster$$|^(TestCluster|TestBatches)$$/^(key|one_server)$$/^([^r]|r[^a])
INTSIZE       ?= ./store ./internal/algebra ./internal/memory ./filestore ./internal/bounded ./internal/coalesce
GOVULNCHECK   ?= v1.8.0
GORELEASER    ?= v2.15.1
CYCLONEDX     ?= v1.10.0
BUILDX        ?= v0.33.0
DAEMON         = $(shell docker info >/dev/null 2>&1 && echo yes)
PLUGINS        = $${DOCKER_CONFIG:-$$HOME/.docker}/cli-plugins
FUZZTIME      ?= 30s

.DEFAULT_GOAL := help

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: playground ## build bin/dipwell
	$(GO) build -o bin/dipwell ./cmd/dipwell

wheel: build ## build the package for Python, bin/dipwell-VERSION-py3-none-any.whl
	scripts/wheel bin/dipwell bin

npm: build ## build the package for npm, bin/dipwell-VERSION.tgz
	cd clients/typescript && npm ci && DIPWELL=../../bin/dipwell npm run build && npm pack --pack-destination ../../bin ./dist

playground: ## compile what the views Playground and What if compute with, for bin/dipwell and docs/playground
	$(GO) generate ./internal/ui

test: test-packages test-modules ## install what the tests lack (as root, Debian's packages), then run all of them

test-packages: ## the tests of this module
	@scripts/deps
	@scripts/test

# Gin's codec for MessagePack, which nothing here uses, is a fifth of what examples/adapters compiles.
test-modules: ## the tests of the modules otel, examples/adapters, examples/migrations and examples/river
	cd otel && $(GO) test ./...
	cd examples/adapters && $(GO) test -tags nomsgpack ./...
	cd examples/migrations && $(GO) test ./...
	cd examples/river && $(GO) test ./...

test-long: ## more of the suite on every store under every decorator, a file that is kept at each decision, a lockstep of 30,000 events, 20,000 steps of lab/model on each store, and Redis faults ten times as often (half an hour)
	DIPWELL_LONG=1 $(GO) test -count=1 -timeout 30m ./lab/lockstep -run TestConformance
	DIPWELL_LONG=1 $(GO) test -count=1 ./filestore -run TestStoreEach
	DIPWELL_LONG=1 $(GO) test -count=1 ./internal/memory -run TestShards
	DIPWELL_LONG=1 $(GO) test -count=1 ./store -run TestMutantsAreCaught
	DIPWELL_LONG=1 $(GO) test -count=1 -timeout 30m ./pgstore -run 'TestStore$$'
	DIPWELL_STEPS=30000 $(GO) test -count=1 ./lab/lockstep -run TestLockstep
	DIPWELL_LONG=1 $(GO) test -count=1 -timeout 60m ./lab/model
	DIPWELL_LONG=1 $(GO) test -count=1 -timeout 30m ./redisstore -run 'TestStore$$|TestBatches|TestCluster$$|TestClusterFaults|TestScriptFlushUnderLoad|TestChangesUnderLoad'

test-model: ## 20,000 steps of lab/model on each store, with each of three seeds (half an hour)
	for seed in 1 2 3; do DIPWELL_LONG=1 DIPWELL_SEED=$$seed $(GO) test -count=1 -timeout 60m ./lab/model || exit; done

test-postgres-versions: ## pgstore's tests on PostgreSQL 13, 14, 16, 17 and 18, fetched with npm (a quarter of an hour)
	@scripts/test-postgres 13 14 16 17 18

race: ## all tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -timeout 30m ./...

race-concurrent: ## tests under the race detector of the packages that synchronise goroutines (part of ci; make race has all)
	CGO_ENABLED=1 $(COMPILE) list -race -test -export $(CONCURRENT) >/dev/null
	CGO_ENABLED=1 $(GO) test -race -short -vet=off -timeout 30m -skip '^($(ONEGOROUTINE))$$|$(AGAIN)' $(CONCURRENT)

ci: ## all that CI runs (about a quarter of an hour on 2 cores)
	.ci/run

verify: fmt vet generated licenses quoted lint cross race vuln ## everything that must be clean before a change lands

fmt: ## fail when a file is not formatted, or a program is checked in
	@out=$$(gofmt -l . ); test -z "$$out" || { echo "not formatted:"; echo "$$out"; exit 1; }
	@! git grep -l --cached -a -P '^\x7fELF' || { echo "programs are checked in"; exit 1; }

vet: ## go vet, in both modules
	$(COMPILE) vet ./...
	cd bench && $(COMPILE) vet ./...

# What compiles on 64 bits need not on 32.
cross: ## check the types on the platforms of CROSS, and test on 32 bits what depends on the size of an int
	$(COMPILE) run ./lab/typecheck $(CROSS)
	@if [ "$$($(GO) env GOHOSTOS GOHOSTARCH | xargs)" = "linux amd64" ]; then GO=$(GO) scripts/test-32bit $(INTSIZE); fi

generated: ## fail when a generated file differs from what its generator writes
	@state() { git status --porcelain; git diff; }; before=$$(state); $(COMPILE) generate ./... || exit 1; \
	if [ "$$(state)" != "$$before" ]; then git status --short; git --no-pager diff; echo "generated files differ from what is checked in"; exit 1; fi

licenses: ## write THIRD_PARTY_LICENSES.md, which releases contain; fail when a linked module has a licence that scripts/licenses does not know
	GO=$(GO) scripts/licenses >THIRD_PARTY_LICENSES.md || { rm THIRD_PARTY_LICENSES.md; exit 1; }

# Goreleaser and what it calls do without a network, once the modules are there. So does the
# image, which begins with nothing, but it needs a docker daemon.
release-check: cyclonedx ## what a release builds, unpacked and started, the image only where a docker daemon answers; with VERSION=v0.2.0 also whether the checkout can be tagged
	$(if $(VERSION),GO=$(GO) scripts/release-check $(VERSION))
	$(GO) mod download && $(COMPILE) install github.com/goreleaser/goreleaser/v2@$(GORELEASER)
	$(if $(DAEMON),$(MAKE) buildx)
	GOPROXY=off PATH="$$($(GO) env GOPATH)/bin:$$PATH" goreleaser release --snapshot --clean $(if $(DAEMON),,--skip=docker)
	cd deploy/check && $(GO) test -count=1 -tags release -run TestRelease
	@$(if $(DAEMON),,echo "The image was left out: no docker daemon answers.")

cyclonedx: ## install the program that writes the SBOM of a release
	$(COMPILE) install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX)

buildx: ## install buildx, with which docker builds the image of a release, where docker has none
	docker buildx version || { $(COMPILE) install github.com/docker/buildx/cmd/buildx@$(BUILDX) && \
	mkdir -p "$(PLUGINS)" && ln -sf "$$($(GO) env GOPATH)/bin/buildx" "$(PLUGINS)/docker-buildx"; }

quoted: ## fail when README.md quotes a figure that is not in bench/results
	cd bench && $(GO) test ./readme ./internal/...

figures: ## write README.md's figures and the index of bench/results from the tables in bench/results
	cd bench && $(GO) run ./readme

lint: ## golangci-lint in both modules, built from source by the go command
	$(LINTER) run ./...
	cd bench && $(LINTER) run ./...

linter: ## build golangci-lint, so that a later lint finds it in the build cache
	$(LINTER) version

vuln: ## known vulnerabilities in dependencies, where the database can be reached
	@scripts/vuln $(GOVULNCHECK)

deploy: ## check deploy/ with the libraries of Helm, kustomize, Kubernetes and Prometheus (two minutes from an empty build cache)
	cd deploy/check && $(GO) vet ./... && $(GO) test -count=1 -timeout 30m ./...

clients: ## the package for npm with its tests, clients for TypeScript and Python generated from /openapi.json, and migration tools of npm (part of ci)
	@scripts/deps clients
	$(GO) test -count=1 -timeout 30m -tags clients ./examples -run TestNode
	cd examples/migrations && $(GO) test -count=1 -timeout 30m -tags clients -run 'TestNPM|TestExtension'

rolling: ## replace services by those of a program with one more migration of the schema, under load, on one PostgreSQL
	$(GO) test -count=1 -tags rolling ./cmd/dipwell -run TestRollingUpdateOfTheSchema -v

fuzz: ## every fuzz target for FUZZTIME each
	@scripts/fuzz $(FUZZTIME)

bench: bench-memory bench-api bench-replay bench-file ## the benchmarks that need no server; tables go to bench/results

bench-memory: ## memstore against the keyed limiters of other libraries
	cd bench && $(GO) run ./memory -o results/memory.md

bench-api: ## the JSON API against a no-op net/http handler, and on PostgreSQL against one with a statement of its own
	cd bench && $(GO) run ./api -o results/api.md

bench-page: ## what viewers of the page cost a service, and its first paint in Chromium
	cd bench && $(GO) run ./api -page -o results/page.md

same-as-ratelimit: ## load the configurations of envoyproxy/ratelimit with it and with ours, send the same requests to both, and compare
	GOBIN=$(CURDIR)/bin $(GO) install github.com/envoyproxy/ratelimit/src/service_cmd@latest github.com/envoyproxy/ratelimit/src/config_check_cmd@latest
	source=$$($(GO) list -m -f '{{.Dir}}' github.com/envoyproxy/ratelimit@latest) && echo "$$source" && \
	RATELIMIT_BIN=$(CURDIR)/bin/service_cmd RATELIMIT_CHECK=$(CURDIR)/bin/config_check_cmd RATELIMIT_SOURCE="$$source" RATELIMIT_CONFIG="$$source/examples/ratelimit/config" \
	$(GO) test -count=1 -tags upstream ./internal/rls -run TestUpstream -v

bench-lease: ## one hot key leased over PostgreSQL against memstore, and four processes that share a key, with the servers it starts (six minutes)
	cd bench && $(GO) run ./lease -o results/lease.md

bench-rls: ## Envoy's RateLimitService against a no-op gRPC handler and envoyproxy/ratelimit, with the Redis and PostgreSQL it starts
	cd bench && $(GO) run ./rls -o results/rls.md

bench-replay: ## replay against a loop that only splits lines and parses times
	cd bench && $(GO) run ./replay -o results/replay.md

bench-file: ## filestore against memstore, and against one transaction a decision
	cd bench && $(GO) run ./file -o results/file.md

bench-changes: ## what changes of a limit take that is changed every minute while its keys are in use, with the servers it starts (an hour)
	cd bench && $(GO) run ./changes -o results/changes.md

bench-overrides: ## takes beside the overrides of a million other keys, in each store, with the servers it starts (ten minutes)
	cd bench && $(GO) run ./overrides -o results/overrides.md

bench-postgres-tuned: ## the same with 4 GB of shared_buffers and rare checkpoints, for single decisions and 10M rows
	cd bench && $(GO) run ./postgres -tuned -scenario single,rows -o results/postgres

bench-postgres: ## dipwell in PostgreSQL against published SQL designs, on a server it starts itself; a file a scenario under bench/results/postgres (half an hour)
	cd bench && $(GO) run ./postgres -o results/postgres

bench-sweep: ## 20,000 new keys a second for five minutes with a sweep and without, and what a sweep costs (a quarter of an hour)
	cd bench && $(GO) run ./postgres -scenario sweep,newkeys -newfor 5m -o results/postgres

simulate: ## 10,000 histories of a cluster with faults, and the mutants that 1,000 of them must find; or what ARGS say, as in ARGS='--seed 7'
	$(GO) run ./lab/simulate $(or $(ARGS),--seeds 10000)
	$(if $(ARGS),,DIPWELL_LONG=1 $(GO) test -count=1 -timeout 30m ./lab/simulate -run TestMutants)

soak: ## a service at half load for SOAK (10m): memory and goroutines must not grow
	DIPWELL_SOAK=$(or $(SOAK),10m) $(GO) test -count=1 -timeout 0 -run TestSoak -v ./cmd/dipwell

soak-holds: ## a million acquires of 10 slots by 32 processes, half of which are killed again and again, over PostgreSQL and Redis (an hour)
	DIPWELL_ACQUIRES=1000000 $(GO) test -count=1 -timeout 4h -run TestKilledHolders -v ./lab/lockstep

bench-faults: ## what a service answers while rows are locked and while its store hangs, with the PostgreSQL and Redis it starts (four minutes)
	cd bench && $(GO) run ./faults -o results/faults.md

bench-redis: ## dipwell in Redis and PostgreSQL against redis_rate, on servers it starts itself
	cd bench && $(GO) run ./redis -o results/redis.md

.PHONY: release-check cyclonedx buildx npm wheel bench-page playground clients deploy rolling simulate bench-postgres-tuned quoted figures cross test-postgres-versions soak soak-holds test-long test-model bench-rls same-as-ratelimit bench-lease bench-redis bench-changes bench-overrides ci race-concurrent help build test test-packages test-modules race verify fmt vet generated licenses lint linter vuln fuzz bench bench-memory bench-api bench-replay bench-file bench-postgres bench-sweep
