#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/safetensors/reader.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Runs that train a part of a model, by the program itself.

namespace {

namespace fs = std::filesystem;

/// A directory with a model that was trained a little, in `base`.
class FinetuneDir : public RunDir {
 public:
  FinetuneDir() {
    const ProcessResult run = train({"checkpoint.checkpoint_dir=run", "step_scheduler.max_steps=4",
                                     "step_scheduler.ckpt_every_steps=4", "validation_dataset=null"});
    REQUIRE(run.exit_code == 0);
    fs::rename(*this / "run" / "epoch_0_step_3" / "model", *this / "base");
  }
  /// Of a run on the base model, with validation at its end alone.
  static Words on_base(const Words& more) {
    return plus({"model._target_=from_pretrained", "model.config=null",
                 "model.pretrained_model_name_or_path=base", "model.moe.expert_bias_update_rate=0",
                 "step_scheduler.max_steps=4", "lr_scheduler.lr_warmup_steps=1",
                 "step_scheduler.ckpt_every_steps=2", "step_scheduler.val_every_steps=null"},
                more);
  }
  ProcessResult command(const Words& words) const { return run_process(plus({program()}, words), path()); }
  double validation_loss(const Words& of_model) const {
    const ProcessResult run = command(plus({"eval", "recipe.yaml", "--json"}, of_model));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return parse_json(run.out, "eval")["val_loss"];
  }
};

/// A file of weights with a bit of each 512th byte of its second half changed, as training changes weights
/// all over.
std::string with_other_weights(std::string bytes) {
  for (std::size_t i = bytes.size() - 1; i > bytes.size() / 2; i -= 512)
    bytes[i] = static_cast<char>(bytes[i] ^ 1);
  return bytes;
}

const Words lora{"peft.target_modules=['*_proj','*.mixer.experts','lm_head']", "peft.dim=4",
                 "peft.dropout=0.1"};

}  // namespace

