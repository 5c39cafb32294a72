# Front door. Every target first installs what is missing (tools/setup.sh) and builds what is out of date.
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
PREFIX ?= /usr/local
UNIT_TESTS = test_core test_ops test_model test_parallel test_data test_train test_comm test_grids

SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' 2>/dev/null || \
	find core ops model parallel data train tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

# Ranks on this machine, as any user, more of them than cores where need be. The loopback device is named because Open MPI 5
# writes lines of warnings where it cannot connect ranks of one machine by another device.
mpirun = OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_tcp_if_include=lo \
	mpirun --oversubscribe --bind-to none
# Keeps mpirun from writing about a rank that fails behind what the rank has said. Open MPI 5 knows no such option.
mpirun_quiet = $$(mpirun --version | sed -n 's/.*Open MPI) 4\..*/--quiet/p')

# Two for each job: a test that computes takes two, one that mostly waits takes one (tests/CMakeLists.txt).
slots = $$((2 * $(JOBS)))

# A build folder keeps the generator that it was first configured with.
configure = cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,-G Ninja) $(CMAKE_FLAGS) $(2) >/dev/null

.PHONY: all build setup train train-grid test test-cuda test-cuda-all planted-faults test-gpu sanitize-gpu kernel-report overlap-report cuda-toolkit \
	test-all test-rest times test-grids test-families test-families-changed test-grids-cuda test-layouts test-kills bench install asan asan-all sanitize-emulator sanitize-emulator-short sanitize-emulator-changed emulator \
	fuzz format check-format check-headers check-headers-changed tidy clean help

all: build

help:
	@echo "make                build $(BUILD)/nemocube"
	@echo "make train          fine-tune the bundled small model on the bundled questions, then evaluate it"
	@echo "make train-grid     the same job on 4 ranks under mpirun: a pipeline of 2 stages, experts on 2 ranks"
	@echo "make test           build and run the tests, but for jobs of 8 ranks"
	@echo "make test-all       make test and make test-rest, which is jobs of 8 ranks and the device tests on the software GPU at"
	@echo "                    two seeds; needs nvcc and no GPU"
	@echo "make times          where the last builds and tests spent their time; after .ci/run, where CI did"
	@echo "make test-cuda      the tests that run on every device, and bench op, on the software GPU; needs nvcc and no GPU"
	@echo "make test-cuda-all  the same, and the planted faults"
	@echo "make test-grids-cuda"
	@echo "                    every process grid of 2, 4 and 8 ranks on the software GPU, over NCCL and over MPI"
	@echo "make planted-faults mistakes planted in copies of the CUDA kernels, which the tests must notice"
	@echo "make test-gpu       the same tests on a GPU, with every grid of 2, 4 and 8 ranks"
	@echo "make sanitize-gpu   those of operations on a GPU under compute-sanitizer"
	@echo "make kernel-report  count the kernels at the sizes of Nemotron 3 Nano, into docs/kernels.md; needs nvcc and no GPU"
	@echo "make overlap-report estimate what communication costs a step of several ranks, into docs/overlap.md; the same"
	@echo "make emulator       build the software GPU, which runs CUDA programs; needs nvcc and no GPU"
	@echo "make cuda-toolkit   install nvcc, which needs no GPU, for the targets that need it; downloads 0.7 GB, keeps 0.3 GB"
	@echo "make test-kills     kill ranks at every file operation of saving, and resume"
	@echo "make test-layouts   begin a run on each of 12 layouts of ranks and go on on each other one"
	@echo "make test-grids     train on every process grid of 2, 4, 8 and 16 ranks, compared with one rank"
	@echo "make test-families  the same for a model of each further family, and its plan; make test-families-changed: unless all"
	@echo "                    passed before with these sources"
	@echo "make bench          operations against their floors, then whole steps of the small model"
	@echo "make install        program, documentation, sample recipe and data under PREFIX, and the software GPU where"
	@echo "                    make emulator built it; DESTDIR is honoured"
	@echo "make asan           the unit tests, and jobs of up to 4 ranks, under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make asan-all       every test under them: jobs of 8 ranks and whole runs of the program too"
	@echo "make sanitize-emulator"
	@echo "                    the software GPU's tests, then the same under ThreadSanitizer, AddressSanitizer and UBSan; needs nvcc"
	@echo "make sanitize-emulator-short"
	@echo "                    a short part of that under ThreadSanitizer, which touches every folder of the software GPU"
	@echo "make sanitize-emulator-changed"
	@echo "                    all of that, unless all passed before with these sources, compiler and nvcc"
	@echo "make fuzz           readers of files from strangers under clang's libFuzzer, SECONDS=60 each, or until each has run RUNS=N times; FUZZER=jinja runs one"
	@echo "make format         clang-format over all sources; make check-format only looks"
	@echo "make check-headers  every header compiles alone; make check-headers-changed: those of folders where headers have changed"
	@echo "make tidy           clang-tidy over all sources with the checks of .clang-tidy"
	@echo "variables: BUILD=$(BUILD) JOBS=$(JOBS) PREFIX=$(PREFIX) RUN=FOLDER CMAKE_FLAGS='-DNEMOCUBE_PORTABLE=ON'"

