#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nemocube {

namespace tok {
class DecoderStream;
}

/// A token and the range of input bytes that it stands for. The range is empty (begin == end) for special
/// tokens of the post-processor and for tokens made only of inserted characters.
struct TokenSpan {
  std::int64_t id = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A byte-pair tokenizer read from a Hugging Face `tokenizer.json`; its ids are those of the `tokenizers`
/// library.
///
/// Supported: model BPE; normalizers NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip; pre-tokenizers Split,
/// Digits, Punctuation, Metaspace, ByteLevel; decoders ByteLevel, ByteFallback, Fuse, Replace, Strip,
/// Metaspace; post-processors TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel; Sequences of
/// each. Anything else in the file is an Error that names it. The sections `truncation` and `padding` are not
/// applied.
///
/// Classes such as `\p{L}` follow the Unicode version of the installed PCRE2 (Unicode 14 for PCRE2 10.42).
/// Letters, marks and digits assigned later count as symbols here. The `tokenizers` library may have a newer
/// table and divide text with such characters differently. Its tables of punctuation and of normal forms are
/// older (pre_tokenizer.h, normal_form.h).
///
/// Cheap to copy. Many threads may call const members at once.
class Tokenizer {
 public:
  /// Reads `tokenizer.json`, or the file of that name in a directory, and the tokens that the files beside it
  /// declare (`tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`), as AutoTokenizer of
  /// transformers 5 does (declared_tokens.h). Throws Error naming the file and what is wrong in it; warns of
  /// tokens that have another id than the file says, and where AutoTokenizer would not do what tokenizer.json
  /// says (tokenizer_class.h).
  static Tokenizer load(const std::filesystem::path& directory_or_file);

  /// Ids of `text`. `add_special` includes the tokens that the post-processor puts around the text. Added
  /// tokens (such as `<|im_end|>`) inside the text are recognised either way. Throws Error naming the byte
  /// where `text` is not valid UTF-8.
  std::vector<std::int64_t> encode(std::string_view text, bool add_special) const;

  /// The same, with the range of `text` that each token stands for. Begins and ends never decrease. Without
  /// normalizer and removed pieces, the ranges cover the text. Tokens may end inside a UTF-8 character.
  /// Spaces are never trimmed, whatever `trim_offsets` says.
  std::vector<TokenSpan> encode_with_offsets(std::string_view text, bool add_special) const;

  /// encode_with_offsets(text, false) with the ranges that the `tokenizers` library reports. They consist of
  /// whole characters, so tokens that share a character overlap. A token made only of inserted characters has
  /// the range of the next character. Where the post-processor has `trim_offsets`, spaces at the ends of a
  /// token are left out; the range of a token of nothing else is empty.
  std::vector<TokenSpan> encode_with_library_offsets(std::string_view text) const;

  /// Text of `ids`, invalid UTF-8 replaced by U+FFFD. `skip_special` drops special tokens. Ids that
  /// name no token add no text.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special) const;

  /// Highest id + 1, added tokens included. The embeddings of a model may have more rows.
  std::int64_t vocab_size() const;

  std::optional<std::int64_t> token_to_id(std::string_view token) const;
  /// The token as the file spells it. Throws Error for an id that names no token.
  std::string id_to_token(std::int64_t id) const;
  /// Whether the id is an added token, of tokenizer.json or of a file beside it.
  bool is_added(std::int64_t id) const;
  /// Whether the id is an added token that is marked special.
  bool is_special(std::int64_t id) const;

  /// The file beside tokenizer.json, and its key, that add the token of this id; empty for all other ids.
  std::string declared_in(std::int64_t id) const;

  /// Special tokens that encode() puts before and after the text when `add_special` is set.
  const std::vector<std::int64_t>& special_prefix() const;
  const std::vector<std::int64_t>& special_suffix() const;

  /// Special ids named by the files beside tokenizer.json. Nothing where the files name none.
  std::optional<std::int64_t> eos_id() const;
  std::optional<std::int64_t> pad_id() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

/// Decodes ids one at a time. The returned pieces are valid UTF-8 and together equal decode() of all ids.
/// Every id is decoded once. Text is held back while later ids can change it: a UTF-8 character spread over
/// several tokens appears with the last of them, a run of byte-fallback tokens with the token after it.
class StreamDecoder {
 public:
  StreamDecoder(Tokenizer tokenizer, bool skip_special);
  StreamDecoder(StreamDecoder&&) noexcept;
  ~StreamDecoder();

  /// Text that became certain with this id; often empty.
  std::string push(std::int64_t id);
  /// The rest, with U+FFFD for an unfinished character. The decoder can then be used for another text.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::unique_ptr<tok::DecoderStream> stream_;
};

}  // namespace nemocube