TEST_CASE("finetune: a run with adapters resumes with its bits, and its checkpoints serve as models") {
  const FinetuneDir dir;
  const std::map<std::string, std::string> before = contents(dir / "base");
  const ProcessResult straight = dir.train(FinetuneDir::on_base(lora));
  CAPTURE(straight.err);
  REQUIRE(straight.exit_code == 0);
  CHECK(straight.err.find("peft.target_modules: '*_proj' fits 10 modules") != std::string::npos);
  CHECK(contents(dir / "base") == before);
  const fs::path last = dir / "straight" / "epoch_0_step_3";
  CHECK(fs::exists(last / "model" / "adapter_config.json"));
  CHECK_FALSE(fs::exists(last / "model" / "config.json"));
  const ProcessResult inspected = dir.command({"inspect", "straight"});
  CHECK(inspected.exit_code == 0);
  CHECK(inspected.out.find(" files intact") != std::string::npos);

  const Words resumed = plus(lora, {"checkpoint.checkpoint_dir=resumed"});
  fs::create_directories(dir / "resumed");
  fs::copy(dir / "straight" / "epoch_0_step_1", dir / "resumed" / "epoch_0_step_1",
           fs::copy_options::recursive);
  const ProcessResult second = dir.train(FinetuneDir::on_base(resumed));
  CAPTURE(second.err);
  REQUIRE(second.exit_code == 0);
  CHECK(second.err.find("resumed from") != std::string::npos);
  CHECK(differences(last, dir / "resumed" / "epoch_0_step_3") == "");

  // The run's own validation, the checkpoint as a model, model and adapter, and the merged model.
  const double logged = read_jsonl(dir / "straight" / "validation.jsonl").back()["val_loss"],
               of_run = dir.validation_loss({"--model", "straight"});
  CHECK(of_run == logged);
  CHECK(dir.validation_loss({"--model", "base", "--adapter", "straight"}) == of_run);
  CHECK(dir.validation_loss({"--model", "base"}) != of_run);
  const ProcessResult merged = dir.command({"convert", "base", "merged", "--adapter", "straight", "--merge"});
  CAPTURE(merged.err);
  REQUIRE(merged.exit_code == 0);
  CHECK(dir.validation_loss({"--model", "merged"}) == doctest::Approx(of_run).epsilon(1e-6));
  CHECK(dir.command({"generate", "--model", "straight", "--prompt", "Once", "--max-new-tokens", "3"})
            .exit_code == 0);
  CHECK(dir.command({"convert", "straight", "other"}).err.find("want --merge") != std::string::npos);
  CHECK(dir.command({"convert", "base", "other", "--merge"}).err.find("want an adapter") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(dir / "other"));

  // From another place the adapter still means the same model, and damage of its file is seen before anything
  // is written.
  fs::create_directories(dir / "elsewhere");
  const ProcessResult elsewhere =
      run_process({program(), "convert", "../straight", "merged", "--merge"}, dir / "elsewhere");
  CAPTURE(elsewhere.err);
  CHECK(elsewhere.exit_code == 0);
  CHECK(slurp(dir / "elsewhere" / "merged" / "model.safetensors") ==
        slurp(dir / "merged" / "model.safetensors"));
  fs::copy(dir / "straight", dir / "damaged", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const fs::path weights = dir / "damaged" / "epoch_0_step_3" / "model" / "adapter_model.safetensors";
  std::string bytes = slurp(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  spit(weights, bytes);
  const ProcessResult damaged = dir.command({"convert", "damaged", "other", "--merge"});
  CHECK(damaged.exit_code == 2);
  CHECK(damaged.err.find("adapter_model.safetensors") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "other"));

  // Another run begins with the adapter; nothing is drawn anew.
  const ProcessResult from_adapter = dir.train(
      FinetuneDir::on_base({"peft.adapter_path=straight", "optimizer.lr=0", "optimizer.weight_decay=0",
                            "lr_scheduler=null", "checkpoint.checkpoint_dir=again"}));
  CAPTURE(from_adapter.err);
  REQUIRE(from_adapter.exit_code == 0);
  CHECK(slurp(dir / "again" / "epoch_0_step_3" / "model" / "adapter_model.safetensors") ==
        slurp(last / "model" / "adapter_model.safetensors"));
}

TEST_CASE(
    "finetune: an adapter that learns turns knows their end: generate stops there, and the merged model") {
  const FinetuneDir dir;
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += cat(R"({"messages": [{"role": "user", "content": "Word )", i, R"("}, {"role": "assistant", )",
                 R"("content": "It is )", i % 7, "\"}]}\n");
  spit(dir / "chats.jsonl", lines);
  fs::copy(source_path("data/samples/tokenizer"), dir / "tokenizer", fs::copy_options::recursive);
  spit(dir / "tokenizer" / "chat_template.jinja",
       "{% for m in messages %}{{ m.role }}: {{ m.content }}<unk>\n{% endfor %}");
  const ProcessResult run = dir.train(FinetuneDir::on_base(
      plus(lora, {"dataset={_target_: messages, path: chats.jsonl}", "validation_dataset=null",
                  "packed_sequence.packed_sequence_size=0", "step_scheduler.global_batch_size=2",
                  "tokenizer.pretrained_model_name_or_path=tokenizer"})));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const auto stops = [&](const std::string& model) {
    return read_json_file(dir / model / "generation_config.json")["eos_token_id"]
        .get<std::vector<std::int64_t>>();
  };
  const std::vector<std::int64_t> with_end_of_turn{2, 3};
  CHECK(stops("straight/LATEST/model") == with_end_of_turn);
  const std::string warning = "the chat template ends the assistant's turns with";
  CHECK(run.err.find(warning) != std::string::npos);
  // A run that begins with this adapter knows it from the start.
  const ProcessResult second = dir.train(
      FinetuneDir::on_base({"dataset={_target_: messages, path: chats.jsonl}", "validation_dataset=null",
                            "packed_sequence.packed_sequence_size=0", "step_scheduler.global_batch_size=2",
                            "tokenizer.pretrained_model_name_or_path=tokenizer", "peft.adapter_path=straight",
                            "checkpoint.checkpoint_dir=second"}));
  CAPTURE(second.err);
  REQUIRE(second.exit_code == 0);
  CHECK(second.err.find(warning) == std::string::npos);
  CHECK(stops("second/LATEST/model") == with_end_of_turn);
  const ProcessResult merged = dir.command({"convert", "straight", "merged", "--merge"});
  CAPTURE(merged.err);
  REQUIRE(merged.exit_code == 0);
  CHECK(stops("merged") == with_end_of_turn);
  CHECK(slurp(dir / "merged" / "chat_template.jinja") == slurp(dir / "tokenizer" / "chat_template.jinja"));

  const auto ids = [&](const Words& model) {
    const ProcessResult text =
        dir.command(plus({"generate", "--json", "--max-new-tokens", "6", "--prompt", "Bees make"}, model));
    CAPTURE(text.err);
    REQUIRE(text.exit_code == 0);
    return parse_json(text.out, "generate")["ids"].get<std::vector<std::int64_t>>();
  };
  const auto all = ids({"--model", "straight"});
  REQUIRE(!all.empty());
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "stopping", fs::copy_options::recursive);
  spit(dir / "stopping" / "generation_config.json", cat("{\"eos_token_id\": [2, ", all[0], "]}"));
  CHECK(ids({"--model", "stopping"}).empty());
  CHECK(ids({"--model", "base", "--adapter", "stopping"}).empty());
}

