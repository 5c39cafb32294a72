#include <doctest/doctest.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/allocator.h"
#include "core/memory_limit.h"
#include "data/json/test_dir.h"
#include "model/test_models.h"
#include "train/cost/training_memory.h"
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

std::vector<MemoryItem> state_of(int rank, DType dtype, const StateOptions& options) {
  ModelParts parts(tiny_config("ME*-"), options.parallel, dtype);
  return state_memory(parts.of(place_of(options.parallel.grid, rank)),
                      PlannedGroups(make_grid(options.parallel.grid)), rank, options);
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
      Stack model(tiny_config("ME*-"), dtype, Device::cpu);
      randomise(model, 1);
      Optimizer optimizer(model.parameters(), o);
      std::int64_t weights = 0, gradients = 0, masters = 0, moments = 0;
      for (const Parameter& p : model.parameters().all()) weights += p.value.bytes();
      for (const Tensor& t : optimizer.gradients()) gradients += t.bytes();
      for (const StateTensor& t : optimizer.state())
        (t.name.starts_with("master.") ? masters : moments) += t.value.bytes();
      const auto items = state_of(0, dtype, {.parallel = {}, .optimizer = o});
      REQUIRE(items.size() == 4);
      CHECK(items[0].bytes == weights);
      CHECK(items[1].bytes == gradients);
      CHECK(items[2].bytes == masters);
      CHECK(items[3].bytes == moments);
      CHECK(total_bytes(items) == weights + gradients + masters + moments);
    }
}

TEST_CASE("training memory: experts that no other rank has a part of are counted once") {
  StateOptions options;
  options.parallel.grid = {.dp_shard = 2, .ep = 2};
  options.parallel.data.level = ZeroLevel::parameters;
  options.parallel.data.overlap = false;
  ModelParts parts(tiny_config("ME*-"), options.parallel, DType::bf16);
  const LocalParameters& local = parts.of(place_of(options.parallel.grid, 0));
  std::int64_t experts = 0, divided = 0, root = 0, largest = 0;
  local.for_each_unit([&](const LocalUnit& unit) {
    std::int64_t whole = 0;
    for (const LocalFlat& flat : unit.flats) {
      const std::int64_t bytes = flat.size * size_of(flat.dtype);
      (flat.expert ? experts : divided) += flat.shard * size_of(flat.dtype);
      whole += flat.expert ? 0 : bytes;
    }
    (&unit == &local.root ? root : largest) = std::max(&unit == &local.root ? 0 : largest, whole);
  });
  CHECK(experts > 0);
  const auto items = state_of(0, DType::bf16, options);
  CHECK(items[0].bytes == local.buffer_bytes + experts + divided);
  CHECK(items[4].what == "gathered weights");
  CHECK(items[4].bytes == root + largest);
}

TEST_CASE("training memory: what each of two ranks keeps of a state that they divide") {
  for (const ZeroLevel level :
       {ZeroLevel::none, ZeroLevel::optimizer, ZeroLevel::gradients, ZeroLevel::parameters}) {
    CAPTURE(static_cast<int>(level));
    StateOptions options;
    options.parallel.grid.dp_shard = 2;
    options.parallel.data.level = level;
    options.parallel.data.overlap = false;
    for (const int rank : {0, 1}) {
      CAPTURE(rank);
      const auto items = state_of(rank, DType::bf16, options);
      Stack model(tiny_config("ME*-"), DType::bf16, Device::meta);
      std::map<std::tuple<std::int64_t, bool, DType>, std::vector<Parameter*>> flats;
      std::int64_t weights = 0, gradients = 0, gathered = 0, largest = 0;
      for (Parameter& p : model.parameters().all()) {
        const bool expert = p.name.find(".experts.") != p.name.npos;
        if (p.wants_grad())
          flats[{unit_of(p.id).value_or(-1), expert, p.value.dtype()}].push_back(&p);
        else
          weights += p.value.bytes();
        if (!p.wants_grad()) p.value = p.own = Tensor::zeros(p.value.shape(), p.value.dtype(), Device::cpu);
      }
      std::map<std::int64_t, std::int64_t> of_block;
      for (auto& [key, parameters] : flats) {
        const FlatUnit unit(parameters, level, rank, 2, Device::cpu);
        weights += (level == ZeroLevel::parameters ? unit.own_values() : unit.values()).bytes();
        gradients += (level >= ZeroLevel::gradients ? unit.own_gradients() : unit.gradients()).bytes();
        of_block[std::get<0>(key)] += unit.values().bytes();
      }
      for (const auto& [block, bytes] : of_block)
        (block < 0 ? gathered : largest) = std::max(block < 0 ? 0 : largest, bytes);
      REQUIRE(items.size() == (level == ZeroLevel::parameters ? 6 : level == ZeroLevel::gradients ? 5 : 4));
      CHECK(items[0].bytes == weights);
      CHECK(items[1].bytes == gradients);
      if (level == ZeroLevel::parameters) CHECK(items[4].bytes == gathered + largest);

      // The optimizer keeps nothing for the gaps between parameters.
      const Optimizer optimizer(model.parameters(), of_kind(OptimizerKind::adamw));
      std::int64_t masters = 0, moments = 0;
      for (const StateTensor& t : optimizer.state())
        (t.name.starts_with("master.") ? masters : moments) += t.value.bytes();
      CHECK(items[2].bytes == masters);
      CHECK(items[3].bytes == moments);
    }
  }
}

