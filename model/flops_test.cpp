#include "model/flops.h"

#include <doctest/doctest.h>

#include <cmath>

#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"
#include "model/stack.h"
#include "model/test_models.h"
#include "ops/matmul/matmul.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const ModelConfig a3b = with_experts({nano_30b, 2688, 32, 2, 1856, 64, 64, 128}, {128, 6, 1856, 3712});
const ModelConfig super_120b =
    with_experts({super, 4096, 32, 2, 2688, 128, 64, 128}, {512, 22, 2688, 5376, 1024});
const ModelConfig ultra_550b =
    with_experts({ultra, 8192, 64, 2, 5120, 256, 64, 128}, {512, 22, 5120, 10240, 2048});
const ModelConfig h_8b = dense({h8, 4096, 32, 8, 21504, 128, 64, 128});

// Rounded to three decimals of a GFLOP or MFLOP.
void check_rounded(double got, double want) { CHECK(std::abs(got - want) <= 0.0005 + 1e-9); }

}  // namespace

TEST_CASE("flops: training of published models at 4096 tokens, in GFLOP a token") {
  struct Published {
    ModelConfig config;
    double correct;
  };
  for (const Published& p :
       {Published{a3b, 20.203}, Published{super_120b, 74.985}, Published{ultra_550b, 334.161},
        Published{dense({nano_4b, 3136, 40, 8, 12544, 96, 80, 128, 256}), 22.404},
        Published{dense({nano_9b, 4480, 40, 8, 15680, 128, 80, 128}), 50.963},
        Published{dense({nano_12b, 5120, 40, 8, 20480, 128, 80, 128}), 71.265},
        Published{dense({h8, 3072, 32, 8, 12288, 112, 64, 128}), 25.334}, Published{h_8b, 46.254},
        Published{dense({h47, 8192, 64, 8, 30720, 256, 64, 256}), 278.201},
        Published{dense({h56, 8192, 64, 8, 32768, 256, 64, 256}), 336.982}}) {
    CAPTURE(p.correct);
    check_rounded(3e-9 * forward_flops_per_token(p.config, 4096).total(), p.correct);
  }
}

TEST_CASE("flops: one block of each kind, in MFLOP a token") {
  struct Blocks {
    ModelConfig config;
    double mamba, attention;
  };
  for (const Blocks& b : {Blocks{a3b, 77.414 + 0.049 + 3.408, 46.793 + 33.563},
                          Blocks{super_120b, 219.152 + 0.082 + 6.554, 71.303 + 33.563},
                          Blocks{ultra_550b, 843.055 + 0.147 + 12.845, 276.824 + 67.125}}) {
    const auto per = [&](BlockKind kind) { return 1e-6 * forward_flops_per_token(kind, b.config, 4096); };
    // Sums of numbers rounded to three decimals.
    CHECK(std::abs(per(mamba_block) - b.mamba) <= 0.0016);
    CHECK(std::abs(per(attention_block) - b.attention) <= 0.0011);
  }
}

TEST_CASE("flops: a small model counted by hand") {
  ModelSetup c = with_experts({"M*-E", 10, 3, 1, 7, 2, 6, 5, 8}, {16, 2, 11, 13, 6});
  c.config.vocab_size = 50;
  c.config.attention.head_dim = 4;
  c.config.mamba.n_groups = 1;
  const ForwardFlops f = forward_flops_per_token(c, 9);
  const auto of = [&](BlockKind kind) { return forward_flops_per_token(kind, c.config, 9); };
  CHECK(of(mamba_block) == 2 * 10 * (12 + 12 + 5 + 5 + 2) + 2 * 12 * 10 + 2 * (12 + 10) * 4 + 2 * 8 * 5 +
                               2 * 8 * 12 + 4 * 12 * 5);
  CHECK(of(attention_block) == 2 * 10 * (12 + 4 + 4) + 2 * 12 * 10 + 2 * 2 * 12 * 5);  // five keys on average
  CHECK(of(mlp_block) == 4 * 10 * 7);
  CHECK(of(moe_block) == 2 * 10 * 16 + 2 * (4 * 6 * 11) + 4 * 10 * 13 + 2 * (2 * 10 * 6));
  CHECK(f.head == 2 * 10 * 50);
  CHECK(f.total() == of(mamba_block) + of(attention_block) + of(mlp_block) + of(moe_block) + f.head);
}

