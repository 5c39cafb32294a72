#include "data/tokenizer/decoder_stream.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/utf8.h"
#include "data/tokenizer/byte_level.h"

namespace nemocube::tok {

/// One decoder step in progress. A token arrives in one or more parts of whole characters; the last part has
/// `ends` set.
class DecoderStream::Stage {
 public:
  virtual ~Stage() = default;
  virtual void push(std::string_view part, bool ends) = 0;
  virtual void finish() {}  ///< no token follows

  Stage* next = nullptr;
};

namespace {

using Stage = DecoderStream::Stage;
using Step = Decoder::Step;

constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

class Collect final : public Stage {
 public:
  explicit Collect(std::string& out) : out_(out) {}
  void push(std::string_view part, bool) override { out_ += part; }

 private:
  std::string& out_;
};

class JoinWithSpaces final : public Stage {
 public:
  void push(std::string_view part, bool ends) override {
    if (at_start_ && !first_) next->push(" ", false);
    next->push(part, ends);
    first_ = false;
    at_start_ = ends;
  }

 private:
  bool first_ = true;
  bool at_start_ = true;  ///< of a token
};

/// All tokens become one.
class Fuse final : public Stage {
 public:
  void push(std::string_view part, bool) override { next->push(part, false); }
  void finish() override { next->push("", true); }
};

/// Joins the bytes that all tokens spell into one text.
class ByteLevel final : public Stage {
 public:
  void push(std::string_view part, bool ends) override {
    token_ += part;
    if (!ends) return;
    bytes_ += bytes_of_token(token_).value_or(token_);
    token_.clear();
    const std::size_t certain = utf8_complete_prefix(bytes_);
    next->push(utf8_lossy(std::string_view(bytes_).substr(0, certain)), false);
    bytes_.erase(0, certain);
  }
  void finish() override { next->push(utf8_lossy(bytes_), true); }

 private:
  std::string token_;
  std::string bytes_;  ///< of an unfinished character
};

/// The byte that a token such as <0xE4> stands for.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : {token[3], token[4]}) {
    const char lower = static_cast<char>(c | 0x20);
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(lower >= 'a' && lower <= 'f')) return std::nullopt;
    value = value * 16 + (is_digit ? c - '0' : lower - 'a' + 10);
  }
  return static_cast<char>(value);
}

/// Runs of byte tokens become their text when the whole run is valid UTF-8, else one U+FFFD for each byte.
class ByteFallback final : public Stage {
 public:
  void push(std::string_view part, bool ends) override {
    token_ += part;
    if (ends) {
      const auto byte = is_text_ ? std::nullopt : fallback_byte(token_);
      if (byte) {
        run_ += *byte;
      } else {
        pass_on(true);
      }
      token_.clear();
      is_text_ = false;
    } else if (token_.size() > 6) {
      pass_on(false);
      is_text_ = true;
    }
  }
  void finish() override { end_run(); }

 private:
  void pass_on(bool ends) {
    end_run();
    next->push(token_, ends);
    token_.clear();
  }
  void end_run() {
    if (is_valid_utf8(run_)) {
      if (!run_.empty()) next->push(run_, true);
    } else {
      for (std::size_t i = 0; i < run_.size(); ++i) next->push(replacement_character, true);
    }
    run_.clear();
  }

  std::string token_;
  bool is_text_ = false;  ///< the current token is longer than a byte token
  std::string run_;
};

class ReplaceLiteral final : public Stage {
 public:
  explicit ReplaceLiteral(const Step& step) : step_(step) {}
  void push(std::string_view part, bool ends) override {
    held_ += part;
    const std::string_view text = held_, wanted = step_.literal;
    std::size_t from = 0;
    for (std::size_t at; (at = text.find(wanted, from)) != text.npos; from = at + wanted.size()) {
      next->push(text.substr(from, at - from), false);
      next->push(step_.content, false);
    }
    const std::string_view rest = text.substr(from);
    const std::size_t kept = ends ? 0 : started_match(rest);
    next->push(rest.substr(0, rest.size() - kept), ends);
    held_.erase(0, held_.size() - kept);
  }

