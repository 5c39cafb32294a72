#pragma once
#include <filesystem>
#include <string>

#include "data/json/json_ref.h"
#include "data/tokenizer/bpe.h"

namespace nemocube::tok {

/// What AutoTokenizer makes in another way than tokenizer.json says, as one line for a warning; empty where
/// it makes the same.
///
/// tokenizer_config.json (`tokenizer_class`), else config.json (`tokenizer_class`, `model_type`) name a
/// class. Some classes take vocabulary, merges, added tokens and post-processor from tokenizer.json, and make
/// normalizer, pre-tokenizer, decoder and the model's options themselves, from `add_prefix_space`, `legacy`
/// and `unk_token` of tokenizer_config.json. These parts are compared for the classes that
/// tokenizer_class.cpp lists. Nothing is said where the class is another one, where tokenizer_config.json has
/// `auto_map` (code of the model's own), and of files that cannot be read.
///
/// `folder` has the files, `tokenizer` is the document of tokenizer.json, `model` what was loaded from it.
/// pre: its other sections can be loaded, too
/// Source: transformers 5.24, models/auto/tokenization_auto.py and `__init__` of the classes
std::string difference_of_class(const std::filesystem::path& folder, const JsonRef& tokenizer,
                                const Bpe& model);

}  // namespace nemocube::tok
