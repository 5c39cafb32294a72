#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "data/chat/chat_file.h"
#include "data/chat/chat_tokens.h"
#include "data/chat/template_files.h"
#include "data/tokenizer/tokenizer.h"
#include "train/commands/chat_variables.h"
#include "train/commands/commands.h"
#include "train/commands/lines.h"
#include "train/model_io/find_model.h"
#include "train/recipe/files.h"

namespace nemocube {
namespace {

struct TokenizeArguments {
  std::filesystem::path tokenizer, input, chat;
  bool special = false, decode = false;
  std::string chat_template, now;
  bool ids = false, mask = false, add_generation_prompt = false;
  std::vector<std::string> variables;
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

/// The text of a conversation, or a JSON line with what was asked for.
void print_chat(const TokenizeArguments& options, const ChatTemplate& chat_template,
                const Tokenizer& tokenizer, const Chat& chat) {
  if (options.mask) {
    const ChatTokens tokens = chat_tokens(chat_template, tokenizer, chat);
    Json line{{"text", tokens.text}, {"ids", tokens.ids}, {"mask", Json::array()}};
    for (const bool assistant : tokens.assistant) line["mask"].push_back(assistant ? 1 : 0);
    std::cout << dump_json(line, -1) << '\n';
    return;
  }
  const std::string text = chat_template.render(chat).text;
  if (options.ids)
    std::cout << dump_json({{"text", text}, {"ids", tokenizer.encode(text, false)}}, -1) << '\n';
  else
    std::cout << text << '\n';
}

void run_chats(const TokenizeArguments& options, const std::filesystem::path& file,
               const Tokenizer& tokenizer) {
  const std::optional<std::string> wanted =
      options.chat_template.empty() ? std::nullopt : std::optional(options.chat_template);
  const Moment now = moment_of_option(options.now);
  std::map<bool, ChatTemplate> templates;  // for conversations with and without tools
  for (NamedChat& named : read_chats(options.chat)) {
    const bool with_tools = named.chat.tools.has_value();
    auto found = templates.find(with_tools);
    if (found == templates.end()) {
      found = templates.emplace(with_tools, load_chat_template(folder_of(file), wanted, with_tools)).first;
      found->second.set_time(now);
    }
    named.chat.add_generation_prompt |= options.add_generation_prompt;
    for (const std::string& variable : options.variables) set_variable(named.chat.variables, variable);
    try {
      print_chat(options, found->second, tokenizer, named.chat);
    } catch (const Error& error) {
      fail(named.place, ": ", error.what());
    }
  }
}

void run(const TokenizeArguments& options) {
  require(options.input.empty() != options.chat.empty(), "tokenize: want either --input or --chat");
  const std::filesystem::path file = find_tokenizer(options.tokenizer);
  const Tokenizer tokenizer = Tokenizer::load(file);
  if (!options.chat.empty()) return run_chats(options, file, tokenizer);
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
  Command* command = app.add_subcommand(
      "tokenize", "Turn each line of a file, or conversations, into token ids, or ids back");
  command
      ->add_option("--tokenizer", o->tokenizer,
                   "tokenizer.json, its directory, a checkpoint or the directory of a run")
      ->required();
  auto* input = command->add_option("--input", o->input, "text file; - is standard input");
  command
      ->add_flag("--special", o->special,
                 "add the special tokens that the tokenizer puts around a text; with --decode: show them")
      ->needs(input);
  command->add_flag("--decode", o->decode, "the other way: each line is a JSON array of ids, print its text")
      ->needs(input);
  auto* chat =
      command->add_option("--chat", o->chat,
                          "render the conversations of a JSON or JSONL file with the chat template: lists of "
                          "messages, or objects with messages and tools");
  chat->excludes(input);
  add_template_options(*command, chat, o->chat_template, o->variables, o->now);
  command->add_flag("--ids", o->ids, "print a JSON line for each conversation, with text and ids")
      ->needs(chat);
  command->add_flag("--mask", o->mask, "the same with a mask too: 1 at the assistant's tokens")->needs(chat);
  command
      ->add_flag("--add-generation-prompt", o->add_generation_prompt,
                 "end the text where the assistant begins its answer")
      ->needs(chat);
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
