#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/safetensors/reader.h"
#include "tests/support/compare.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Whole runs with multi-token prediction.

namespace {

namespace fs = std::filesystem;

const Words two_depths{"model.num_nextn_predict_layers=2", "model.mtp_use_repeated_layer=true",
                       "model.mtp_loss_scaling_factor=0.3"};
/// The tensors of multi-token prediction in a model's only file.
std::map<std::string, Tensor> mtp_tensors(const fs::path& model) {
  std::map<std::string, Tensor> found;
  const SafetensorsFile file(model / "model.safetensors");
  for (const StoredTensor& t : file.tensors())
    if (t.name.starts_with("mtp.")) found[t.name] = file.tensor(t.name);
  return found;
}

}  // namespace

TEST_CASE("mtp: a run logs the loss of each depth, saves their weights, and resumes with the same bits") {
  const RunDir dir;
  const Words overrides = plus(four_steps, two_depths);
  must_run(dir.train(overrides));
  const auto log = read_jsonl(dir / "straight" / "training.jsonl");
  REQUIRE(log.size() == 4);
  for (const Json& line : log)
    for (const char* field : {"mtp_loss_1", "mtp_loss_2"}) {
      CHECK(line.at(field).get<double>() > 1);
      CHECK(line.at(field) != line.at("loss"));
    }
  CHECK(log[3]["mtp_loss_1"].get<double>() < log[0]["mtp_loss_1"].get<double>());
  for (const Json& line : read_jsonl(dir / "straight" / "validation.jsonl"))
    CHECK_FALSE(line.contains("mtp_loss_1"));

  const fs::path last = dir / "straight" / "epoch_0_step_3" / "model";
  CHECK(read_json_file(last / "config.json")["num_nextn_predict_layers"] == 1);
  CHECK(mtp_tensors(last).size() == 3 + 5 + 5 + 2 * 6 + 1);
  const ProcessResult inspected =
      run_process({program(), "inspect", (dir / "straight" / "epoch_0_step_3").string()});
  CAPTURE(inspected.out);
  CAPTURE(inspected.err);
  CHECK(inspected.exit_code == 0);

  must_run(dir.train(
      plus(overrides, {"checkpoint.checkpoint_dir=resumed",
                       "checkpoint.restore_from=" + (dir / "straight" / "epoch_0_step_1").string()})));
  CHECK(differences(dir / "straight" / "epoch_0_step_3", dir / "resumed" / "epoch_0_step_3") == "");
}

TEST_CASE("mtp: a recipe that does not train it carries the weights; one that does begins with them") {
  const RunDir dir;
  must_run(dir.train(plus(four_steps, two_depths)));
  const std::string first = (dir / "straight" / "epoch_0_step_1").string();
  const Words from_first{"model._target_=nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
                         "model.config=null", "model.pretrained_model_name_or_path=" + first + "/model"};
  const auto before = mtp_tensors(fs::path(first) / "model");
  REQUIRE(!before.empty());

  must_run(dir.train(plus(plus(four_steps, from_first), {"checkpoint.checkpoint_dir=carried"})));
  const auto carried = mtp_tensors(dir / "carried" / "epoch_0_step_3" / "model");
  CHECK(carried.size() == before.size());
  for (const auto& [name, tensor] : before) CHECK_BITS(carried.at(name), tensor);
  CHECK_FALSE(read_jsonl(dir / "carried" / "training.jsonl")[0].contains("mtp_loss_1"));

  // One stored depth and two that are asked for: the weights say that the layer is repeated.
  const std::string said =
      must_run(dir.train(plus(plus(four_steps, from_first),
                              {"checkpoint.checkpoint_dir=trained", "model.num_nextn_predict_layers=2"})))
          .err;
  CHECK(said.find("multi-token prediction: 2 depths of one repeated layer, loss factor 0.1") !=
        std::string::npos);
  const auto trained = mtp_tensors(dir / "trained" / "epoch_0_step_3" / "model");
  REQUIRE(trained.size() == before.size());
  std::int64_t changed = 0;
  for (const auto& [name, tensor] : before) changed += relative_error(trained.at(name), tensor) > 0;
  CHECK(changed > 20);
  const Json at_start = read_jsonl(dir / "trained" / "training.jsonl")[0];
  CHECK(at_start["mtp_loss_1"].get<double>() <
        read_jsonl(dir / "straight" / "training.jsonl")[0]["mtp_loss_1"].get<double>());

  const ProcessResult refused =
      dir.train(plus(from_first, {"model.num_nextn_predict_layers=2", "model.mtp_use_repeated_layer=false"}));
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("want the weights of 2 depths of multi-token prediction, found those of 1") !=
        std::string::npos);
  const ProcessResult unsaid = dir.train({"model.num_nextn_predict_layers=2"});
  CHECK(unsaid.exit_code == 2);
  CHECK(unsaid.err.find("want model.mtp_use_repeated_layer true") != std::string::npos);
}

