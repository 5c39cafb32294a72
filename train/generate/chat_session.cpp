#include "train/generate/chat_session.h"

#include <algorithm>

namespace nemocube {

ChatSession::ChatSession(ParallelModel& model, Tokenizer tokenizer, ChatTemplate chat_template,
                         ChatSettings settings)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      settings_(std::move(settings)) {
  clear();
}

void ChatSession::clear() {
  chat_ = Chat();
  chat_.add_generation_prompt = true;
  chat_.variables = settings_.variables;
  if (!settings_.system.empty())
    chat_.messages.push_back({{"role", "system"}, {"content", settings_.system}});
}

std::vector<std::int64_t> ChatSession::prompt_ids(const Chat& chat) const {
  std::vector<std::int64_t> ids = tokenizer_.encode(template_.render(chat).text, false);
  const std::int64_t context = model_.model().config().max_position_embeddings;
  require(std::ssize(ids) < context, "the conversation has ", ids.size(),
          " tokens with this message, and the model's context (max_position_embeddings) has ", context,
          "; want a shorter message or a new conversation (/clear)");
  return ids;
}

ChatSession::Answer ChatSession::answer(const std::string& text,
                                        const std::function<void(std::string_view)>& on_text) {
  Chat chat = chat_;
  chat.messages.push_back({{"role", "user"}, {"content", text}});
  const std::vector<std::int64_t> prompt = prompt_ids(chat);
  GenerateOptions options = settings_.generate;
  options.seed += answers_;
  options.max_new_tokens =
      std::min(options.max_new_tokens, model_.model().config().max_position_embeddings - std::ssize(prompt));
  StreamDecoder decoder(tokenizer_, !settings_.show_special);
  const OnToken pass_on = [&](std::size_t, std::int64_t id) {
    on_text(decoder.push(id));
    return false;
  };
  const std::vector<std::int64_t> ids = generate(model_, {prompt}, options, pass_on)[0];
  on_text(decoder.finish());
  Answer answer{std::ssize(ids) < options.max_new_tokens, tokenizer_.decode(ids, false)};
  chat.messages.push_back({{"role", "assistant"}, {"content", answer.text}});
  chat_ = std::move(chat);
  ++answers_;
  return answer;
}

}  // namespace nemocube
