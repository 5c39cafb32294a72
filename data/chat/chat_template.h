#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/budget.h"
#include "data/json/json.h"
#include "data/text/moment.h"

/// Chat templates: Jinja programs that come with tokenizers and write a conversation as one text. Texts are
/// as from apply_chat_template of transformers 5.24 (docs/chat_templates.md has the differences).
namespace nemocube {

struct Chat;  // data/chat/chat.h
namespace jinja {
class Template;
}

struct RenderedChat {
  std::string text;
  struct Range {
    std::size_t begin = 0, end = 0;  ///< bytes of the text
    friend bool operator==(const Range&, const Range&) = default;
  };
  /// The ranges that {% generation %} blocks printed, in order. As in transformers, a range counts only text
  /// outside of macros and captured blocks, so ranges of blocks inside of these are wrong here, too.
  std::vector<Range> generation;
};

/// A parsed template with the special tokens of its tokenizer. Cheap to copy; many threads may render one at
/// once.
class ChatTemplate {
 public:
  using SpecialTokens = std::map<std::string, std::string>;  ///< by variable: bos_token, eos_token...

  /// `name` names the template in messages. Throws Error naming line and column of a mistake in `source`.
  ChatTemplate(std::string name, std::string_view source, SpecialTokens special_tokens = {});

  const std::string& name() const { return name_; }
  bool has_generation_blocks() const;
  /// Whether the template names a key under which reasoning is found: .reasoning_content, 'thinking',
  /// "reasoning"...
  bool names_reasoning() const { return names_reasoning_; }

  /// As in transformers, the template sees messages without keys whose value is null, and finds reasoning
  /// under both names, `reasoning_content` and `thinking`. Throws Error naming the key of `chat` that has
  /// another form, or line and column of the operation that fails: a mistake of the template, its
  /// raise_exception(), or a limit (jinja::Limits).
  RenderedChat render(const Chat& chat) const;

  /// The moment that strftime_now() shows instead of the present one.
  void set_time(const Moment& time) { time_ = time; }
  /// Variables of every rendering; Chat::variables of the same name win. Throws Error for a value that is no
  /// object.
  void set_variables(const Json& variables);
  /// The limits of each rendering.
  void set_limits(const jinja::Limits& limits) { limits_ = limits; }

 private:
  std::string name_;
  std::shared_ptr<const jinja::Template> template_;
  SpecialTokens special_tokens_;
  bool names_reasoning_;
  std::shared_ptr<const Json> variables_;  ///< null: none
  jinja::Limits limits_;
  std::optional<Moment> time_;
};

}  // namespace nemocube