TEST_CASE("training memory: deferred reduction keeps whole gradients and weights until the last microbatch") {
  const auto whole = [](std::int64_t microbatches, bool reduce_last_only) {
    StateOptions options;
    options.microbatches = microbatches;
    options.parallel.grid.dp_shard = 4;
    options.parallel.data.reduce_last_only = reduce_last_only;
    const auto items = state_of(0, DType::f32, options);
    return std::pair(items[4].bytes, items[5].bytes);
  };
  const auto all = state_of(0, DType::f32, {});
  CHECK(whole(2, true).first >= all[0].bytes * 9 / 10);
  CHECK(whole(2, true).second >= all[1].bytes);
  CHECK(whole(1, true).first < whole(2, true).first);
  CHECK(whole(1, true).second < whole(2, true).second);
  CHECK(whole(2, false).first == whole(1, true).first);
  CHECK(whole(2, false).second > whole(1, false).second);
}

// A step of 512 tokens, its activations measured.
TEST_CASE("training memory: the estimate of activations is near what a step holds") {
  // The estimate leaves out the working memory of threads, which grows with their number.
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const char* const own_sizes = "EM*-";  // of every block
  const char *const llama = "*-*-", *const gemma = "*-", *const phi = "*-*-*-", *const baichuan = "*-*-*-*-",
                    *const falcon = "M*-M*-M*-";
  for (const char* pattern :
       {"MMM", "***", "---", "EEE", "ME*-", "ME*-/*E/*E", own_sizes, llama, gemma, phi, baichuan, falcon})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool checkpointing : {false, true}) {
        CAPTURE(std::string(pattern));
        CAPTURE(dtype);
        CAPTURE(checkpointing);
        const auto depths = static_cast<std::int64_t>(parse_pattern(pattern).mtp.size());
        ModelSetup config = with_experts({pattern, 128, 2, 1, 512, 4, 64, 64}, {8, 2, 128, 256});
        config.config.attention.head_dim = 64;
        config.config.mamba.n_groups = 1;
        config.config.vocab_size = 256;
        config.train_mtp({depths, false, 0.3});
        if (pattern == own_sizes) config.config = with_own_of_all(config.config);
        if (pattern == llama) {
          config.config.attention.rope.type = RopeType::standard;
          config.config.mlp.gate = GateActivation::silu;
        }
        if (pattern == gemma) {
          config.config.residual = Residual::norm_before_and_after;
          config.config.attention.head_norm = config.config.norm = NormKind::rmsnorm_one_plus_w;
          config.config.mlp.gate = GateActivation::gelu_tanh;
          config.config.tie_word_embeddings = true;
        }
        if (pattern == phi) {
          config.config.norm = NormKind::layernorm;
          config.config.mlp.activation = MlpActivation::gelu_tanh;
          config.config.head_bias = true;
          for (const std::int64_t mlp : {1, 3, 5})
            own_config(config.config, mlp).residual = Residual::shared_norm;
        }
        if (pattern == baichuan) {
          config.config.attention.num_key_value_heads = 2;
          config.config.attention.packed = true;
          config.config.attention.rope.type = RopeType::standard;
          config.config.normalized_head = true;
        }
        if (pattern == falcon) {
          const ModelConfig like = tiny_falcon_config(MambaNorm::none, true);
          config.config.mamba.norm = like.mamba.norm;
          config.config.mamba.multipliers = like.mamba.multipliers;
          config.config.mamba.in_proj_bias = true;
          config.config.attention.input_multiplier = config.config.attention.output_multiplier = 2;
          config.config.mlp.gate = GateActivation::silu;
          config.config.mlp.gate_multiplier = config.config.mlp.output_multiplier = 2;
          config.config.logit_scale = 0.5;
          for (const std::int64_t attention : {1, 4, 7})
            own_config(config.config, attention).residual = Residual::shared_norm;
        }
        Stack model(config, dtype, Device::cpu);
        randomise(model, 1);
        model.activation_checkpointing = checkpointing;
        ParallelModel parallel(model);
        Optimizer optimizer(model.parameters(), {});
        const std::vector<TokenBatch> batch{
            {random_ids(config, 512, 2), random_labels(config, 512, 3), Sequences::uniform(2, 256)}};
        StepOptions options;
        allocator(Device::cpu).release_cache();  // a cached block may be larger than what is asked of it
        (void)train_step(parallel, optimizer, batch, options);
        allocator(Device::cpu).reset_peak();
        const std::int64_t before = allocator(Device::cpu).stats().current_bytes;
        (void)train_step(parallel, optimizer, batch, options);
        const std::int64_t held = allocator(Device::cpu).stats().peak_bytes - before;
        const ActivationOptions o{.tokens = 512,
                                  .checkpointing = checkpointing,
                                  .loss_rows = model.loss_chunk_rows,
                                  .sequences = 2};
        const double ratio =
            static_cast<double>(activation_memory(config, dtype, o)) / static_cast<double>(held);
        // Without bf16 products a kernel works on f32 copies (ops/matmul/matmul.h): at most an activation
        // [512, 512], a weight [512, 128] and their product [512, 128].
        const bool copies = dtype == DType::bf16 && !__builtin_cpu_supports("avx512bw");
        const double copied = copies ? 4.0 * (512 * 512 + 2 * 512 * 128) / static_cast<double>(held) : 0;
        CAPTURE(ratio);
        CAPTURE(copied);
        CHECK(ratio + copied > 0.75);
        CHECK(ratio < 1.45);
      }
  omp_set_num_threads(threads);
}

