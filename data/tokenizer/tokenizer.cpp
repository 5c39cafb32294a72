#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/utf8.h"
#include "data/json/json_ref.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/declared_tokens.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/decoder_stream.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/text.h"
#include "data/tokenizer/tokenizer_class.h"

namespace nemocube {

struct Tokenizer::Impl {
  std::string file;
  tok::Normalizer normalizer;
  tok::PreTokenizer pre_tokenizer;
  tok::Bpe model;
  tok::AddedTokens added;
  tok::PostProcessor post_processor;
  tok::Decoder decoder;
  tok::StringMap<std::int64_t> named;  // bos_token, ..

  void encode_piecewise(tok::AlignedText& text, std::vector<TokenSpan>& out) const;
  void encode_segment(tok::AlignedText& text, std::vector<TokenSpan>& out) const;
  std::optional<std::int64_t> named_id(std::string_view name) const;
  /// The text of an id for decoding; null when the id names no token.
  const std::string* decodable(std::int64_t id, bool skip_special) const;
};

namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Takes the characters out of `span` that `token` has as spaces at its ends. `added`: the first one is not
/// in the text.
void trim_span(TokenSpan& span, std::string_view token, std::string_view text, bool added) {
  constexpr char32_t byte_level_space = U'\u0120';
  std::size_t leading = 0, trailing = 0, characters = 0;
  for (std::size_t at = 0; at < token.size(); ++characters) {
    const Utf8Step step = utf8_step(token, at);
    at += step.length;
    const bool space = step.character == byte_level_space || is_white_space(step.character);
    if (space && leading == characters) ++leading;
    trailing = space ? trailing + 1 : 0;
  }
  if (added && leading > 0) --leading;
  for (; leading > 0 && span.begin < span.end; --leading) span.begin += utf8_step(text, span.begin).length;
  for (; trailing > 0 && span.end > span.begin; --trailing) span.end = previous_character(text, span.end);
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory_or_file) {
  namespace fs = std::filesystem;
  const fs::path path =
      fs::is_directory(directory_or_file) ? directory_or_file / "tokenizer.json" : directory_or_file;
  const auto impl = std::make_shared<Impl>();
  impl->file = path.string();
  const Json document = read_json_file(path);
  const JsonRef root(document, impl->file, "");
  if (const auto version = root.find("version"); version && version->string() != "1.0") {
    version->fail("is \"", version->string(), "\"; only \"1.0\" is known");
  }
  impl->normalizer = tok::Normalizer::load(root.find("normalizer"));
  impl->pre_tokenizer = tok::PreTokenizer::load(root.find("pre_tokenizer"));
  impl->model = tok::Bpe::load(root.at("model"), impl->pre_tokenizer.byte_level());
  const tok::DeclaredTokens declared = tok::read_declared_tokens(path.parent_path(), root);
  impl->added =
      tok::AddedTokens::load(root.find("added_tokens"), declared.added, impl->model, impl->normalizer);
  for (const auto& [name, content] : declared.named)
    if (const auto* token = impl->added.find(content)) impl->named.emplace(name, token->id);
  impl->post_processor = tok::PostProcessor::load(root.find("post_processor"));
  impl->decoder = tok::Decoder::load(root.find("decoder"));
  const std::string difference = tok::difference_of_class(path.parent_path(), root, impl->model);
  if (!difference.empty()) log_warning(difference);
  const Tokenizer out(impl);
  for (const auto* ids : {&out.special_prefix(), &out.special_suffix()}) {
    for (const std::int64_t id : *ids) {
      require(impl->decodable(id, false) != nullptr, impl->file, ": post_processor adds the id ", id,
              ", which names no token");
    }
  }
  return out;
}

void Tokenizer::Impl::encode_segment(tok::AlignedText& text, std::vector<TokenSpan>& out) const {
  const std::vector<tok::Range> pieces = pre_tokenizer.split(text);
  std::vector<tok::Bpe::Symbol> scratch;
  for (const tok::Range piece : pieces) {
    const std::size_t first = out.size();
    model.encode(text.view().substr(piece.begin, piece.end - piece.begin), piece.begin, out, scratch);
    for (std::size_t i = first; i < out.size(); ++i) {
      const tok::Range from = text.original({out[i].begin, out[i].end});
      out[i].begin = from.begin;
      out[i].end = from.end;
    }
  }
}

void Tokenizer::Impl::encode_piecewise(tok::AlignedText& text, std::vector<TokenSpan>& out) const {
  normalizer.apply(text);
  for (const auto& segment : added.split(text.view(), true)) {
    if (segment.token) {
      const tok::Range from = text.original(segment.range);
      out.push_back({segment.token->id, from.begin, from.end});
    } else {
      tok::AlignedText part = text.slice(segment.range);
      encode_segment(part, out);
    }
  }
}

std::vector<TokenSpan> Tokenizer::encode_with_offsets(std::string_view text, bool add_special) const {
  if (const auto bad = first_invalid_utf8(text))
    fail("tokenizer: the text is not valid UTF-8 at byte ", *bad);
  std::vector<TokenSpan> out;
  out.reserve(text.size() / 4 + 2);
  if (add_special) {
    for (const std::int64_t id : special_prefix()) out.push_back({id, 0, 0});
  }
  for (const auto& segment : impl_->added.split(text, false)) {
    if (segment.token) {
      out.push_back({segment.token->id, segment.range.begin, segment.range.end});
    } else {
      tok::AlignedText part(text, segment.range);
      impl_->encode_piecewise(part, out);
    }
  }
  if (add_special) {
    for (const std::int64_t id : special_suffix()) out.push_back({id, text.size(), text.size()});
  }
  return out;
}

std::vector<TokenSpan> Tokenizer::encode_with_library_offsets(std::string_view text) const {
  std::vector<TokenSpan> spans = encode_with_offsets(text, false);
  for (TokenSpan& span : spans) {
    if (span.begin == span.end && span.end < text.size()) ++span.end;
    while (span.begin < text.size() && is_continuation(text[span.begin])) --span.begin;
    while (span.end < text.size() && is_continuation(text[span.end])) ++span.end;
  }
  for (const bool space_was_added : impl_->post_processor.trims)
    for (TokenSpan& span : spans)
      trim_span(span, id_to_token(span.id), text, space_was_added && (&span == &spans[0] || span.begin == 0));
  return spans;
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  const std::vector<TokenSpan> spans = encode_with_offsets(text, add_special);
  std::vector<std::int64_t> out(spans.size());
  std::transform(spans.begin(), spans.end(), out.begin(), [](const TokenSpan& span) { return span.id; });
  return out;
}

const std::string* Tokenizer::Impl::decodable(std::int64_t id, bool skip_special) const {
  const tok::AddedToken* token = added.find(id);
  const std::string* text = token ? &token->matched : model.id_to_token(id);
  return text && skip_special && added.is_special(*text) ? nullptr : text;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, bool skip_special) const {
  tok::DecoderStream stream(impl_->decoder);
  std::string text;
  for (const std::int64_t id : ids) {
    if (const std::string* token = impl_->decodable(id, skip_special)) text += stream.push(*token);
  }
  return text + stream.finish();
}

std::int64_t Tokenizer::vocab_size() const {
  return std::max(impl_->model.highest_id(), impl_->added.highest_id()) + 1;
}

std::optional<std::int64_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto* added = impl_->added.find(token)) return added->id;
  const auto id = impl_->model.token_to_id(token);
  return id ? std::optional<std::int64_t>(*id) : std::nullopt;
}

