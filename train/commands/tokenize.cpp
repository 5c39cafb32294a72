#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"
#include "train/commands/commands.h"
#include "train/commands/lines.h"
#include "train/model_io/find_model.h"

namespace nemocube {
namespace {

struct TokenizeArguments {
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

void run(const TokenizeArguments& options) {
  const Tokenizer tokenizer = Tokenizer::load(find_tokenizer(options.tokenizer));
  for_each_line(options.input, [&](const std::string& line) {
    if (options.decode)
      std::cout << tokenizer.decode(read_ids(line, tokenizer.vocab_size()), !options.special) << '\n';
    else
      std::cout << nlohmann::json(tokenizer.encode(line, options.special)).dump() << '\n';
  });
}

}  // namespace

void add_tokenize_command(Command& app) {
  auto o = std::make_shared<TokenizeArguments>();
  Command* command = app.add_subcommand("tokenize", "Turn each line of a file into token ids, or back");
  command
      ->add_option("--tokenizer", o->tokenizer,
                   "tokenizer.json, its directory, a checkpoint or the directory of a run")
      ->required();
  command->add_option("--input", o->input, "text file; - is standard input")->required();
  command->add_flag("--special", o->special,
                    "add the special tokens that the tokenizer puts around a text; with --decode: show them");
  command->add_flag("--decode", o->decode, "the other way: each line is a JSON array of ids, print its text");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
