#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/json/json_ref.h"

namespace nemocube::tok {

/// A token as a file declares it.
struct DeclaredToken {
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false;
  std::optional<bool> normalized{};  ///< without it: whether the token is not special
  bool special = false;
  std::optional<std::int64_t> id{};  ///< what the file says
  std::string place{};               ///< file and key, for messages
};

/// What the files beside a tokenizer.json say about its tokens.
struct DeclaredTokens {
  /// To be added after those of tokenizer.json, in this order. Tokens that are there already get these flags.
  std::vector<DeclaredToken> added;
  /// Name and content: bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token where
  /// they are given, then those of other names.
  std::vector<std::pair<std::string, std::string>> named;
};

/// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json in `folder`, each of which may
/// be absent, as AutoTokenizer does:
/// - Where tokenizer_config.json has `added_tokens_decoder`, these tokens are added by their ids, and the
///   other two files are not read. Otherwise the tokens of added_tokens.json and of tokenizer.json are, and
///   special_tokens_map.json wins over tokenizer_config.json wherever both have a key.
/// - Named tokens and those of a list (`extra_special_tokens`, else `additional_special_tokens`) are added
///   after them where they are missing. Named are the seven above, all other keys that end in "_token" and
///   have a text or a saved token, and the entries of `extra_special_tokens` as an object. Named tokens are
///   special, those of a list are where they are given as texts.
/// Objects that AutoTokenizer refuses because they lack `"__type": "AddedToken"`, which older releases left
/// out, are read. `tokenizer`: the document of tokenizer.json, for its `added_tokens` and the pad_token of
/// its `padding`; without it, these are taken as empty. Throws Error naming file and key for values of other
/// types. Source: transformers 5.24, tokenization_utils_base.py and tokenization_utils_tokenizers.py.
DeclaredTokens read_declared_tokens(const std::filesystem::path& folder,
                                    const std::optional<JsonRef>& tokenizer);

}  // namespace nemocube::tok
