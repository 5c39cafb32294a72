#include "data/tokenizer/decoder.h"

#include <utility>

#include "core/utf8.h"
#include "data/tokenizer/normalizer.h"

namespace nemocube::tok {

Decoder Decoder::load(const std::optional<JsonRef>& spec) {
  Decoder out;
  if (spec) {
    out.add(*spec, 0);
  } else {
    out.steps_.emplace_back();  // joins with spaces
  }
  return out;
}

void Decoder::add(const JsonRef& spec, int depth) {
  if (depth > deepest_sequence) spec.fail("is nested too deeply");
  const std::string_view type = spec.at("type").string();
  Step step;
  if (type == "Sequence") {
    for (const JsonRef& part : spec.at("decoders").elements()) add(part, depth + 1);
    return;
  }
  if (type == "ByteLevel") {
    step.kind = Step::Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Step::Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Step::Kind::fuse;
  } else if (type == "Replace") {
    step.kind = Step::Kind::replace;
    step.pattern = load_pattern(spec);
    if (const auto text = spec.at("pattern").find("String")) step.literal = text->string();
    step.content = spec.at("content").string();
  } else if (type == "Strip") {
    step.kind = Step::Kind::strip;
    step.content = spec.at("content").string();
    if (step.content.empty() || utf8_step(step.content, 0).length != step.content.size()) {
      spec.fail("must strip one character, found \"", step.content, "\"");
    }
    step.start = spec.at("start").integer();
    step.stop = spec.at("stop").integer();
  } else if (type == "Metaspace") {
    step.kind = Step::Kind::metaspace;
    step.metaspace = Metaspace::load(spec);
  } else {
    spec.fail("is of type \"", type,
              "\", which is not supported (supported: ByteLevel, ByteFallback, Fuse, Replace, Strip, "
              "Metaspace, Sequence)");
  }
  steps_.push_back(std::move(step));
}

}  // namespace nemocube::tok