std::string Tokenizer::id_to_token(std::int64_t id) const {
  if (const auto* added = impl_->added.find(id)) return added->content;
  const std::string* token = impl_->model.id_to_token(id);
  require(token != nullptr, impl_->file, ": the id ", id, " names no token; ids go up to ", vocab_size() - 1);
  return *token;
}

bool Tokenizer::is_added(std::int64_t id) const { return impl_->added.find(id) != nullptr; }

bool Tokenizer::is_special(std::int64_t id) const {
  const auto* added = impl_->added.find(id);
  return added && impl_->added.is_special(added->content);
}

std::string Tokenizer::declared_in(std::int64_t id) const {
  const auto* added = impl_->added.find(id);
  return added ? added->place : "";
}

const std::vector<std::int64_t>& Tokenizer::special_prefix() const { return impl_->post_processor.prefix; }
const std::vector<std::int64_t>& Tokenizer::special_suffix() const { return impl_->post_processor.suffix; }

std::optional<std::int64_t> Tokenizer::Impl::named_id(std::string_view name) const {
  const auto found = named.find(name);
  return found == named.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::int64_t> Tokenizer::eos_id() const { return impl_->named_id("eos_token"); }
std::optional<std::int64_t> Tokenizer::pad_id() const { return impl_->named_id("pad_token"); }

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      stream_(std::make_unique<tok::DecoderStream>(tokenizer_.impl_->decoder)) {}

StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(std::int64_t id) {
  const std::string* token = tokenizer_.impl_->decodable(id, skip_special_);
  return token ? stream_->push(*token) : "";
}

std::string StreamDecoder::finish() {
  std::string out = stream_->finish();
  stream_ = std::make_unique<tok::DecoderStream>(tokenizer_.impl_->decoder);
  return out;
}

}  // namespace nemocube