// Every id is a stop id of the adapter, so that each answer is empty; the base has other ones.
TEST_CASE(
    "finetune: a run that begins with an adapter stops answers as eval does with it, and saves its ids") {
  const FinetuneDir dir;
  REQUIRE(dir.train(FinetuneDir::on_base(plus(lora, {"validation_dataset=null"}))).exit_code == 0);
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "silent", fs::copy_options::recursive);
  Json stops = Json::array();
  for (int id = 0; id < 2048; ++id) stops.push_back(id);
  const std::string silent = dump_json({{"eos_token_id", stops}});
  spit(dir / "silent" / "generation_config.json", silent);
  spit(dir / "base" / "generation_config.json", R"({"eos_token_id": 2})");
  const Words evaluation{"evaluation.predictions_path=said.json", "evaluation.max_new_tokens=4"};
  const auto said_by = [&](const ProcessResult& of) {
    must_run(of);
    return read_json_file(dir / "said.json");
  };
  const auto in_run = [&](const std::string& adapter) {
    return said_by(dir.train(FinetuneDir::on_base(
        plus(evaluation, {"peft.adapter_path=" + adapter, "checkpoint.checkpoint_dir=of_" + adapter,
                          "evaluation.squad_metrics=true", "step_scheduler.max_steps=1", "lr_scheduler=null",
                          "optimizer.lr=0", "optimizer.weight_decay=0"}))));
  };
  const auto in_eval = [&](const std::string& adapter) {
    return said_by(dir.command({"eval", "recipe.yaml", "--model", "base", "--adapter", adapter, "--set",
                                evaluation[0], "--set", evaluation[1]}));
  };
  const Json empty = in_eval("silent"), spoken = in_eval("straight");
  for (const auto& [question, answer] : empty.items()) CHECK(answer == "");
  REQUIRE(spoken != empty);
  CHECK(in_run("silent") == empty);
  CHECK(in_run("straight") == spoken);
  CHECK(slurp(dir / "of_silent" / "LATEST" / "model" / "generation_config.json") == silent);
  CHECK(slurp(dir / "of_straight" / "LATEST" / "model" / "generation_config.json") ==
        slurp(dir / "base" / "generation_config.json"));
}

TEST_CASE("finetune: adapters go with the model that they were trained on, and with no other one") {
  const FinetuneDir dir;
  fs::create_directory_symlink("base", dir / "link");
  const Words from_link = plus(
      lora, {"model.pretrained_model_name_or_path=link", "step_scheduler.max_steps=2", "lr_scheduler=null"});
  const ProcessResult first = dir.train(FinetuneDir::on_base(from_link));
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  const fs::path adapter = dir / "straight" / "epoch_0_step_1" / "model";
  CHECK(read_json_file(adapter / "adapter_config.json")["base_model_name_or_path"] ==
        fs::canonical(dir / "base").string());
  CHECK(fs::exists(adapter / "base_model.json"));
  const double loss = dir.validation_loss({"--model", "straight"});

  // The link leads to a copy: only the name is another. Then to a model with another weight.
  fs::copy(dir / "base", dir / "other");
  fs::remove(dir / "link");
  fs::create_directory_symlink("other", dir / "link");
  const ProcessResult copied =
      dir.command({"eval", "recipe.yaml", "--model", "link", "--adapter", "straight"});
  CHECK(copied.exit_code == 0);
  CHECK(copied.err.find("whose files have the same sizes and sums") != std::string::npos);
  const std::string bytes = with_other_weights(slurp(dir / "other" / "model.safetensors"));
  spit(dir / "other" / "model.safetensors", bytes);
  const std::string refusal = "base_model.json: want the model that the adapter was trained on";
  for (const Words& words :
       {Words{"eval", "recipe.yaml", "--model", "link", "--adapter", "straight"},
        Words{"generate", "--model", "link", "--adapter", "straight", "--prompt", "Once"},
        Words{"convert", "link", "merged", "--adapter", "straight", "--merge"}}) {
    CAPTURE(words[0]);
    const ProcessResult run = dir.command(words);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(refusal) != std::string::npos);
  }
  CHECK_FALSE(fs::exists(dir / "merged"));
  const ProcessResult resumed =
      dir.train(FinetuneDir::on_base(plus(from_link, {"step_scheduler.max_steps=3"})));
  CAPTURE(resumed.err);
  CHECK(resumed.exit_code == 2);
  CHECK(resumed.err.find("cannot resume from") != std::string::npos);
  CHECK(resumed.err.find(refusal) != std::string::npos);
  const ProcessResult begun = dir.train(
      FinetuneDir::on_base(plus(from_link, {"peft.adapter_path=straight", "checkpoint.checkpoint_dir=new"})));
  CHECK(begun.exit_code == 2);
  CHECK(begun.err.find(refusal) != std::string::npos);
  CHECK(dir.validation_loss({"--model", "straight"}) == loss);  // by its record, not by the link
  CHECK(dir.command({"inspect", "straight"}).exit_code == 0);

  // The way out, and the adapters of others.
  fs::copy(adapter, dir / "free");
  fs::remove(dir / "free" / "base_model.json");
  CHECK(dir.command({"eval", "recipe.yaml", "--model", "link", "--adapter", "free"}).exit_code == 0);

  spit(dir / "base" / "model.safetensors", bytes);
  const ProcessResult inspected = dir.command({"inspect", "straight"});
  CHECK(inspected.exit_code == 2);
  CHECK(inspected.out.find("which has changed since: model.safetensors has other weights") !=
        std::string::npos);
}

