#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/mpirun.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// What the rows of a run are made of: data files, tokenizer, chat templates, and the moment that templates
// show.

namespace {

namespace fs = std::filesystem;

/// Writes every question after the time of day, so that another moment makes other rows, of other lengths.
constexpr const char* with_time =
    "{% for m in messages %}{{ strftime_now('%H:%M:%S.%f %d %B') }} {{ m.content }}\n{% endfor %}";

/// Conversations as lines, and a tokenizer of the directory's own.
class ChatDir : public RunDir {
 public:
  ChatDir() {
    fs::copy(*this / "samples/tokenizer", *this / "tokenizer", fs::copy_options::recursive);
    spit(*this / "template.jinja", with_time);
    write_rows("row");
  }
  /// As many bytes for every word of three letters.
  void write_rows(const std::string& word) const {
    std::string lines;
    for (int i = 0; i < 48; ++i)
      lines += cat(R"({"messages": [{"role": "user", "content": "Which )", word, i % 10,
                   R"( is this?"}, {"role": "assistant", "content": "It is )", i % 7, "\"}]}\n");
    spit(*this / "rows.jsonl", lines);
  }
  static Words overrides(const Words& more) {
    return plus({"dataset={_target_: messages, path: rows.jsonl, chat_template: template.jinja}",
                 "validation_dataset=null", "step_scheduler.val_every_steps=null",
                 "tokenizer.pretrained_model_name_or_path=tokenizer", "step_scheduler.max_steps=4",
                 "step_scheduler.ckpt_every_steps=2", "step_scheduler.local_batch_size=1"},
                more);
  }
  ProcessResult run(const Words& more, const Words& environment = {}, int ranks = 1) const {
    const Words command = train_command(overrides(more));
    if (ranks == 1) return run_process(environment.empty() ? command : plus(environment, command), path());
    return run_process(mpirun(ranks, command, plus(environment, command)), path());
  }
  std::vector<double> losses(const std::string& folder) const {
    std::vector<double> losses;
    for (const Json& line : read_jsonl(*this / folder / "training.jsonl")) losses.push_back(line["loss"]);
    return losses;
  }
};

const Words from_the_middle{"checkpoint.checkpoint_dir=resumed",
                            "checkpoint.restore_from=straight/epoch_0_step_1"};

}  // namespace

