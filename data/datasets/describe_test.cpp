#include "data/datasets/describe.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "data/datasets/packing.h"
#include "data/datasets/squad.h"
#include "tests/support/paths.h"

using namespace nemocube;
using nemocube::testing::source_path;

TEST_CASE("describe: targets are marked, documents are separated, padding is left out") {
  const Tokenizer tokenizer = Tokenizer::load(source_path("data/samples/tokenizer"));
  const SquadOptions options;
  std::vector<TokenRow> rows;
  for (const char* answer : {"frog", "7 é"})
    rows.push_back(squad_row({answer, "Gé.", "Why?", {{answer, 0}}}, tokenizer, options));
  const RowOptions padded{.seq_length = 40, .padding = Padding::max_length};
  const auto data = std::make_shared<RowDataset>("data", rows, padded, 0);
  const std::string first = "Context: Gé. Question: Why? Answer:⟦ frog</s>⟧";
  const std::string second = "Context: Gé. Question: Why? Answer: ⟦7 é</s>⟧";
  CHECK(describe_supervision(data->sample(0), tokenizer) == first);
  CHECK(describe_supervision(data->sample(1), tokenizer) == second);
  const PackedDataset packs(data, {.pack_size = 80});
  CHECK(describe_supervision(packs.sample(0), tokenizer) == first + "‖" + second);
  CHECK(describe_supervision({}, tokenizer) == "");

  const Json row = inspect_row(data->sample(0), &tokenizer);
  CHECK(row["id"] == "frog");
  CHECK(row["text"] == first);
  CHECK(row["input_ids"].size() == 40);
  CHECK(row["labels"].size() == 40);
  CHECK(inspect_row(data->sample(0), nullptr)["text"].is_null());
}