TEST_CASE("finetune: adapters on two ranks, and a checkpoint of one rank on two") {
  const FinetuneDir dir;
  REQUIRE(dir.train(FinetuneDir::on_base(lora)).exit_code == 0);
  const auto on_two = [&](const Words& more) {
    return run_process(mpirun(2, RunDir::train_command(FinetuneDir::on_base(plus(lora, more)))), dir.path());
  };
  fs::create_directories(dir / "two");
  fs::copy(dir / "straight" / "epoch_0_step_1", dir / "two" / "epoch_0_step_1", fs::copy_options::recursive);
  const ProcessResult run = on_two(
      {"checkpoint.checkpoint_dir=two", "distributed.tp_size=2", "distributed.sequence_parallel=true"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const double one = read_jsonl(dir / "straight" / "training.jsonl").back()["loss"],
               two = read_jsonl(dir / "two" / "training.jsonl").back()["loss"];
  CHECK(two == doctest::Approx(one).epsilon(1e-5));

  const ProcessResult others = on_two({"checkpoint.checkpoint_dir=others", "peft.target_modules=null",
                                       "peft.exclude_modules=['*.out_proj']", "step_scheduler.max_steps=2"});
  CAPTURE(others.err);
  REQUIRE(others.exit_code == 0);
  const std::string warning = "warning: peft.exclude_modules adapts every other linear layer, lm_head too";
  CHECK(others.err.find("[rank 0] " + warning) != std::string::npos);
  CHECK(others.err.find(warning) == others.err.rfind(warning));
}

TEST_CASE("finetune: frozen weights stay out of checkpoints that say where they are") {
  const FinetuneDir dir;
  const Words freeze{"freeze=['model.layers.0','*.embeddings']", "checkpoint.save_frozen=false"};
  const ProcessResult run = dir.train(FinetuneDir::on_base(freeze));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("freeze: 'model.layers.0' fits 9 tensors") != std::string::npos);
  const fs::path model = dir / "straight" / "epoch_0_step_3" / "model";
  CHECK(fs::exists(model / "frozen_weights.json"));
  CHECK(fs::file_size(model / "model.safetensors") <
        fs::file_size(dir / "base" / "model.safetensors") * 3 / 4);
  const double loss = dir.validation_loss({"--model", "straight"});
  CHECK(loss == read_jsonl(dir / "straight" / "validation.jsonl").back()["val_loss"]);
  REQUIRE(dir.command({"convert", "straight", "whole"}).exit_code == 0);
  CHECK_FALSE(fs::exists(dir / "whole" / "frozen_weights.json"));
  CHECK(dir.validation_loss({"--model", "whole"}) == loss);

  // The same run with everything in its checkpoints, and one that was interrupted.
  REQUIRE(dir.train(FinetuneDir::on_base({freeze[0], "checkpoint.checkpoint_dir=all"})).exit_code == 0);
  CHECK(slurp(dir / "whole" / "model.safetensors") ==
        slurp(dir / "all" / "epoch_0_step_3" / "model" / "model.safetensors"));
  fs::create_directories(dir / "resumed");
  fs::copy(dir / "straight" / "epoch_0_step_1", dir / "resumed" / "epoch_0_step_1",
           fs::copy_options::recursive);
  const ProcessResult resumed =
      dir.train(FinetuneDir::on_base(plus(freeze, {"checkpoint.checkpoint_dir=resumed"})));
  CAPTURE(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(differences(dir / "straight" / "epoch_0_step_3", dir / "resumed" / "epoch_0_step_3") == "");

  // Another model in the place of the one that has the frozen weights.
  spit(dir / "base" / "model.safetensors", with_other_weights(slurp(dir / "base" / "model.safetensors")));
  const std::string other =
      "frozen_weights.json: " + fs::canonical(dir / "base").string() +
      ", which has the weights that were not trained, is another model than the run had";
  const ProcessResult warned = dir.command({"generate", "--model", "straight", "--prompt", "Once"});
  CHECK(warned.exit_code == 0);
  CHECK(warned.err.find("warning: ") != std::string::npos);
  CHECK(warned.err.find(other) != std::string::npos);
  const ProcessResult inspected = dir.command({"inspect", "straight"});
  CHECK(inspected.exit_code == 2);
  CHECK(inspected.out.find(other) != std::string::npos);
  const ProcessResult converted = dir.command({"convert", "straight", "again"});
  CHECK(converted.exit_code == 2);
  CHECK(converted.err.find(other) != std::string::npos);
  const ProcessResult refused = dir.train(FinetuneDir::on_base(plus(freeze, {"step_scheduler.max_steps=5"})));
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find(other) != std::string::npos);

  fs::rename(dir / "base", dir / "gone");
  const ProcessResult lost = dir.command({"generate", "--model", "straight", "--prompt", "Once"});
  CHECK(lost.exit_code == 2);
  CHECK(lost.err.find("the weights that were not trained are there") != std::string::npos);
}

TEST_CASE(
    "finetune: depths of multi-token prediction are adapted, merged, and kept where they are frozen or "
    "carried") {
  const FinetuneDir dir;
  const Words depths{"model.num_nextn_predict_layers=1", "model.mtp_loss_scaling_factor=0.3"};
  REQUIRE(dir.train(plus({"checkpoint.checkpoint_dir=ahead", "step_scheduler.max_steps=2",
                          "lr_scheduler=null", "validation_dataset=null"},
                         depths))
              .exit_code == 0);
  fs::remove_all(dir / "base");
  fs::rename(dir / "ahead" / "epoch_0_step_1" / "model", dir / "base");
  const auto values = [&](const fs::path& model, const std::string& prefix) {
    std::map<std::string, std::vector<double>> found;
    const SafetensorsFile file(dir / model / "model.safetensors");
    for (const StoredTensor& t : file.tensors())
      if (t.name.starts_with(prefix)) found[t.name] = file.tensor(t).to_vector();
    return found;
  };
  const auto of_base = values("base", "mtp.");
  CHECK(of_base.size() > 10);

  const ProcessResult adapted =
      dir.train(FinetuneDir::on_base(plus(depths, {"peft.match_all_linear=true", "peft.dim=4"})));
  CAPTURE(adapted.err);
  REQUIRE(adapted.exit_code == 0);
  const ProcessResult inspected = dir.command({"inspect", "straight"});
  CAPTURE(inspected.out);
  CHECK(inspected.exit_code == 0);
  const ProcessResult merged = dir.command({"convert", "straight", "merged", "--merge"});
  CAPTURE(merged.err);
  REQUIRE(merged.exit_code == 0);
  CHECK(merged.err.find("not read") == std::string::npos);
  const auto of_merged = values("merged", "mtp.");
  CHECK(of_merged.size() == of_base.size());
  CHECK(of_merged.at("mtp.layers.0.eh_proj.weight") != of_base.at("mtp.layers.0.eh_proj.weight"));
  CHECK(of_merged.at("mtp.layers.0.enorm.weight") == of_base.at("mtp.layers.0.enorm.weight"));

  // A run that does not train the depths carries them, also where frozen weights stay out of checkpoints.
  REQUIRE(dir.train(FinetuneDir::on_base({"freeze=['model.layers.0']", "checkpoint.save_frozen=false",
                                          "checkpoint.checkpoint_dir=frozen"}))
              .exit_code == 0);
  REQUIRE(dir.command({"convert", "frozen", "whole"}).exit_code == 0);
  CHECK(values("whole", "mtp.") == of_base);
}