setup:
	@tools/setup.sh

build: setup
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD) -j $(JOBS) --target program

# Both start afresh every time in their own directories; in one given with RUN= they go on from what is there.
train: RUN ?= runs/make_train
train: build
	$(if $(filter $(RUN),runs/make_train),rm -rf runs/make_train)
	$(BUILD)/nemocube train configs/squad_tiny.yaml --set checkpoint.checkpoint_dir=$(RUN)
	$(BUILD)/nemocube eval configs/squad_tiny.yaml --model $(RUN)/LATEST/model --show 5

# Two replicas of 8 rows, each a pipeline of two ranks that works on 4 microbatches of 2 rows.
grid = --set distributed.pp_size=2 --set distributed.ep_size=2 --set step_scheduler.local_batch_size=8 \
	--set distributed.pipeline.pp_microbatch_size=2
train-grid: RUN ?= runs/make_train_grid
train-grid: build
	$(if $(filter $(RUN),runs/make_train_grid),rm -rf runs/make_train_grid)
	$(mpirun) $(mpirun_quiet) -np 4 $(BUILD)/nemocube train configs/squad_tiny.yaml $(grid) --set checkpoint.checkpoint_dir=$(RUN)
	$(BUILD)/nemocube eval configs/squad_tiny.yaml --model $(RUN)/LATEST/model --show 5

# Runs tests of build folder $(1) with options $(3). What they said is kept under the name $(2) for make times.
ctest = ctest --test-dir $(1) --output-on-failure $(3); result=$$?; \
	cp $(1)/Testing/Temporary/LastTest.log $(1)/Testing/$(2).log && tools/test_summary.sh $(1)/Testing/$(2).log; exit $$result

test: setup
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD) -j $(JOBS)
	$(call ctest,$(BUILD),$@,-j $(slots) -LE 'cuda-emulator|device|eight-ranks')

# make test, and what it leaves out: jobs of 8 ranks, and device tests on the software GPU. Where the sources of the software GPU
# passed all of their tests before ($(sanitized)), only the short part of these runs.
test-all: test
	@$(MAKE) --no-print-directory test-rest
test-rest: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --build $(BUILD) -j $(JOBS) --target $$($(emulator_changed) && echo cuda_emulator_tests || echo device_short_tests)
	@$(emulator_changed) && label=cuda-emulator || label=cuda-emulator-short; \
	$(call ctest,$(BUILD),$@-emulator,-j $(JOBS) -L "^$$label\$$")
	@echo "test-rest: device tests at seeds 1 and $(SECOND_SEED); SECOND_SEED=$(SECOND_SEED) repeats the second"
	CUDA_EMULATOR_SEED=$(SECOND_SEED) $(call ctest,$(BUILD),$@,-j $(slots) -L '^device$$|^install$$|^eight-ranks$$')

# Ends a target that needs nvcc where CMake found none.
need_nvcc = if grep -q '^NEMOCUBE_NVCC:.*NOTFOUND' $(BUILD)/CMakeCache.txt; then \
	echo "$@: no nvcc found: make cuda-toolkit installs one; it downloads 0.7 GB, keeps 0.3 GB, and needs no GPU" >&2; \
	exit 1; fi

emulator: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target cuda_emulator

# The seed of the second run of device tests: another one for each commit.
SECOND_SEED ?= $(shell echo $$((2 + 0x$$(git rev-parse --short=6 HEAD 2>/dev/null || echo 0) % 1000000)))