 private:
  /// Length of the longest end of `text` with which the literal may begin.
  std::size_t started_match(std::string_view text) const {
    std::size_t length = std::min(text.size(), step_.literal.size() - 1);
    while (!text.ends_with(std::string_view(step_.literal).substr(0, length))) --length;
    return length;
  }

  const Step& step_;
  std::string held_;
};

/// An expression may match anywhere in a token, so the token is held until its end.
class ReplaceMatches final : public Stage {
 public:
  explicit ReplaceMatches(const Step& step) : step_(step) {}
  void push(std::string_view part, bool ends) override {
    token_ += part;
    if (!ends) return;
    for (const Regex::Stretch& stretch : step_.pattern->tile(token_)) {
      const std::string_view text(token_);
      next->push(stretch.is_match ? std::string_view(step_.content)
                                  : text.substr(stretch.range.begin, stretch.range.end - stretch.range.begin),
                 false);
    }
    next->push("", true);
    token_.clear();
  }

 private:
  const Step& step_;
  std::string token_;
};

/// Removes one character up to `start` times from the start of each token and up to `stop` times from its
/// end.
class Strip final : public Stage {
 public:
  explicit Strip(const Step& step) : step_(step), start_left_(step.start) {}
  void push(std::string_view part, bool ends) override {
    const std::string& character = step_.content;
    for (; start_left_ > 0 && part.starts_with(character); --start_left_)
      part.remove_prefix(character.size());
    if (!part.empty()) start_left_ = 0;
    held_ += part;
    std::string_view sure = held_;
    for (std::int64_t n = step_.stop; n > 0 && sure.ends_with(character); --n)
      sure.remove_suffix(character.size());
    const std::size_t length = sure.size();
    next->push(sure, ends);
    held_.erase(0, length);
    if (!ends) return;
    held_.clear();
    start_left_ = step_.start;
  }

 private:
  const Step& step_;
  std::int64_t start_left_;
  std::string held_;  ///< removed if the token ends here
};

/// Replacements become spaces. Those of the first token are dropped where the pre-tokenizer prepends one.
class ReplaceMetaspace final : public Stage {
 public:
  explicit ReplaceMetaspace(const Metaspace& metaspace)
      : replacement_(metaspace.replacement),
        drops_(metaspace.prepend_scheme != Metaspace::PrependScheme::never) {}
  void push(std::string_view part, bool ends) override {
    std::string text;
    std::size_t from = 0;
    for (std::size_t at; (at = part.find(replacement_, from)) != part.npos; from = at + replacement_.size()) {
      text += part.substr(from, at - from);
      if (!drops_) text += ' ';
    }
    next->push(text += part.substr(from), ends);
    if (ends) drops_ = false;
  }

 private:
  const std::string& replacement_;
  bool drops_;
};

std::unique_ptr<Stage> stage_of(const Step& step) {
  switch (step.kind) {
    case Step::Kind::join_with_spaces:
      return std::make_unique<JoinWithSpaces>();
    case Step::Kind::byte_level:
      return std::make_unique<ByteLevel>();
    case Step::Kind::byte_fallback:
      return std::make_unique<ByteFallback>();
    case Step::Kind::fuse:
      return std::make_unique<Fuse>();
    case Step::Kind::replace:
      if (step.literal.empty()) return std::make_unique<ReplaceMatches>(step);
      return std::make_unique<ReplaceLiteral>(step);
    case Step::Kind::metaspace:
      return std::make_unique<ReplaceMetaspace>(*step.metaspace);
    case Step::Kind::strip:
      break;
  }
  return std::make_unique<Strip>(step);
}

}  // namespace

DecoderStream::DecoderStream(const Decoder& decoder) {
  for (const Step& step : decoder.steps()) stages_.push_back(stage_of(step));
  stages_.push_back(std::make_unique<Collect>(out_));
  for (std::size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->next = stages_[i + 1].get();
}

DecoderStream::~DecoderStream() = default;

std::string DecoderStream::push(std::string_view token) {
  stages_.front()->push(token, true);
  return std::exchange(out_, {});
}

std::string DecoderStream::finish() {
  for (const auto& stage : stages_) stage->finish();
  return std::exchange(out_, {});
}

}  // namespace nemocube::tok
