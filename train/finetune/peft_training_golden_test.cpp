#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/peft/peft_directory.h"
#include "data/safetensors/reader.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/paths.h"
#include "train/finetune/adapters.h"
#include "train/model_io/model_io.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// What tools/goldens/make_peft_training.py has made.
fs::path golden() { return source_dir() / "tests" / "goldens" / "peft_training"; }

/// The golden model with PEFT's fresh adapter, its data and its optimizer.
class Training {
 public:
  Training(DType dtype, Device device) : tokens_(golden() / "tokens.safetensors") {
    const OpenedModel source(golden());
    Finetuning finetuning = with_adapter(source, golden() / "fresh");
    finetuning.choices.frozen = base_parameters(source.config());
    loaded_ = load_model(source, dtype, device, finetuning);
    OptimizerOptions options;
    options.beta1 = steps_["betas"][0];
    options.beta2 = steps_["betas"][1];
    options.eps = steps_["eps"];
    optimizer_ = std::make_unique<Optimizer>(model().parameters(), options);
  }

  Stack& model() { return *loaded_.model; }
  std::size_t steps() const { return steps_["losses"].size(); }
  double want(const char* what, std::size_t step) const { return steps_[what][step]; }

  /// Sums gradients of the step as train_step() does.
  void form_gradients(std::size_t step) {
    std::int64_t labels = 0;
    const std::vector<TokenBatch> batches = batches_of(step);
    for (const TokenBatch& batch : batches)
      for (const double label : batch.labels.to_vector()) labels += label >= 0;
    for (const TokenBatch& batch : batches) {
      const Device device = model().device();
      Tape tape;
      Context ctx{.tape = &tape};
      BlockRecords records = model().make_records();
      const ForwardInput input{
          .ids = batch.ids.to(device), .residual = {}, .sequences = batch.sequences, .records = &records};
      const Var loss = model().loss(ctx, model().forward(ctx, input), Labels(batch.labels).to(device),
                                    batch.sequences, 1 / static_cast<double>(labels));
      tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), device));
    }
  }

  StepResult train(std::size_t step) {
    StepOptions options;
    options.lr = steps_["lr"];
    options.weight_decay = steps_["weight_decay"];
    options.max_norm = steps_["max_norm"];
    return train_step(*loaded_.parallel, *optimizer_, batches_of(step), options);
  }

 private:
  std::vector<TokenBatch> batches_of(std::size_t step) const {
    const Tensor ids = tokens_.tensor("input_ids"), labels = tokens_.tensor("labels");
    const std::int64_t all = steps_["global_batch"], some = steps_["local_batch"], length = ids.cols();
    std::vector<TokenBatch> batches;
    for (std::int64_t row = 0; row < all; row += some) {
      const std::int64_t first = static_cast<std::int64_t>(step) * all + row;
      const auto rows = [&](const Tensor& t) {
        return t.narrow(0, first, some).clone().reshape({some * length});
      };
      batches.push_back({rows(ids), rows(labels), Sequences::uniform(some, length)});
    }
    return batches;
  }

  Json steps_ = read_json_file(golden() / "steps.json");
  SafetensorsFile tokens_;
  LoadedModel loaded_;
  std::unique_ptr<Optimizer> optimizer_;
};

double unit_of(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

/// Of a tensor that depends on `steps` steps, in the Frobenius norm. PyTorch's own float32 is 20 units away
/// after one step or two, and 20 after all. The files are rounded to f32.
double tolerance(DType dtype, std::size_t steps) {
  return 0x1p-24 + 100 * unit_of(dtype) * static_cast<double>(steps);
}

/// Calls check(parameter, wanted) for each tensor of the adapter that a directory holds in PEFT's form.
void for_adapter(Stack& model, const char* directory, const auto& check) {
  const PeftDirectory want(golden() / directory, model.config());
  std::size_t trained = 0;
  for (const Parameter& p : model.parameters().all()) trained += p.wants_grad();
  CHECK(want.tensor_names().size() == trained);
  for (const std::string& name : want.tensor_names()) {
    CAPTURE(name);
    check(model.parameters().get(name), want.tensor(name));
  }
}

void check_gradients_of(Training& training, std::size_t step, const char* directory, double most) {
  training.form_gradients(step);
  for_adapter(training.model(), directory, [&](const Parameter& p, const Tensor& want) {
    REQUIRE(p.node->filled());
    if (step == 0 && p.name.ends_with("lora_A.weight"))
      CHECK_CLOSE(p.gradient(), Tensor::zeros(want.shape(), DType::f32, Device::cpu), Tol{});  // B is zero
    else
      CHECK(relative_error(p.gradient(), want) <= most);
  });
  training.model().parameters().clear_gradients();
}

void check_run(DType dtype, Device device) {
  Training training(dtype, device);
  REQUIRE(training.steps() == 20);
  for (std::size_t step = 0; step < training.steps(); ++step) {
    CAPTURE(step);
    const double most = tolerance(dtype, step + 1);
    if (step == 0) check_gradients_of(training, step, "gradient_1", most);
    if (step == 1) check_gradients_of(training, step, "gradient_2", most);
    const StepResult result = training.train(step);
    CHECK(result.outcome == StepOutcome::updated);
    CHECK(close(result.loss, training.want("losses", step), {most, 0}));
    CHECK(close(result.grad_norm, training.want("grad_norms", step), {most, 0}));
  }
  for_adapter(training.model(), "final", [&](const Parameter& p, const Tensor& want) {
    CHECK(relative_error(p.own, want) <= tolerance(dtype, training.steps()));
  });
}

}  // namespace

TEST_CASE("peft training: losses, gradients and adapters of 20 steps follow PEFT and PyTorch" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : test_dtypes(device)) {
      if (dtype == DType::bf16) continue;
      CAPTURE(device);
      CAPTURE(dtype);
      check_run(dtype, device);
    }
}
