#include "data/tokenizer/normalizer.h"

#include <utility>

#include "core/utf8.h"

namespace nemocube::tok {
namespace {

std::optional<NormalForm> form_of(std::string_view type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

}  // namespace

Regex load_pattern(const JsonRef& owner) {
  const JsonRef pattern = owner.at("pattern");
  try {
    if (const auto text = pattern.find("String")) return Regex::literal(text->string());
    if (const auto expression = pattern.find("Regex")) return Regex::oniguruma(expression->string());
  } catch (const Error& error) {
    pattern.fail("cannot be used: ", error.what());
  }
  pattern.fail("must hold \"String\" or \"Regex\"");
}

Normalizer Normalizer::load(const std::optional<JsonRef>& spec) {
  Normalizer out;
  if (spec) out.add(*spec, 0);
  return out;
}

void Normalizer::add(const JsonRef& spec, int depth) {
  if (depth > deepest_sequence) spec.fail("is nested too deeply");
  const std::string_view type = spec.at("type").string();
  Step step;
  if (type == "Sequence") {
    for (const JsonRef& part : spec.at("normalizers").elements()) add(part, depth + 1);
    return;
  }
  step.form = form_of(type);
  if (type == "Replace") {
    step.replace = Replace{load_pattern(spec), std::string(spec.at("content").string())};
  } else if (type == "Prepend") {
    step.prepend = spec.at("prepend").string();
  } else if (type == "Strip") {
    step.strip_left = spec.at("strip_left").boolean();
    step.strip_right = spec.at("strip_right").boolean();
  } else if (!step.form) {
    spec.fail("is of type \"", type,
              "\", which is not supported (supported: NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip, "
              "Sequence)");
  }
  steps_.push_back(std::move(step));
}

void Normalizer::apply(const Step& step, AlignedText& text) {
  const std::string_view view = text.view();
  if (view.empty()) return;
  if (step.form) {
    normalize(*step.form, text);
    return;
  }
  if (step.replace) {
    std::vector<AlignedText::Part> parts;
    bool any = false;
    for (const Regex::Stretch& stretch : step.replace->pattern.tile(view)) {
      parts.push_back({stretch.range, step.replace->content, stretch.is_match});
      any |= stretch.is_match;
    }
    if (any) text.rebuild(parts);
    return;
  }
  if (!step.prepend.empty()) {
    text.rebuild({{{0, 0}, step.prepend, true}, {{0, view.size()}, {}, false}});
    return;
  }
  Range kept{0, view.size()};
  while (step.strip_left && kept.begin < kept.end) {
    const Utf8Step next = utf8_step(view, kept.begin);
    if (!is_white_space(next.character)) break;
    kept.begin += next.length;
  }
  while (step.strip_right && kept.begin < kept.end) {
    const std::size_t before = previous_character(view, kept.end);
    if (!is_white_space(utf8_step(view, before).character)) break;
    kept.end = before;
  }
  text = text.slice(kept);
}

void Normalizer::apply(AlignedText& text) const {
  for (const Step& step : steps_) apply(step, text);
}

std::string Normalizer::apply(std::string_view text) const {
  AlignedText copy(text, {0, text.size()});
  apply(copy);
  return std::string(copy.view());
}

}  // namespace nemocube::tok