# Tests of the software GPU, and the device tests of every test program on it (tests/device_tests.cmake). The test of the
# installation comes again, because it now finds a software GPU.
test-cuda: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --build $(BUILD) -j $(JOBS) --target cuda_emulator_tests
	$(call ctest,$(BUILD),$@-emulator,-j $(JOBS) -L '^cuda-emulator$$')
	@echo "test-cuda: device tests at seeds 1 and $(SECOND_SEED); SECOND_SEED=$(SECOND_SEED) repeats the second"
	CUDA_EMULATOR_SEED=$(SECOND_SEED) $(call ctest,$(BUILD),$@,-j $(slots) -L '^device$$|^install$$')

# The same, and the planted faults.
test-cuda-all:
	$(MAKE) --no-print-directory test-cuda
	$(MAKE) --no-print-directory planted-faults

# All grids of 2, 4 and 8 ranks on the software GPU, over NCCL and over MPI.
emulate = NEMOCUBE_TEST_CUDA=required OMP_WAIT_POLICY=passive CUDA_EMULATOR_LIBRARIES=$(BUILD)/cuda_emulator \
	tools/cuda_emulator/run
test-grids-cuda: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target test_grids cuda_emulator
	@export CUDA_EMULATOR_STRICT=1; for ranks in 2 4 8; do for devices in $$ranks 1; do \
		OMP_NUM_THREADS=1 NEMOCUBE_GRIDS=all $(mpirun) -np $$ranks env $(emulate) --devices $$devices $(BUILD)/test_grids \
			--test-suite=cuda || exit 1; \
	done; done

# Mistakes in the kernels that these tests must notice: a missing barrier, a short wait, an offset by one and the like, in
# each family of kernels. FAULTS names some of tools/planted_faults/faults; default: all.
plant = tools/planted_faults/run --build $(BUILD) --jobs $(JOBS)
planted-faults: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target test_core test_ops cuda_emulator
	@$(plant) $(FAULTS)

# The same tests on a GPU.
cuda_tests = $(filter-out test_comm test_grids,$(UNIT_TESTS))
test-gpu: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS)
	@export NEMOCUBE_TEST_CUDA=required; \
	for program in $(cuda_tests) test_tests; do $(BUILD)/$$program --test-suite=cuda || exit 1; done; \
	OMP_NUM_THREADS=1 $(mpirun) -np 2 $(BUILD)/test_comm --test-suite=cuda || exit 1; \
	for ranks in 2 4 8; do \
		OMP_NUM_THREADS=1 NEMOCUBE_GRIDS=all $(mpirun) -np $$ranks $(BUILD)/test_grids --test-suite=cuda || exit 1; \
	done

# Those of core and ops on a GPU under compute-sanitizer. Errors of CUDA's calls are no finding: tests ask for more memory
# than there is.
sanitize-gpu: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target test_core test_ops
	@export NEMOCUBE_TEST_CUDA=required; for tool in memcheck racecheck initcheck synccheck; do \
		for program in test_core test_ops; do \
			compute-sanitizer --tool $$tool $$([ $$tool != memcheck ] || echo --report-api-errors no) \
				--error-exitcode 99 $(BUILD)/$$program --test-suite=cuda || exit 1; \
		done; \
	done

# What the software GPU counts of the kernels at the sizes of Nemotron 3 Nano.
kernel-report: build
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target cuda_emulator
	tools/kernel_report.sh $(BUILD) >$(BUILD)/kernels.md
	mv $(BUILD)/kernels.md docs/kernels.md

# What communication costs steps of several ranks, by the timeline of the software GPU.
overlap-report: build
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target cuda_emulator
	tools/overlap/report.sh $(BUILD) >$(BUILD)/overlap.md
	mv $(BUILD)/overlap.md docs/overlap.md

# CMake looks in this folder where the system has no nvcc.
cuda-toolkit:
	@tools/cuda_toolkit/install.sh build-cuda-toolkit