TEST_CASE(
    "flops: what is frozen has no gradient, and what comes before everything trained no backward pass") {
  ModelSetup c = with_experts({"M*-E", 10, 3, 1, 7, 2, 6, 5, 8}, {16, 2, 11, 13, 6});
  c.config.vocab_size = 50;
  c.config.attention.head_dim = 4;
  c.config.mamba.n_groups = 1;
  const auto of = [&](BlockKind kind) { return forward_flops_per_token(kind, c.config, 9); };
  const ForwardFlops forward = forward_flops_per_token(c, 9), all = training_flops_per_token(c, 9);
  CHECK(all.blocks == 3 * forward.blocks);
  CHECK(all.head == 3 * forward.head);
  const auto freeze = [&](auto&& chosen) {
    c.choices.frozen.clear();
    for (const TensorSpec& spec : tensor_specs(c))
      if (chosen(spec.name)) c.choices.frozen.insert(spec.id);
    return training_flops_per_token(c, 9);
  };
  const auto in = [](const std::string& name, const char* part) { return name.find(part) != name.npos; };
  // One product less for each matrix; of the 16 experts a token has two.
  CHECK(freeze([&](const std::string& n) { return in(n, "q_proj"); }).blocks == all.blocks - 2 * 10 * 3 * 4);
  CHECK(freeze([&](const std::string& n) { return in(n, ".experts.up_proj"); }).blocks ==
        all.blocks - 2 * 2 * 6 * 11);
  CHECK(freeze([&](const std::string& n) { return in(n, "lm_head"); }).head == 2 * forward.head);
  // Blocks 0 and 1 have a forward pass alone.
  const ForwardFlops late = freeze(
      [&](const std::string& n) { return in(n, "embeddings") || in(n, "layers.0.") || in(n, "layers.1."); });
  CHECK(late.blocks == of(mamba_block) + of(attention_block) + 3 * (of(mlp_block) + of(moe_block)));
  CHECK(late.head == 3 * forward.head);
  const ForwardFlops head = freeze([&](const std::string& n) { return !in(n, "lm_head"); });
  CHECK(head.blocks == forward.blocks);
  CHECK(head.head == 2 * forward.head);
}

TEST_CASE("flops: each depth of multi-token prediction has its blocks, its projection and the head") {
  ModelSetup c = with_experts({"M*-E", 10, 3, 1, 7, 2, 6, 5, 8}, {16, 2, 11, 13, 6});
  c.config.vocab_size = 50;
  c.config.attention.head_dim = 4;
  c.config.mamba.n_groups = 1;
  const ForwardFlops main = forward_flops_per_token(c, 9), trained = training_flops_per_token(c, 9);
  for (const bool repeated : {false, true}) {
    c.train_mtp({2, repeated, 0.3});
    const double depth = forward_flops_per_token(attention_block, c.config, 9) +
                         forward_flops_per_token(moe_block, c.config, 9) + 4 * 10 * 10;
    const ForwardFlops f = forward_flops_per_token(c, 9);
    CHECK(f.blocks == main.blocks + 2 * depth);
    CHECK(f.head == 3 * main.head);
    CHECK(training_flops_per_token(c, 9).total() == 3 * f.total());
    // A frozen weight has no product for its gradient in any depth. Frozen depths pass gradients on all the
    // same.
    const auto freeze = [&](auto&& chosen) {
      ModelSetup part = c;
      for (const TensorSpec& spec : tensor_specs(part))
        if (chosen(spec.name)) part.choices.frozen.insert(spec.id);
      return training_flops_per_token(part, 9);
    };
    CHECK(freeze([](const std::string& n) {
            return n.starts_with("mtp.") && n.ends_with("q_proj.weight");
          }).blocks == 3 * f.blocks - 2 * 2 * 10 * 12);
    CHECK(freeze([](const std::string& n) { return n.find("eh_proj") != n.npos; }).blocks ==
          3 * f.blocks - 2 * 2 * 20 * 10);
    CHECK(freeze([](const std::string& n) { return n == "lm_head.weight"; }).head == 2 * f.head);
    // Without anything trained before the head, all has a forward pass alone.
    const ForwardFlops head = freeze([](const std::string& n) { return n != "lm_head.weight"; });
    CHECK(head.blocks == f.blocks);
    CHECK(head.head == 2 * f.head);
    // What is in front of the depths has none where they alone are trained.
    const ForwardFlops ahead = freeze([](const std::string& n) { return !n.starts_with("mtp."); });
    CHECK(ahead.blocks == main.blocks + 3 * 2 * depth);
    CHECK(ahead.head == trained.head / 3 + 2 * 2 * main.head);
  }
}

