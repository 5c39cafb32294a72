#include <doctest/doctest.h>
#include <omp.h>
#include <unistd.h>

#include "core/allocator.h"
#include "core/memory_limit.h"
#include "data/json/test_dir.h"
#include "model/test_models.h"
#include "train/memory/training_memory.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

OptimizerOptions of_kind(OptimizerKind kind, double momentum = 0) {
  OptimizerOptions o;
  o.kind = kind;
  o.momentum = momentum;
  return o;
}

void put(const fs::path& file, std::string_view text) {
  fs::create_directories(file.parent_path());
  spit(file, text);
}

}  // namespace

TEST_CASE("training memory: what the state of a run holds, item by item") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const OptimizerOptions& o :
         {of_kind(OptimizerKind::adamw), of_kind(OptimizerKind::sgd), of_kind(OptimizerKind::sgd, 0.9)}) {
      NemotronH model(tiny_config("ME*-"), dtype);
      randomise(model, 1);
      Optimizer optimizer(model.parameters(), o);
      std::int64_t weights = 0, gradients = 0, masters = 0, moments = 0;
      for (const Parameter& p : model.parameters().all()) weights += p.value.bytes();
      for (const Tensor& t : optimizer.gradients()) gradients += t.bytes();
      for (const StateTensor& t : optimizer.state())
        (t.name.starts_with("master.") ? masters : moments) += t.value.bytes();
      const NemotronH planned(tiny_config("ME*-"), dtype, Device::meta);
      const auto items = state_memory(planned.parameters(), o);
      REQUIRE(items.size() == 4);
      CHECK(items[0].bytes == weights);
      CHECK(items[1].bytes == gradients);
      CHECK(items[2].bytes == masters);
      CHECK(items[3].bytes == moments);
      CHECK(total_bytes(items) == weights + gradients + masters + moments);
    }
}

// A step of 512 tokens, its activations measured.
TEST_CASE("training memory: the estimate of activations is near what a step holds") {
  // The estimate leaves out the working memory of threads, which grows with their number.
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const char* pattern : {"MMM", "***", "---", "EEE", "ME*-"})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool checkpointing : {false, true}) {
        CAPTURE(std::string(pattern));
        CAPTURE(dtype);
        CAPTURE(checkpointing);
        NemotronHConfig config = with_experts({pattern, 128, 2, 1, 512, 4, 64, 64}, {8, 2, 128, 256});
        config.head_dim = 64;
        config.n_groups = 1;
        config.vocab_size = 256;
        NemotronH model(config, dtype);
        randomise(model, 1);
        model.activation_checkpointing = checkpointing;
        Optimizer optimizer(model.parameters(), {});
        const std::vector<TokenBatch> batch{
            {random_ids(config, 512, 2), random_labels(config, 512, 3), Sequences::uniform(2, 256)}};
        StepOptions options;
        release_cpu_cache();  // a cached block may be larger than what is asked of it
        (void)train_step(model, optimizer, batch, options);
        reset_cpu_peak();
        const std::int64_t before = cpu_memory().current_bytes;
        (void)train_step(model, optimizer, batch, options);
        const std::int64_t held = cpu_memory().peak_bytes - before;
        const ActivationOptions o{
            .tokens = 512, .checkpointing = checkpointing, .loss_rows = model.loss_chunk_rows};
        const double ratio =
            static_cast<double>(activation_memory(config, dtype, o)) / static_cast<double>(held);
        CAPTURE(ratio);
        CHECK(ratio > 0.75);
        CHECK(ratio < 1.45);
      }
  omp_set_num_threads(threads);
}

TEST_CASE("training memory: in words") {
  CHECK(describe(std::vector<MemoryItem>{{"weights", 1000}, {"masters", 0}, {"moments", 2000}}) ==
        "weights 1.00 kB, moments 2.00 kB");
}

TEST_CASE("memory limit: the least of what is available and of every control group around the process") {
  const TestDir dir;
  const std::string root = dir.path().string();
  put(dir / "proc/meminfo",
      "MemTotal:  3000000 kB\nMemFree: 5 kB\nMemAvailable:    2000000 kB\nBuffers: 1 kB\n");
  CHECK(memory_limit(root).bytes == 2000000L * 1024);
  CHECK(memory_limit(root).name == "memory available");

  put(dir / "proc/self/statm", "5000 300 200 10 0 400 0\n");
  CHECK(memory_limit(root).used == 300 * ::sysconf(_SC_PAGESIZE));
  CHECK(memory_limit(root).bytes == 2000000L * 1024 + memory_limit(root).used);
  CHECK_FALSE(memory_limit(root).counts_untouched);
  fs::remove(dir / "proc/self/statm");

  put(dir / "proc/self/cgroup", "0::/user.slice/run.scope\n");
  put(dir / "sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n");
  CHECK(memory_limit(root).name == "memory available");
  put(dir / "sys/fs/cgroup/user.slice/memory.max", "1000000\n");
  CHECK(memory_limit(root).bytes == 1000000);
  CHECK(memory_limit(root).name == "cgroup");
  put(dir / "sys/fs/cgroup/memory.max", "900000\n");  // a container's own view
  CHECK(memory_limit(root).bytes == 900000);

  put(dir / "proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/docker/1\n");
  CHECK(memory_limit(root).name == "memory available");
  put(dir / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(memory_limit(root).name == "memory available");
  put(dir / "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "800000\n");
  CHECK(memory_limit(root).bytes == 800000);
}
