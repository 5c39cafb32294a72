#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/datasets/squad_file.h"
#include "data/datasets/text.h"
#include "tests/support/compare.h"
#include "tests/support/mpirun.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Whole runs whose rows are read and tokenised when they are used.

namespace {

/// The sample questions as flat rows, one on a line.
void write_question_lines(const RunDir& dir) {
  std::string lines;
  for (const SquadQuestion& q : read_squad(dir / "samples/train.json")) {
    Json answers = Json::array();
    for (const SquadAnswer& a : q.answers)
      answers.push_back(
          {{"text", a.text},
           {"answer_start", character_offsets(q.context.substr(0, a.begin.value())).size() - 1}});
    lines += dump_json({{"id", q.id}, {"context", q.context}, {"question", q.question}, {"answers", answers}},
                       -1) +
             "\n";
  }
  spit(dir / "questions.jsonl", lines);
}

const Words of_lines{"dataset.dataset_name=questions.jsonl"};
const Words streamed = plus(of_lines, {"dataset.streaming=true", "checkpoint.checkpoint_dir=streamed"});

}  // namespace

TEST_CASE("streaming: a run has the bits of one with its rows in memory, also when it is resumed") {
  for (const Words& packing : {Words{}, Words{"packed_sequence.packed_sequence_size=0"}}) {
    CAPTURE(packing.size());
    const RunDir dir;
    write_question_lines(dir);
    REQUIRE(dir.train(plus(of_lines, packing)).exit_code == 0);
    const ProcessResult run = dir.train(plus(streamed, packing));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const auto last = "LATEST";
    CHECK(differences(dir / "straight" / last, dir / "streamed" / last) == "");
    CHECK(repeatable(dir / "streamed/training.jsonl") == repeatable(dir / "straight/training.jsonl"));
    CHECK(dir.train(plus(plus(streamed, packing), {"checkpoint.checkpoint_dir=resumed",
                                                   "checkpoint.restore_from=streamed/epoch_0_step_4"}))
              .exit_code == 0);
    CHECK(differences(dir / "straight" / last, dir / "resumed" / last) == "");
  }
}

TEST_CASE("streaming: two ranks tokenise the rows together, and train as one rank does") {
  const RunDir dir;
  write_question_lines(dir);
  const Words two_replicas{"step_scheduler.local_batch_size=1"};
  const ProcessResult memory =
      run_process(mpirun(2, dir.train_command(plus(of_lines, two_replicas))), dir.path());
  const ProcessResult run =
      run_process(mpirun(2, dir.train_command(plus(streamed, two_replicas))), dir.path());
  CAPTURE(memory.err);
  CAPTURE(run.err);
  REQUIRE(memory.exit_code == 0);
  REQUIRE(run.exit_code == 0);
  CHECK(differences(dir / "straight/LATEST", dir / "streamed/LATEST") == "");
}