namespace {

/// Everything is frozen but the tensors that chosen(name) takes.
template <class Chosen>
ModelSetup trained_alone(ModelSetup config, const Chosen& chosen) {
  for (const TensorSpec& spec : tensor_specs(config))
    if (!spec.buffer && !chosen(spec.name)) config.choices.frozen.insert(spec.id);
  return config;
}

/// Operations of the products in a step of 32 tokens, all labelled but those without a token behind them.
double counted_products(const ModelSetup& config) {
  Stack model(config, DType::f32, Device::cpu);
  randomise(model, 81);
  TestBatch batch = random_batch(config, {32}, 82);
  for (std::int64_t i = 0; i < 32; ++i) batch.labels.data<std::int64_t>()[i] = i;
  reset_matmul_flops();
  (void)mtp_losses(model, batch);
  return matmul_flops();
}

}  // namespace

TEST_CASE("flops: products of partly frozen multi-token prediction are as many as are counted") {
  ModelConfig base = tiny_config("-");
  base.vocab_size = 64;
  base.mtp_blocks = parse_pattern("--").blocks;
  const auto in = [](const std::string& name, std::initializer_list<const char*> parts) {
    return std::ranges::any_of(parts, [&](const char* part) { return name.find(part) != name.npos; });
  };
  struct Case {
    const char* adapted;
    std::initializer_list<const char*> trained;
  };
  const char* none = "none";
  for (const bool repeated : {false, true})
    for (const Case& c :
         {Case{none, {""}}, Case{none, {"embeddings"}}, Case{none, {"hnorm"}}, Case{none, {"layers.0.hnorm"}},
          Case{none, {"eh_proj"}}, Case{none, {"mtp.layers.0.eh_proj"}},
          // The norm wants the gradient of what enters the first mixer; nothing before it is trained.
          Case{none, {"mtp.layers.0.norm", "mtp.layers.0.mixer"}},
          Case{none, {"mtp.layers.1.norm", "mtp.layers.1.mixer"}}, Case{none, {"final_layernorm"}},
          Case{none, {"lm_head"}}, Case{"lm_head", {"lm_head.lora"}}, Case{"eh_proj", {"lora"}},
          Case{"mtp.layers.0.eh_proj", {"lora", "lm_head"}}, Case{"mixer", {"layers.1.norm"}},
          Case{"mixer", {"lora", "layers.0.norm"}}}) {
      CAPTURE(repeated);
      CAPTURE(std::string(c.adapted));
      CAPTURE(std::string(*c.trained.begin()));
      const ModelSetup config =
          trained_alone(with_adapters(with_mtp(base, 2, repeated),
                                      [&](const std::string& m) { return in(m, {c.adapted}); }),
                        [&](const std::string& n) { return in(n, c.trained); });
      CHECK(counted_products(config) == 32 * training_flops_per_token(config, 32).total());
    }
}

TEST_CASE("flops: a depth whose first mixer is trained alone has a forward pass alone before it") {
  ModelConfig base = tiny_config("-");
  base.mtp_blocks = parse_pattern("-*").blocks;
  for (const bool repeated : {false, true}) {
    CAPTURE(repeated);
    const ModelSetup plain = with_mtp(base, 1, repeated),
                     config = trained_alone(
                         plain, [](const std::string&n) { return n == "mtp.layers.0.mixer.up_proj.weight"; });
    const ForwardFlops forward = forward_flops_per_token(plain, 9), all = training_flops_per_token(config, 9);
    const auto of = [&](BlockKind kind) { return forward_flops_per_token(kind, plain.config, 9); };
    const double h = real(plain.config.hidden_size), q = real(plain.config.attention.q_width()),
                 kv = real(plain.config.attention.kv_width()),
                 wide = real(plain.config.mlp.intermediate_size);
    // Frozen weights behind it have no gradients.
    CHECK(all.blocks == forward.blocks + 2 * of(mlp_block) - 2 * wide * h + 2 * of(attention_block) -
                            2 * h * (2 * q + 2 * kv));
  }
}

TEST_CASE("model: published sizes are planned without memory") {
  struct Published {
    ModelConfig config;
    std::int64_t elements;
  };
  for (const Published& p : {Published{a3b, 31577940288}, Published{h_8b, 8100852736}}) {
    const Stack model(p.config, DType::bf16, Device::meta);
    CHECK(model.parameters().element_count() == p.elements);
    CHECK(model.parameters().element_count() == count_tensors(tensor_specs(p.config)).elements);
    for (const Parameter& parameter : model.parameters().all()) CHECK(parameter.value.is_meta());
    CHECK(model.moe_layers().size() == static_cast<std::size_t>(p.config.count(moe_block)));
  }
  // Ultra: half a trillion parameters.
  CHECK(Stack(ultra_550b, DType::bf16, Device::meta).parameters().element_count() > 549'000'000'000);
}
