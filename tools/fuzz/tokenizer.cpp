// The reader of tokenizers, which then divides a text. Input: tokenizer.json.
#include "data/tokenizer/tokenizer.h"
#include "core/utf8.h"
#include "tools/fuzz/json_mutator.h"

using namespace nemocube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  constexpr std::string_view text =
      "Hello  world, it's 1234!\n\tÜber 🙂 <|im_end|> <s>\r\n  e\u0301 名前 ";
  const std::string file = folder.write("tokenizer.json", fuzz::text_of(data, size));
  return fuzz::keep_if(fuzz::allow_refusal([&] {
    const Tokenizer tokenizer = Tokenizer::load(file);
    std::size_t begin = 0, end = 0;
    std::vector<std::int64_t> ids;
    for (const TokenSpan& token : tokenizer.encode_with_offsets(text, false)) {
      fuzz::want(token.begin >= begin && token.end >= end && token.end <= text.size());
      begin = token.begin;
      end = token.end;
      ids.push_back(token.id);
    }
    fuzz::want(tokenizer.encode(text, false) == ids);
    fuzz::want(is_valid_utf8(tokenizer.decode(ids, false)));
    for (const std::int64_t id : ids) fuzz::want(id >= 0 && id < tokenizer.vocab_size());
    tokenizer.encode(text, true);
  }));
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t longest,
                                               unsigned seed) {
  return fuzz::mutate_json(data, size, longest, seed, 0, size);
}
