#include "model/flops.h"

#include <doctest/doctest.h>

#include <cmath>

#include "model/nemotron_h.h"
#include "model/test_configs.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const NemotronHConfig a3b = with_experts({nano_30b, 2688, 32, 2, 1856, 64, 64, 128}, {128, 6, 1856, 3712});
const NemotronHConfig super_120b =
    with_experts({super, 4096, 32, 2, 2688, 128, 64, 128}, {512, 22, 2688, 5376, 1024});
const NemotronHConfig ultra_550b =
    with_experts({ultra, 8192, 64, 2, 5120, 256, 64, 128}, {512, 22, 5120, 10240, 2048});
const NemotronHConfig h_8b = dense({h8, 4096, 32, 8, 21504, 128, 64, 128});

// Rounded to three decimals of a GFLOP or MFLOP.
void check_rounded(double got, double want) { CHECK(std::abs(got - want) <= 0.0005 + 1e-9); }

}  // namespace

TEST_CASE("flops: training of published models at 4096 tokens, in GFLOP a token") {
  const auto training = [](const NemotronHConfig& c) {
    return 3e-9 * forward_flops_per_token(c, 4096).total();
  };
  check_rounded(training(a3b), 20.203);
  check_rounded(training(super_120b), 74.985);
  check_rounded(training(ultra_550b), 334.161);
  check_rounded(training(dense({nano_4b, 3136, 40, 8, 12544, 96, 80, 128, 256})), 22.404);
  check_rounded(training(h_8b), 46.254);
}

TEST_CASE("flops: one block of each kind, in MFLOP a token") {
  struct Blocks {
    NemotronHConfig config;
    double mamba, attention;
  };
  for (const Blocks& b : {Blocks{a3b, 77.414 + 0.049 + 3.408, 46.793 + 33.563},
                          Blocks{super_120b, 219.152 + 0.082 + 6.554, 71.303 + 33.563},
                          Blocks{ultra_550b, 843.055 + 0.147 + 12.845, 276.824 + 67.125}}) {
    const ForwardFlops f = forward_flops_per_token(b.config, 4096);
    const auto per = [&](double flops, BlockKind kind) {
      return 1e-6 * flops / static_cast<double>(b.config.count(kind));
    };
    // Sums of numbers rounded to three decimals.
    CHECK(std::abs(per(f.mamba, BlockKind::mamba) - b.mamba) <= 0.0016);
    CHECK(std::abs(per(f.attention, BlockKind::attention) - b.attention) <= 0.0011);
    CHECK(f.mlp == 0);
  }
}

TEST_CASE("flops: a small model counted by hand") {
  NemotronHConfig c = with_experts({"M*-E", 10, 3, 1, 7, 2, 6, 5, 8}, {16, 2, 11, 13, 6});
  c.vocab_size = 50;
  c.head_dim = 4;
  c.n_groups = 1;
  const ForwardFlops f = forward_flops_per_token(c, 9);
  CHECK(f.mamba == 2 * 10 * (12 + 12 + 5 + 5 + 2) + 2 * 12 * 10 + 2 * (12 + 10) * 4 + 2 * 8 * 5 + 2 * 8 * 12 +
                       4 * 12 * 5);
  CHECK(f.attention == 2 * 10 * (12 + 4 + 4) + 2 * 12 * 10 + 2 * 2 * 12 * 5);  // five keys on average
  CHECK(f.mlp == 4 * 10 * 7);
  CHECK(f.moe == 2 * 10 * 16 + 2 * (4 * 6 * 11) + 4 * 10 * 13 + 2 * (2 * 10 * 6));
  CHECK(f.head == 2 * 10 * 50);
  CHECK(f.total() == f.mamba + f.attention + f.mlp + f.moe + f.head);
}

TEST_CASE("model: published sizes are planned without memory") {
  struct Published {
    NemotronHConfig config;
    std::int64_t elements;
  };
  for (const Published& p : {Published{a3b, 31577940288}, Published{h_8b, 8100852736}}) {
    const NemotronH model(p.config, DType::bf16, Device::meta);
    CHECK(model.parameters().element_count() == p.elements);
    CHECK(model.parameters().element_count() == count_tensors(tensor_specs(p.config)).elements);
    for (const Parameter& parameter : model.parameters().all()) CHECK(parameter.value.is_meta());
    CHECK(model.moe_layers().size() == static_cast<std::size_t>(p.config.count(BlockKind::moe)));
  }
  // Ultra: half a trillion parameters.
  CHECK(NemotronH(ultra_550b, DType::bf16, Device::meta).parameters().element_count() > 549'000'000'000);
}
