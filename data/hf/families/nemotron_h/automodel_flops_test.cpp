#include <doctest/doctest.h>

#include <cmath>

#include "data/hf/families/nemotron_h/nemotron_h.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const ModelConfig a3b = with_experts({nano_30b, 2688, 32, 2, 1856, 64, 64, 128}, {128, 6, 1856, 3712});
const ModelConfig super_120b =
    with_experts({super, 4096, 32, 2, 2688, 128, 64, 128}, {512, 22, 2688, 5376, 1024});

double flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  return family_of(setup.config).automodel_step_flops(setup, sequences, length);
}

}  // namespace

TEST_CASE("automodel flops: published models at 4096 tokens, in GFLOP a token") {
  struct Published {
    ModelConfig config;
    double gflop;
  };
  for (const Published& p :
       {Published{a3b, 19.721}, Published{super_120b, 75.070},
        Published{with_experts({ultra, 8192, 64, 2, 5120, 256, 64, 128}, {512, 22, 5120, 10240, 2048}),
                  334.403},
        Published{dense({nano_4b, 3136, 40, 8, 12544, 96, 80, 128, 256}), 25.763},
        Published{dense({nano_9b, 4480, 40, 8, 15680, 128, 80, 128}), 61.348},
        Published{dense({nano_12b, 5120, 40, 8, 20480, 128, 80, 128}), 88.961},
        Published{dense({h8, 3072, 32, 8, 12288, 112, 64, 128}), 30.522},
        Published{dense({h8, 4096, 32, 8, 21504, 128, 64, 128}), 58.989},
        Published{dense({h47, 8192, 64, 8, 30720, 256, 64, 256}), 351.718},
        Published{dense({h56, 8192, 64, 8, 32768, 256, 64, 256}), 425.202}}) {
    CAPTURE(p.gflop);
    // Rounded to three decimals.
    CHECK(std::abs(1e-9 * flops(p.config, 1, 4096) / 4096 - p.gflop) <= 0.0005 + 1e-9);
  }
}

// The values of AutoModel's own test, and its count for a step of its benchmark of Nano.
TEST_CASE("automodel flops: whole steps") {
  CHECK(flops(a3b, 1, 2048) == 39'982'504'869'888);
  CHECK(flops(super_120b, 1, 2048) == 152'918'015'606'784);
  CHECK(std::abs(1e-12 * flops(a3b, 256, 1024) - 5091.78) <= 0.005);
}

TEST_CASE(
    "automodel flops: each depth of multi-token prediction has its blocks, its projection and the head") {
  ModelSetup setup = with_experts({"M*-E", 10, 3, 1, 7, 2, 6, 5, 8}, {16, 2, 11, 13, 6});
  setup.config.vocab_size = 50;
  setup.config.attention.head_dim = 4;
  setup.config.mamba.n_groups = 1;
  const double main = flops(setup, 2, 9);
  ModelConfig one_more = setup.config;
  one_more.blocks.insert(one_more.blocks.end(), one_more.mtp_blocks.begin(), one_more.mtp_blocks.end());
  const double blocks = flops(one_more, 2, 9) - main;
  for (const bool repeated : {false, true}) {
    setup.train_mtp({2, repeated, 0.3});
    CHECK(flops(setup, 2, 9) ==
          doctest::Approx(main + 2 * (blocks + 2 * 9 * (12. * 100 + 6. * 10 * 50))).epsilon(1e-14));
  }
}

TEST_CASE("automodel flops: of blocks with sizes of their own, each by its own") {
  ModelConfig uniform = tiny_config_with_all_tensors();
  uniform.moe.num_experts_per_tok = 3;
  CHECK(flops(uniform, 2, 9) == flops(with_own_of_all(uniform), 2, 9));
  const ModelConfig c = tiny_pruned_config();
  const double head = 9 * 6. * 12 * 23;
  double sum = 0;
  for (std::int64_t i = 0; i < c.num_layers(); ++i) {
    ModelConfig one = tiny_config("M");
    static_cast<BlockConfig&>(one) = c.block(i);
    one.blocks = {c.blocks[static_cast<std::size_t>(i)]};
    sum += flops(one, 1, 9) - head;
  }
  CHECK(flops(c, 1, 9) == doctest::Approx(sum + head));
}
