#include "data/tokenizer/decoder.h"

#include <utility>

#include "core/utf8.h"
#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/normalizer.h"

namespace nemocube::tok {
namespace {

std::optional<char> fallback_byte(const std::string& token) {
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

std::vector<std::string> undo_byte_fallback(std::vector<std::string> tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_valid_utf8(bytes)) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes.push_back(*byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  return out;
}

std::string joined(const std::vector<std::string>& tokens, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += separator;
    out += tokens[i];
  }
  return out;
}

std::string replaced(const std::string& token, const Regex& pattern, const std::string& content) {
  std::string out;
  for (const Regex::Stretch& stretch : pattern.tile(token)) {
    out += stretch.is_match ? content
                            : token.substr(stretch.range.begin, stretch.range.end - stretch.range.begin);
  }
  return out;
}

std::string stripped(const std::string& token, const std::string& content, std::int64_t start,
                     std::int64_t stop) {
  std::string_view rest = token;
  for (; start > 0 && rest.starts_with(content); --start) rest.remove_prefix(content.size());
  for (; stop > 0 && rest.ends_with(content); --stop) rest.remove_suffix(content.size());
  return std::string(rest);
}

}  // namespace

std::string Decoder::bytes_of(const std::string& token) { return bytes_of_token(token).value_or(token); }

Decoder Decoder::load(const std::optional<JsonRef>& spec) {
  Decoder out;
  out.present_ = spec.has_value();
  if (spec) out.add(*spec, 0);
  return out;
}

void Decoder::add(const JsonRef& spec, int depth) {
  if (depth > deepest_sequence) spec.fail("is nested too deeply");
  const std::string& type = spec.at("type").string();
  Step step;
  if (type == "Sequence") {
    for (const JsonRef& part : spec.at("decoders").elements()) add(part, depth + 1);
    return;
  }
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern = load_pattern(spec);
    step.content = spec.at("content").string();
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.content = spec.at("content").string();
    if (step.content.empty() || utf8_step(step.content, 0).length != step.content.size()) {
      spec.fail("must strip one character, found \"", step.content, "\"");
    }
    step.start = spec.at("start").integer();
    step.stop = spec.at("stop").integer();
  } else {
    spec.fail(
        "is of type \"", type,
        "\", which is not supported (supported: ByteLevel, ByteFallback, Fuse, Replace, Strip, Sequence)");
  }
  steps_.push_back(std::move(step));
}

std::vector<std::string> Decoder::apply(const Step& step, std::vector<std::string> tokens) {
  switch (step.kind) {
    case Kind::byte_level:
      for (std::string& token : tokens) token = bytes_of(token);
      return {utf8_lossy(joined(tokens, ""))};
    case Kind::byte_fallback:
      return undo_byte_fallback(std::move(tokens));
    case Kind::fuse:
      return {joined(tokens, "")};
    case Kind::replace:
      for (std::string& token : tokens) token = replaced(token, *step.pattern, step.content);
      return tokens;
    case Kind::strip:
      for (std::string& token : tokens) token = stripped(token, step.content, step.start, step.stop);
      return tokens;
  }
  return tokens;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  if (!present_) return joined(tokens, " ");
  for (const Step& step : steps_) tokens = apply(step, std::move(tokens));
  return joined(tokens, "");
}

}  // namespace nemocube::tok