TEST_CASE(
    "resume: templates show the moment of the first start, in packed and streamed rows, in another zone "
    "too") {
  for (const Words& rows : {Words{}, Words{"dataset.streaming=true"},
                            Words{"dataset.streaming=true", "packed_sequence.packed_sequence_size=0"}}) {
    CAPTURE(rows.size());
    const ChatDir dir;
    const ProcessResult straight = dir.run(rows);
    CAPTURE(straight.err);
    REQUIRE(straight.exit_code == 0);
    CHECK(straight.err.find("as the present moment") != std::string::npos);
    const ProcessResult resumed = dir.run(plus(rows, from_the_middle), {"env", "TZ=Asia/Tokyo"});
    CAPTURE(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    const std::vector<double> all = dir.losses("straight"), rest = dir.losses("resumed");
    REQUIRE(all.size() == 4);
    CHECK(rest == std::vector<double>(all.begin() + 2, all.end()));
    CHECK(contents(dir / "straight/LATEST") == contents(dir / "resumed/LATEST"));
  }
}

TEST_CASE("ranks: the moment that templates show is that of rank 0, whatever the zones of the ranks") {
  const ChatDir dir;
  REQUIRE(dir.run({}).exit_code == 0);
  const ProcessResult fresh = dir.run({"checkpoint.checkpoint_dir=two"}, {"env", "TZ=Asia/Tokyo"}, 2);
  CAPTURE(fresh.err);
  CHECK(fresh.exit_code == 0);  // the ranks compare their rows
  const ProcessResult resumed = dir.run(from_the_middle, {"env", "TZ=Asia/Tokyo"}, 2);
  CAPTURE(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  const std::vector<double> all = dir.losses("straight"), rest = dir.losses("resumed");
  REQUIRE(rest.size() == 2);
  for (std::size_t i = 0; i < rest.size(); ++i) CHECK(rest[i] == doctest::Approx(all[i + 2]).epsilon(1e-5));
}

TEST_CASE("resume: rows that are made of something else are refused by name, with the way out, which works") {
  const ChatDir dir;
  const ProcessResult first = dir.run({});
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  const auto refused = [&](const std::string& named) {
    CAPTURE(named);
    const ProcessResult run = dir.run(from_the_middle);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(named) != std::string::npos);
    CHECK(run.err.find("checkpoint.load_data=false") != std::string::npos);
    const ProcessResult checked =
        run_process(plus(dir.train_command(dir.overrides(from_the_middle)), {"--check"}), dir.path());
    CHECK(checked.exit_code == 2);
    CHECK(checked.err.find(named) != std::string::npos);
  };
  const auto changed = [&](const std::string& name, const std::string& text, const std::string& named) {
    const std::string before = slurp(dir / name);
    spit(dir / name, text);
    refused(named);
    spit(dir / name, before);
  };
  dir.write_rows("sum");
  refused("rows.jsonl (data file 1) has changed since the checkpoint was written: ");
  const ProcessResult anew = dir.run(plus(from_the_middle, {"checkpoint.load_data=false"}));
  CAPTURE(anew.err);
  CHECK(anew.exit_code == 0);
  fs::remove_all(dir / "resumed");
  {  // A checkpoint of an older program, without sums.
    fs::copy(dir / "straight/epoch_0_step_1", dir / "old", fs::copy_options::recursive);
    fs::remove(dir / "old/checksums.json");
    Json state = read_json_file(dir / "old/state.json");
    state.erase("origin");
    state.erase("rows");
    state.erase("moment");
    spit(dir / "old/state.json", dump_json(state));
    const ProcessResult old = dir.run({"checkpoint.checkpoint_dir=resumed", "checkpoint.restore_from=old"});
    CAPTURE(old.err);
    CHECK(old.exit_code == 0);
    fs::remove_all(dir / "resumed");
  }
  dir.write_rows("row");
  changed("template.jinja", std::string(with_time) + "{# other #}",
          "template.jinja (chat template) has changed");
  changed("tokenizer/tokenizer.json", slurp(dir / "tokenizer/tokenizer.json") + "\n",
          "tokenizer/tokenizer.json (tokenizer.json) has changed");
  spit(dir / "tokenizer/added_tokens.json", "{}");
  refused("tokenizer/added_tokens.json (added_tokens.json) as well, those of the checkpoint were not");
  fs::remove(dir / "tokenizer/added_tokens.json");
  // Files may move.
  fs::rename(dir / "rows.jsonl", dir / "moved.jsonl");
  const ProcessResult moved = dir.run(plus(from_the_middle, {"dataset.path=moved.jsonl"}));
  CAPTURE(moved.err);
  CHECK(moved.exit_code == 0);
}

TEST_CASE("resume: validation rows that are made of something else are warned of by name") {
  const ChatDir dir;
  fs::copy(dir / "rows.jsonl", dir / "val.jsonl");
  const Words validated{
      "validation_dataset={_target_: messages, path: val.jsonl, chat_template: template.jinja}",
      "step_scheduler.val_every_steps=2"};
  const ProcessResult first = dir.run(validated);
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  const Json state = read_json_file(dir / "straight/epoch_0_step_1/state.json");
  CHECK(state["validation_rows"]["default"].size() == state["rows"].size());
  const auto resume = [&](const Words& more, const std::string& warning) {
    const Words all = plus(plus(validated, from_the_middle), more);
    fs::remove_all(dir / "resumed");
    const ProcessResult checked =
        run_process(plus(dir.train_command(dir.overrides(all)), {"--check"}), dir.path());
    for (const ProcessResult& run : {checked, dir.run(all)}) {
      CAPTURE(run.err);
      CHECK(run.exit_code == 0);
      if (warning.empty())
        CHECK(run.err.find("has changed since the checkpoint") == std::string::npos);
      else
        CHECK(run.err.find(warning) != std::string::npos);
    }
  };
  resume({}, "");
  spit(dir / "val.jsonl", slurp(dir / "val.jsonl") + "\n");
  const std::string warning =
      "validation_dataset: val.jsonl (data file 1) has changed since the checkpoint was written: ";
  resume({}, warning);
  resume({"checkpoint.load_data=false"}, warning);
  resume({"checkpoint.finetune=true"}, "");
}

TEST_CASE("ranks: one whose rows are made of something else ends the job, which names that and the ranks") {
  const ChatDir dir;
  const auto reset = [&] {
    fs::remove_all(dir / "other");
    fs::create_directories(dir / "other");
    for (const char* name : {"model", "tokenizer"})
      fs::copy(dir / name, dir / "other" / name, fs::copy_options::recursive);
    for (const char* name : {"rows.jsonl", "template.jinja", "recipe.yaml"})
      fs::copy(dir / name, dir / "other" / name);
  };
  fs::create_directories(dir / "tokenizer/additional_chat_templates");
  spit(dir / "tokenizer/chat_template.jinja", "{{ messages[0].content }}{{ messages[1].content }}");
  spit(dir / "tokenizer/additional_chat_templates/tool_use.jinja", "{{ messages[1].content }}");
  // As many rows as take more than the pieces of sampled_sum().
  std::string rows;
  for (int i = 0; i < 24'000; ++i)
    rows += cat(R"({"messages": [{"role": "user", "content": "Which )", i, R"( is this? Something else?"}, )",
                R"({"role": "assistant", "content": "It is )", i % 7, "\"}]}\n");
  spit(dir / "rows.jsonl", rows);
  const auto differs = [&](const Words& more, const std::string& file, const std::string& text,
                           const std::string& message) {
    CAPTURE(file);
    reset();
    spit(dir / "other" / file, text);
    const Words command = dir.train_command(
        dir.overrides(plus({"checkpoint.enabled=false", "packed_sequence.packed_sequence_size=0",
                            "dataset.limit_dataset_samples=100"},
                           more)));
    const auto run =
        run_process(mpirun(3, command, plus({"env", "-C", (dir / "other").string()}, command)), dir.path());
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(message) != std::string::npos);
    CHECK(run.err.find("rank 2 has ") != std::string::npos);
    CHECK(run.err.find("ranks 0 and 1 have ") != std::string::npos);
  };
  const Words batch{"step_scheduler.global_batch_size=3"};
  differs(batch, "template.jinja", std::string(with_time) + " ",
          "dataset: template.jinja (chat template) is not the same on all ranks: ");
  differs(
      batch, "tokenizer/special_tokens_map.json", slurp(dir / "tokenizer/special_tokens_map.json") + "\n",
      "dataset: tokenizer/special_tokens_map.json (special_tokens_map.json) is not the same on all ranks: ");
  differs({"step_scheduler.global_batch_size=3", "dataset.chat_template=tool_use"},
          "tokenizer/additional_chat_templates/tool_use.jinja", "{{ messages[1].content }}!",
          "dataset: tokenizer/additional_chat_templates/tool_use.jinja (chat template) is not the same on "
          "all ranks: ");
  std::string one_letter = rows;
  REQUIRE(rows.size() > (std::size_t{2} << 20));
  one_letter[rows.find("Something", rows.size() / 2 + (std::size_t{40} << 10))] = 's';
  differs(batch, "rows.jsonl", one_letter,
          "dataset: rows.jsonl (data file 1) is not the same on all ranks: ");
}
