#include <doctest/doctest.h>

#include "data/peft/test_adapters.h"
#include "data/peft/write_peft.h"
#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("write peft on ranks: rank 0 writes, all have its sums and its errors") {
  Communicator* world = &test_world().communicator();
  const ModelConfig config = adapter_test_config();
  LoraAdapters adapters;
  adapters.modules = {{named("backbone.layers.2.mixer.q_proj"), {4, 8}},
                      {named("backbone.layers.1.mixer.experts.up_proj"), {2, 8}},
                      {named("backbone.layers.1.mixer.experts.down_proj"), {4, 8}}};
  const std::vector<NamedTensor> whole = random_adapters(config, adapters, DType::f32);
  std::vector<NamedTensor> held = whole;
  if (test_world().rank() > 0)
    for (NamedTensor& tensor : held) tensor.value = Tensor::meta(tensor.value.shape(), tensor.value.dtype());
  const SharedDir dir;
  for (const ExpertForm form : {ExpertForm::stacked, ExpertForm::stacked_peft_0_18, ExpertForm::per_expert}) {
    const std::string name = cat("form", static_cast<int>(form));
    PeftWriteOptions options;
    options.experts = form;
    const FileSums sums = write_peft_directory(dir / name, held, adapters, options, world);
    const TestDir alone;
    CHECK(write_peft_directory(alone / "out", whole, adapters, options) == sums);
    CHECK(files_below(alone / "out") == files_below(dir / name));
    CHECK_THROWS_AS(write_peft_directory(dir / name, held, adapters, options, world), Error);
  }
}