# All grids that the test knows; `make test` runs a part of them. One thread a rank, because all share the cores.
test-grids: setup
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD) -j $(JOBS) --target test_grids nemocube
	@failed=; for ranks in 2 4 8 16; do \
		OMP_NUM_THREADS=1 NEMOCUBE_GRIDS=all $(mpirun) -np $$ranks $(BUILD)/test_grids || failed="$$failed $$ranks"; \
	done; \
	if [ -n "$$failed" ]; then echo "grids: failed on$$failed ranks"; exit 1; fi; \
	echo "grids: every grid of 2, 4, 8 and 16 ranks trains like one rank"

# The whole matrix of families and grids; `make test` runs a part of it. $(families) says of which code all passed.
families = tests/families.txt
families_fingerprint = find core ops model parallel data/hf tests/grids -name '*.h' -o -name '*.cpp' | tools/code_checksum.sh
test-families: setup
	@$(call configure,$(BUILD))
	@$(families_fingerprint) >$(BUILD)/families.txt
	@cmake --build $(BUILD) -j $(JOBS) --target test_grids nemocube
	@for ranks in 2 4 8 16; do \
		OMP_NUM_THREADS=1 NEMOCUBE_FAMILY= NEMOCUBE_GRIDS=all $(mpirun) -np $$ranks $(BUILD)/test_grids \
			--test-case='families:*' || exit 1; \
	done
	@cp $(BUILD)/families.txt $(families)
	@echo "test-families: every family passed on every grid; $(families) says with which sources, and belongs in the commit"

test-families-changed: setup
	@if $(families_fingerprint) | cmp -s - $(families); then \
		echo "test-families-changed: these sources have passed: nothing runs"; \
	else \
		$(MAKE) --no-print-directory test-families; \
	fi

# A run begun on each of 12 layouts and gone on on each; `make test` goes from each to one.
test-layouts: setup
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD) -j $(JOBS) --target test_tests nemocube
	NEMOCUBE_LAYOUTS=all $(BUILD)/test_tests --test-case='layouts: *'

# `make test` kills at some of the operations.
test-kills: setup
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD) -j $(JOBS) --target test_tests nemocube
	NEMOCUBE_KILLS=all $(BUILD)/test_tests --test-case='kill points*'

bench: build
	$(BUILD)/nemocube bench op
	$(BUILD)/nemocube bench step --config configs/nemotron_h_tiny --batch 4 --seq 128 --steps 8

install: build
	cmake --install $(BUILD) --prefix $(PREFIX)

asan_flags = -DNEMOCUBE_ASAN=ON -DCMAKE_UNITY_BUILD=OFF
# Test files of folders whose headers have changed since they passed under sanitizers are compiled with them. What passed is what
# the headers were at the beginning.
sanitized_headers = tests/sanitized_headers.txt
note_headers = mkdir -p $(BUILD)-asan && tools/headers/changed.sh $(BUILD)-asan/sanitizing_headers.txt --write
keep_headers = cp $(BUILD)-asan/sanitizing_headers.txt $(sanitized_headers)
asan: setup
	@$(note_headers)
	@folders=$$(tools/headers/changed.sh $(sanitized_headers) | grep -v / | tr '\n' ';'); \
	if [ "$$folders" ]; then \
		echo "asan: headers have changed in $$folders test files of these folders are sanitized, too"; \
	fi; \
	$(call configure,$(BUILD)-asan,$(asan_flags) -DNEMOCUBE_ASAN_TESTS="$$folders")
	@cmake --build $(BUILD)-asan -j $(JOBS) --target $(UNIT_TESTS) overruns
	$(call ctest,$(BUILD)-asan,$@,-j $(slots) -LE 'end-to-end|eight-ranks')
	@$(keep_headers)

asan-all: setup
	@$(note_headers)
	@$(call configure,$(BUILD)-asan,$(asan_flags) -DNEMOCUBE_ASAN_TESTS=all)
	@cmake --build $(BUILD)-asan -j $(JOBS)
	$(call ctest,$(BUILD)-asan,$@,-j $(slots))
	@$(keep_headers)

# Tests of the software GPU under each sanitizer of $(3). $(1): cuda_emulator_tests and $(2): their label. The CUDA
# programs of the tests are built once, in BUILD: nothing of them is sanitized.
define sanitize
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@cmake --build $(BUILD) -j $(JOBS) --target cuda_emulator_programs
	@for sanitizer in $(3); do \
		folder=$(BUILD)-emulator-$$sanitizer && \
		cmake -S tools/cuda_emulator -B $$folder -G Ninja -DCUDA_EMULATOR_SANITIZE=$$sanitizer \
			-DCUDA_EMULATOR_PROGRAMS=$(abspath $(BUILD))/tools/cuda_emulator/tests $(CMAKE_FLAGS) >/dev/null && \
		cmake --build $$folder -j $(JOBS) --target $(1) && \
		TSAN_OPTIONS=atexit_sleep_ms=0 \
		ctest --test-dir $$folder --output-on-failure -j $(JOBS) -L '^$(2)$$' || exit 1; \
	done
