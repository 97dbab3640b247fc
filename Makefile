# Needed: Go 1.26, make and a POSIX shell. `make test` also needs Postgres and
# Prometheus: as root on Debian or Ubuntu it installs them, elsewhere it says how. It
# builds a Prometheus 3 once, in some minutes, into bin/.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

# Each of these can be given on the command line: make bench BENCH=Split PKG=./allocate
PKG       ?= ./...
BENCH     ?= .
FUZZTIME  ?= 20s
TESTFLAGS ?= -timeout 9m
DEMOFLAGS ?=

.PHONY: help demo test build lint format vuln fuzz sqlcheck bench clean

help:
	@echo 'make demo    build, then the whole pipeline on a made-up fleet (DEMOFLAGS=…)'
	@echo 'make test    every check and every test, on a real Postgres and Prometheus (TESTFLAGS=…)'
	@echo 'make build   bin/gpuledger'
	@echo 'make lint    gofumpt, vet, staticcheck'
	@echo 'make format  rewrite the Go files as gofumpt has them'
	@echo 'make vuln    known vulnerabilities in what the program calls'
	@echo 'make fuzz    each fuzz target for FUZZTIME=$(FUZZTIME), in PKG=$(PKG)'
	@echo 'make sqlcheck  the text of the BigQuery queries by GoogleSQL: minutes and 7 GB of memory to compile, once'
	@echo 'make bench   benchmarks that match BENCH=$(BENCH), in PKG=$(PKG)'
	@echo 'make clean   remove what was built'

demo: build
	@sh scripts/servers.sh --if-easy postgres
	bin/gpuledger demo $(DEMOFLAGS)

test:
	@GO='$(GO)' TESTFLAGS='$(TESTFLAGS)' PKG='$(PKG)' sh scripts/test.sh

# The version is passed in, so git's opinion of who owns the folder can't stop a build.
build:
	@echo 'building bin/gpuledger (a minute or two the first time)'
	$(GO) build -buildvcs=false -ldflags '-X main.buildVersion=$(VERSION)' -o bin/gpuledger ./cmd/gpuledger

lint:
	@GO='$(GO)' PKG='$(PKG)' sh scripts/lint.sh

format:
	$(GO) tool gofumpt -w .

vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(PKG)

fuzz:
	@GO='$(GO)' PKG='$(PKG)' FUZZTIME='$(FUZZTIME)' sh scripts/fuzz.sh

# In a module of its own, so that nothing else has to compile the analyzer.
sqlcheck:
	cd internal/sqlcheck && $(GO) test -count=1 ./...

bench:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m $(PKG)

clean:
	rm -rf bin *.test *.out
