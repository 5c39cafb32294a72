#include <functional>

#include "data/json/atomic_file.h"
#include "data/safetensors/reader.h"
#include "tests/bad_input/refused.h"
#include "tests/parallel/rank_runs.h"
#include "tests/support/mpirun.h"
#include "train/checkpoint/checksums.h"

using namespace nemocube;
using namespace nemocube::testing;

// Checkpoints of several ranks that are damaged, or put together from others: what a run, inspect and convert
// say.

namespace {

namespace fs = std::filesystem;

const char* const part_name = "optimizer-00001-of-00004.safetensors";

ProcessResult train(const fs::path& dir, int ranks, const std::string& runs, int steps,
                    const Words& more = {}) {
  const Words command = RunDir::train_command(
      plus({"step_scheduler.local_batch_size=1", cat("step_scheduler.max_steps=", steps),
            "step_scheduler.ckpt_every_steps=2", "step_scheduler.val_every_steps=2", "lr_scheduler=null",
            "checkpoint.checkpoint_dir=" + runs},
           more));
  return run_process(ranks == 1 ? command : mpirun(ranks, command), dir);
}

/// Runs of four ranks: "runs", saved after steps 2 and 4; "wide", of another model.
const RunDir& trained() {
  static const RunDir dir;
  static const bool done = [] {
    fs::copy(dir / "model", dir / "wide_model");
    Json config = read_json_file(dir / "wide_model" / "config.json");
    config["intermediate_size"] = 40;
    spit(dir / "wide_model" / "config.json", dump_json(config));
    const auto run = train(dir.path(), 4, "runs", 4),
               wide =
                   train(dir.path(), 4, "wide", 4, {"model.config.pretrained_model_name_or_path=wide_model"});
    CAPTURE(run.err);
    CAPTURE(wide.err);
    REQUIRE((run.exit_code == 0 && wide.exit_code == 0));
    return true;
  }();
  (void)done;
  return dir;
}

/// Somebody makes the sums fit the files.
void sum_again(const fs::path& checkpoint) {
  FileSums sums = *read_checksums(checkpoint);
  for (auto& [name, sum] : sums) sum = sum_of_file(checkpoint / name);
  write_checksums(checkpoint, sums);
}

void edit_json(const fs::path& file, const std::function<void(Json&)>& edit) {
  Json json = read_json_file(file);
  edit(json);
  spit(file, dump_json(json, -1));
}

std::string flipped(std::string text) {
  text[text.size() / 2] ^= 1;
  return text;
}

struct Damage {
  const char* what;
  std::function<void(const fs::path& checkpoint)> make;
  Words parts;  // of the message
};

std::vector<Damage> damages() {
  const fs::path other = trained() / "runs" / "epoch_0_step_1", wide = trained() / "wide" / "epoch_0_step_3";
  const auto index = [](const fs::path& c) { return c / "optim" / "index.json"; };
  std::vector<Damage> all;
  for (const std::string file :
       {"model/model.safetensors", "model/config.json", "optim/index.json", "state.json", "config.yaml"})
    all.push_back({"a flipped byte",
                   [file](const fs::path& c) { spit(c / file, flipped(slurp(c / file))); },
                   {file, "damaged: its CRC-32C is "}});
  const std::string part = cat("optim/", part_name);
  const auto sum_digit = [](const fs::path& c) {
    std::string text = slurp(c / checksums_file);
    char& digit = text[text.find("\"crc32c\": \"") + 11];
    digit = digit == '0' ? '1' : '0';
    spit(c / checksums_file, text);
  };
  const auto copy_part = [=](const fs::path& from, const fs::path& c) {
    fs::copy_file(from / part, c / part, fs::copy_options::overwrite_existing);
  };
  const auto edit_index = [=](const std::function<void(Json&)>& edit) {
    return [=](const fs::path& c) {
      edit_json(index(c),
                [&](Json& json) { edit(json["tensors"]["exp_avg.backbone.embeddings.weight"]["parts"]); });
      sum_again(c);
    };
  };
  const std::vector<Damage> more{
      {"a flipped byte",
       [=](const fs::path& c) { spit(c / part, flipped(slurp(c / part))); },
       {part, "CRC-32C"}},
      {"a flipped sum", sum_digit, {"CRC-32C"}},
      {"a part is missing", [=](const fs::path& c) { fs::remove(c / part); }, {part, "cannot open"}},
      {"a part is cut off",
       [=](const fs::path& c) { fs::resize_file(c / part, 1000); },
       {part, "damaged: has 1000 bytes, was written with "}},
      {"a part of an earlier step", [=](const fs::path& c) { copy_part(other, c); }, {part, "damaged: "}},
      {"a part of another model", [=](const fs::path& c) { copy_part(wide, c); }, {part, "damaged: "}},
      // With sums that fit.
      {"a part of another model, summed again",
       [=](const fs::path& c) {
         copy_part(wide, c);
         sum_again(c);
       },
       {part_name, "index.json"}},
      {"a part is missing, and its sum",
       [=](const fs::path& c) {
         fs::remove(c / part);
         FileSums sums = *read_checksums(c);
         sums.erase(part);
         write_checksums(c, sums);
       },
       {part, "cannot open"}},
      {"the index names a part twice",
       [=](const fs::path& c) {
         std::string text = slurp(index(c));
         const std::string name = cat('"', part_name, "\":");
         text.insert(text.find(name), name + "{\"shape\":[1]},");
         spit(index(c), text);
         sum_again(c);
       },
       {"index.json", part_name, "twice"}},
      {"the index leaves a part out",
       edit_index([](Json& parts) { parts.erase(part_name); }),
       {part_name, "holds 'exp_avg.backbone.embeddings.weight'", "index.json does not name"}},
      {"the index leaves a file out",
       [=](const fs::path& c) {
         fs::copy_file(c / part, c / "optim" / "more.safetensors");
         sum_again(c);
       },
       {"more.safetensors", "which", "index.json does not name"}},
      {"the index gives a part another range",
       edit_index([](Json& parts) {
         for (Json& end : parts[part_name]["flat"]) end = end.get<std::int64_t>() - 1;
       }),
       {"index.json", "'exp_avg.backbone.embeddings.weight'", part_name, "wants another part"}},
      {"the index gives a part another length",
       edit_index([](Json& parts) {
         Json& begin = parts[part_name]["flat"][0];
         begin = begin.get<std::int64_t>() + 1;
       }),
       {"index.json", "'exp_avg.backbone.embeddings.weight'", part_name, "elements"}},
      {"the index gives all parts another shape",
       edit_index([](Json& parts) {
         for (auto& item : parts) item["shape"][0] = item["shape"][0].get<std::int64_t>() + 1;
       }),
       {"index.json", "'exp_avg.backbone.embeddings.weight'"}},
      {"the index names a file elsewhere",
       edit_index([](Json& parts) { parts["../optim/x.safetensors"] = parts[part_name]; }),
       {"index.json", "exp_avg.backbone.embeddings.weight", "a file of the same directory"}},
      {"a file and its place in the index are gone",
       [=](const fs::path& c) {
         fs::remove(c / part);
         FileSums sums = *read_checksums(c);
         sums.erase(part);
         write_checksums(c, sums);
         edit_json(index(c), [](Json& json) {
           for (auto& tensor : json["tensors"]) tensor["parts"].erase(part_name);
         });
         sum_again(c);
       },
       {"exp_avg"}},
  };
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE(
    "damaged checkpoints of ranks: refused on one and on four ranks and by inspect, and nothing changes") {
  const RunDir& dir = trained();
  for (const Damage& damage : damages()) {
    CAPTURE(std::string(damage.what));
    CAPTURE(damage.parts[0]);
    fs::remove_all(dir / "bad");
    fs::copy(dir / "runs", dir / "bad", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    damage.make(dir / "bad" / "epoch_0_step_3");
    const auto before = snapshot(dir / "bad");
    const auto check = [&](const ProcessResult& run) {
      CAPTURE(run.err);
      CHECK(run.exit_code == 2);
      CHECK(run.err.find("internal error") == std::string::npos);
      for (const std::string& part : damage.parts)
        CHECK_MESSAGE(run.err.find(part) != std::string::npos, "the message lacks: ", part);
      const auto after = snapshot(dir / "bad");
      CHECK((before == after));
    };
    for (const int ranks : {1, 4}) {
      CAPTURE(ranks);
      check(train(dir.path(), ranks, "bad", 6));
    }
    check(nemocube_in(dir.path(), {"inspect", "bad"}));
  }
}

// Metadata of the files name shapes and ranges, no run and no step, so checksums.json alone tells them apart.
TEST_CASE("damaged checkpoints of ranks: the part of another step is found by its sum") {
  const RunDir& dir = trained();
  fs::remove_all(dir / "bad");
  fs::copy(dir / "runs" / "epoch_0_step_3", dir / "bad", fs::copy_options::recursive);
  fs::copy_file(dir / "runs" / "epoch_0_step_1" / "optim" / part_name, dir / "bad" / "optim" / part_name,
                fs::copy_options::overwrite_existing);
  const ProcessResult run = nemocube_in(dir.path(), {"inspect", "bad"});
  CHECK(run.exit_code == 2);
  CHECK(run.out.find(cat("wrong: bad/optim/", part_name, ": damaged: its CRC-32C is ")) != std::string::npos);
  CHECK(run.err.find("1 of 13 files is damaged") != std::string::npos);
}

TEST_CASE("inspect: an intact checkpoint of four ranks, by every name, as text and as JSON") {
  const RunDir& dir = trained();
  for (const char* name : {"runs", "runs/", "runs/LATEST", "runs/epoch_0_step_3"}) {
    CAPTURE(name);
    const ProcessResult run = nemocube_in(dir.path(), {"inspect", name});
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(run.out.find("checkpoint  runs/epoch_0_step_3\n") != std::string::npos);
    CHECK(run.out.find("4 steps done (0 skipped), in epoch 0; 16 samples\n") != std::string::npos);
    CHECK(run.out.find("4 ranks (dp_shard 4, dp_replicate 1, ZeRO level 3)") != std::string::npos);
    CHECK(run.out.find("2, after epoch_0_step_1\n") != std::string::npos);
    CHECK(run.out.find("exp_avg 26 in F32, exp_avg_sq 26 in F32\n") != std::string::npos);
    CHECK(run.out.ends_with("all 13 files intact\n"));
  }
  const ProcessResult quick = nemocube_in(dir.path(), {"inspect", "runs", "--no-verify", "--tensors"});
  CHECK(quick.exit_code == 0);
  CHECK(quick.out.find("intact") == std::string::npos);
  CHECK(quick.out.find("\n  exp_avg_sq.lm_head.weight ") != std::string::npos);
  const ProcessResult json = nemocube_in(dir.path(), {"inspect", "runs", "--json"});
  REQUIRE(json.exit_code == 0);
  const Json facts = parse_json(json.out, "output");
  CHECK(facts["steps"] == 4);
  CHECK(facts["layout"]["dp_shard"] == 4);
  CHECK(facts["origin"]["serial"] == 2);
  CHECK(facts["losses"]["default"].is_number());
  CHECK(facts["verified"] == true);
  CHECK(facts["damage"].empty());
  const auto bytes_of = [&](const char* list) {
    std::int64_t bytes = 0;
    for (const Json& t : facts[list]) bytes += t["bytes"].get<std::int64_t>();
    return bytes;
  };
  const SafetensorsFile weights(dir / "runs" / "LATEST" / "model" / "model.safetensors");
  std::int64_t want = 0, trained_bytes = 0;
  for (const StoredTensor& t : weights.tensors()) {
    want += t.bytes();
    trained_bytes += t.name.ends_with("e_score_correction_bias") ? 0 : t.bytes();
  }
  CHECK(bytes_of("weights") == want);
  CHECK(bytes_of("optimizer") == 2 * trained_bytes);
  // What no sum covers: files that are not in checksums.json, and all of a program's that wrote none.
  fs::remove_all(dir / "old");
  fs::copy(dir / "runs" / "epoch_0_step_3", dir / "old", fs::copy_options::recursive);
  edit_json(dir / "old" / "state.json", [](Json& state) { state.erase("origin"); });
  fs::remove(dir / "old" / "checksums.json");
  fs::remove(dir / "old" / "optim" / "index.json");
  const ProcessResult old = nemocube_in(dir.path(), {"inspect", "old"});
  CAPTURE(old.err);
  CHECK(old.exit_code == 0);
  CHECK(old.out.find("an older program, on 4 ranks") != std::string::npos);
  CHECK(old.out.find("written without checksums") != std::string::npos);
  CHECK(old.out.find("exp_avg 26 in F32") != std::string::npos);
}

TEST_CASE("convert: a checkpoint's model with its bits, from intact files only") {
  const RunDir& dir = trained();
  const auto convert = [&](const char* from, const char* to) {
    fs::remove_all(dir / to);
    return nemocube_in(dir.path(), {"convert", from, to});
  };
  for (const char* from : {"runs", "runs/LATEST", "runs/epoch_0_step_3/model"}) {
    CAPTURE(from);
    const ProcessResult run = convert(from, "new");
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK((snapshot(dir / "new") == snapshot(dir / "runs" / "epoch_0_step_3" / "model")));
  }
  const ProcessResult said =
      nemocube_in(dir.path(), {"generate", "--model", "new", "--prompt", "The", "--max-new-tokens", "3"});
  CHECK(said.exit_code == 0);
  CHECK(said.out ==
        nemocube_in(dir.path(), {"generate", "--model", "runs", "--prompt", "The", "--max-new-tokens", "3"})
            .out);
  fs::remove_all(dir / "bad");
  fs::copy(dir / "runs" / "epoch_0_step_3", dir / "bad", fs::copy_options::recursive);
  spit(dir / "bad" / "state.json", "x");  // of which the model does not depend
  CHECK(convert("bad", "new").exit_code == 0);
  for (const char* file : {"tokenizer.json", "model.safetensors"}) {
    const fs::path path = dir / "bad" / "model" / file;
    spit(path, flipped(slurp(path)));
    for (const char* from : {"bad", "bad/model"}) {
      const ProcessResult run = convert(from, "new");
      CAPTURE(run.err);
      CHECK(run.exit_code == 2);
      CHECK(run.err.find("damaged: its CRC-32C is ") != std::string::npos);
      CHECK_FALSE(fs::exists(dir / "new"));
    }
  }
}