endef
# What passed is what the sources were at the beginning.
emulator_changed = ! $(fingerprint) | diff $(sanitized) - >/dev/null
fingerprint = tools/cuda_emulator/tests/fingerprint "$$(sed -n 's/^NEMOCUBE_NVCC:[A-Z]*=//p' $(BUILD)/CMakeCache.txt)"
sanitized = tools/cuda_emulator/sanitized.txt
sanitize-emulator: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@$(fingerprint) >$(BUILD)/sanitizing.txt
	@cmake --build $(BUILD) -j $(JOBS) --target cuda_emulator_tests
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) -L '^cuda-emulator$$'
	$(call sanitize,cuda_emulator_tests,cuda-emulator,thread address)
	@cp $(BUILD)/sanitizing.txt $(sanitized)
	@echo "sanitize-emulator: all passed; $(sanitized) says of what, and belongs in the commit"

# Of sources that passed under both, only the order of threads can differ from run to run: this looks again, at some.
sanitize-emulator-short: setup
	$(call sanitize,cuda_emulator_short_tests,cuda-emulator-short,thread)

sanitize-emulator-changed: setup
	@$(call configure,$(BUILD))
	@$(need_nvcc)
	@if $(fingerprint) | diff $(sanitized) -; then \
		echo "sanitize-emulator-changed: these sources have passed with these tools: nothing runs"; \
	else \
		echo "sanitize-emulator-changed: $(sanitized) is of other sources or tools: all tests run"; \
		$(MAKE) --no-print-directory sanitize-emulator; \
	fi

# Readers of files that come from strangers, under clang's libFuzzer and sanitizers (tools/fuzz). FUZZER names some of them.
SECONDS ?= 60
RUNS ?=
FUZZER ?=
fuzz: setup
	@tools/setup.sh clang-19 libclang-rt-19-dev libomp-19-dev
	@$(call configure,$(BUILD)-fuzz,-DNEMOCUBE_FUZZ=ON -DNEMOCUBE_TESTS=OFF -DCMAKE_CXX_COMPILER=clang++-19)
	@cmake --build $(BUILD)-fuzz -j $(JOBS) --target fuzzers
	@tools/fuzz/run --build $(BUILD)-fuzz $(if $(RUNS),--runs $(RUNS),--seconds $(SECONDS)) $(FUZZER)

format: setup
	@tools/setup.sh clang-format
	clang-format -i $(SOURCES)

check-format:
	@tools/setup.sh clang-format
	@clang-format --dry-run -Werror $(SOURCES)
	@long=$$(LC_ALL=C.UTF-8 grep -nE '^.{111}' $(filter-out tools/cuda_emulator/%,$(SOURCES)) | \
		grep -E '^[^:]*:[0-9]+: *//' | cut -c 1-100); [ -z "$$long" ] || \
		{ echo "check-format: lines of comments of more than 110 columns:"; echo "$$long"; exit 1; } >&2
	@echo "check-format: $$(echo $(SOURCES) | wc -w) files"

check-headers: setup
	@tools/headers/check.sh --jobs $(JOBS)

check-headers-changed: setup
	@tools/headers/check.sh --jobs $(JOBS) --changed

# Configures a folder of its own and builds nothing in it.
tidy: setup
	@tools/setup.sh clang-tidy-19 libomp-19-dev
	@$(call configure,$(BUILD)-tidy,-DNEMOCUBE_PORTABLE=ON -DCMAKE_UNITY_BUILD=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
	tools/tidy.sh $(BUILD)-tidy $(JOBS)

# How long builds and tests took. CASES: how many of the slowest cases of each target are named.
CASES ?= 40
times:
	@tools/times.sh $(BUILD) $(CASES)

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tidy $(BUILD)-fuzz $(BUILD)-emulator-thread $(BUILD)-emulator-address