TEST_CASE("training memory: multi-token prediction keeps what its backward passes need") {
  ModelSetup config = tiny_config("-");
  config.config.mtp_blocks = parse_pattern("--").blocks;
  config.train_mtp({2, false, 0.3});
  const ActivationOptions o{.tokens = 64, .loss_rows = 16};
  const auto bytes = [&](const ModelSetup& c) { return activation_memory(c, DType::f32, o); };
  const auto with_trained = [&](std::initializer_list<const char*> parts) {
    ModelSetup part = config;
    for (const TensorSpec& spec : tensor_specs(config))
      if (!spec.buffer && std::ranges::none_of(parts, [&](const char* text) {
            return spec.name.find(text) != spec.name.npos;
          }))
        part.choices.frozen.insert(spec.id);
    return part;
  };
  // The later the first trained weight, the less is kept.
  std::int64_t before = bytes(config);
  for (const char* first : {"mtp.layers.0.hnorm", "mtp.layers.1.norm", "mtp.layers.2.hnorm",
                            "mtp.layers.3.norm", "mtp.layers.3.final_layernorm"}) {
    CAPTURE(std::string(first));
    const std::int64_t now = bytes(with_trained({first}));
    CHECK(now < before);
    before = now;
  }
  // A x of each row for both eh_proj; of a chunk of rows for the head, and its gradient.
  const auto adapted = [&](const char* module, std::int64_t rank) {
    ModelSetup part = config;
    for (const TensorSpec& spec : tensor_specs(config))
      if (spec.linear && spec.name.ends_with(cat(module, ".weight")))
        part.choices.lora.modules[spec.id.module()] = {.rank = rank};
    return bytes(part);
  };
  CHECK(adapted("eh_proj", 5) == bytes(config) + 2 * 4 * 64 * 5);
  CHECK(adapted("lm_head", 5) == bytes(config) + 2 * 4 * 16 * 5);
}

TEST_CASE("training memory: of blocks of different sizes, each by its own") {
  const ModelConfig all = tiny_pruned_config();
  const auto decoded = [](const ModelConfig& c) { return decode_state_memory(c, DType::f32, 3, 20); };
  const auto activations = [](const ModelSetup& c) {
    return activation_memory(c, DType::f32, {.tokens = 64, .loss_rows = 8});
  };
  std::int64_t states = 0;
  for (std::int64_t i = 0; i < all.num_layers(); ++i) {
    ModelConfig one = tiny_config();
    static_cast<BlockConfig&>(one) = all.block(i);
    one.blocks = {all.blocks[static_cast<std::size_t>(i)]};
    states += decoded(one);
    if (!all.own_configs.contains(i)) continue;
    ModelConfig common_sizes = all;
    common_sizes.own_configs.erase(i);
    CHECK(activations(common_sizes) != activations(all));
  }
  CHECK(decoded(all) == states);
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
