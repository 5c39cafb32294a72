#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"
#include "train/commands/commands.h"
#include "train/commands/lines.h"

namespace nemocube {
namespace {

struct Options {
  std::filesystem::path tokenizer, input;
  bool special = false, decode = false;
};

std::vector<std::int64_t> read_ids(const std::string& line, std::int64_t vocab_size) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  require(json.is_array(), "want a JSON array of token ids");
  std::vector<std::int64_t> ids;
  for (const auto& item : json) {
    require(item.is_number_integer(), "want a JSON array of token ids");
    require(item >= 0 && item < vocab_size, "token id ", item.dump(), " is not in [0, ", vocab_size, ")");
    ids.push_back(item.get<std::int64_t>());
  }
  return ids;
}

void run(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  for_each_line(options.input, [&](const std::string& line) {
    if (options.decode)
      std::cout << tokenizer.decode(read_ids(line, tokenizer.vocab_size()), !options.special) << '\n';
    else
      std::cout << nlohmann::json(tokenizer.encode(line, options.special)).dump() << '\n';
  });
}

}  // namespace

void add_tokenize_command(Command& app) {
  auto o = std::make_shared<Options>();
  Command* command = app.add_subcommand("tokenize", "Token ids of each line of a file, and back");
  command->add_option("--tokenizer", o->tokenizer, "tokenizer.json or its directory")->required();
  command->add_option("--input", o->input, "text file, or - for standard input")->required();
  command->add_flag("--special", o->special,
                    "with the tokens the post-processor adds; --decode keeps special tokens");
  command->add_flag("--decode", o->decode, "input lines are JSON arrays of ids; print their text");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