TEST_CASE("mtp: of two stored depths one can be trained, and the other is carried") {
  const RunDir dir;
  must_run(dir.train(
      plus(four_steps, {"model.num_nextn_predict_layers=2", "model.mtp_use_repeated_layer=false"})));
  const std::string first = (dir / "straight" / "epoch_0_step_1").string();
  const auto before = mtp_tensors(fs::path(first) / "model");
  must_run(dir.train(
      plus(four_steps, {"model._target_=nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
                        "model.config=null", "model.pretrained_model_name_or_path=" + first + "/model",
                        "model.num_nextn_predict_layers=1", "checkpoint.checkpoint_dir=one"})));
  const Json line = read_jsonl(dir / "one" / "training.jsonl")[0];
  CHECK(line.contains("mtp_loss_1"));
  CHECK_FALSE(line.contains("mtp_loss_2"));
  const auto after = mtp_tensors(dir / "one" / "epoch_0_step_3" / "model");
  REQUIRE(after.size() == before.size());
  std::int64_t changed = 0;
  for (const auto& [name, tensor] : before)
    if (name.starts_with("mtp.layers.0.") || name.starts_with("mtp.layers.1."))
      changed += relative_error(after.at(name), tensor) > 0;
    else
      CHECK_BITS(after.at(name), tensor);
  CHECK(changed > 20);
}

TEST_CASE("mtp: a pipeline of two ranks has the losses of one, and one rank goes on from its checkpoint") {
  const RunDir dir;
  // The load-balancing loss depends on the microbatches.
  const Words overrides = plus(plus(four_steps, two_depths), {"model.moe.aux_loss_coeff=0"});
  must_run(dir.train(overrides));
  const Words pipeline{"distributed.strategy=fsdp2", "distributed.pp_size=2",
                       "distributed.pipeline={pp_microbatch_size: 1}", "checkpoint.checkpoint_dir=two"};
  const ProcessResult two =
      run_process(mpirun(2, RunDir::train_command(plus(overrides, pipeline))), dir.path());
  CAPTURE(two.err);
  REQUIRE(two.exit_code == 0);
  const auto one = read_jsonl(dir / "straight" / "training.jsonl"),
             got = read_jsonl(dir / "two" / "training.jsonl");
  REQUIRE(got.size() == one.size());
  for (std::size_t i = 0; i < one.size(); ++i)
    for (const char* field : {"loss", "mtp_loss_1", "mtp_loss_2", "grad_norm"})
      CHECK(got[i][field].get<double>() == doctest::Approx(one[i][field].get<double>()).epsilon(2e-4));
  must_run(
      dir.train(plus(overrides, {"checkpoint.checkpoint_dir=after",
                                 "checkpoint.restore_from=" + (dir / "two" / "epoch_0_step_1").string()})));
  const auto after = read_jsonl(dir / "after" / "training.jsonl");
  REQUIRE(after.size() == 2);
  CHECK(after[1]["mtp_loss_2"].get<double>() ==
        doctest::Approx(got[3]["mtp_loss_2"].get<double>()).epsilon(2e-4));
}
