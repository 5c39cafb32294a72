#include "data/tokenizer/post_processor.h"

#include "data/tokenizer/normalizer.h"

namespace nemocube::tok {
namespace {

std::int64_t id_of_pair(const JsonRef& pair) {
  const std::vector<JsonRef> parts = pair.elements();
  if (parts.size() != 2) pair.fail("must be [token, id]");
  return parts[1].integer();
}

}  // namespace

PostProcessor PostProcessor::load(const std::optional<JsonRef>& spec) {
  PostProcessor out;
  bool found = false;
  if (spec) out.add(*spec, 0, found);
  return out;
}

void PostProcessor::add(const JsonRef& spec, int depth, bool& found) {
  if (depth > deepest_sequence) spec.fail("is nested too deeply");
  const std::string_view type = spec.at("type").string();
  if (type == "Sequence") {
    for (const JsonRef& part : spec.at("processors").elements()) add(part, depth + 1, found);
    return;
  }
  const bool may_trim = type == "ByteLevel" || type == "RobertaProcessing";
  if (may_trim && spec.boolean_or("trim_offsets", false))
    trims.push_back(spec.boolean_or("add_prefix_space", false));
  if (type == "ByteLevel") return;
  if (found) spec.fail("is a second step that adds special tokens; only one is supported");
  found = true;
  if (type == "TemplateProcessing") {
    add_template(spec);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    prefix.push_back(id_of_pair(spec.at("cls")));
    suffix.push_back(id_of_pair(spec.at("sep")));
  } else {
    spec.fail("is of type \"", type,
              "\", which is not supported (supported: TemplateProcessing, BertProcessing, RobertaProcessing, "
              "ByteLevel, Sequence)");
  }
}

void PostProcessor::add_template(const JsonRef& spec) {
  const JsonRef single = spec.at("single");
  const std::optional<JsonRef> specials = spec.find("special_tokens");
  bool seen_sequence = false;
  for (const JsonRef& piece : single.elements()) {
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence->at("id").string() != "A") sequence->fail("must be the sequence A");
      if (seen_sequence) single.fail("holds the sequence more than once, which is not supported");
      seen_sequence = true;
    } else {
      const std::string name(piece.at("SpecialToken").at("id").string());
      const auto special = specials ? specials->find(name) : std::nullopt;
      if (!special) piece.fail("names \"", name, "\", which is not in special_tokens");
      for (const JsonRef& id : special->at("ids").elements()) {
        (seen_sequence ? suffix : prefix).push_back(id.integer());
      }
    }
  }
  if (!seen_sequence) single.fail("does not hold the sequence");
}

}  // namespace nemocube::tok
