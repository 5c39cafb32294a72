// The index of Megatron's token files, and samples of them. Input: a file .idx; the file .bin beside it has
// 4,096 bytes.
#include "data/megatron/megatron_dataset.h"
#include "tools/fuzz/fuzz.h"

using namespace nemocube;

namespace {

std::string prefix_of_tokens(const fuzz::Folder& folder) {
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes += std::string{static_cast<char>(i % 100), 0, 0, 0};
  return token_file_prefix(folder.write("tokens.bin", bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  static const std::string prefix = prefix_of_tokens(folder);
  folder.write("tokens.idx", fuzz::text_of(data, size));
  for (const std::optional<std::int64_t> samples :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(9)})
    fuzz::allow_refusal([&] {
      const auto dataset =
          make_megatron_dataset({.paths = {prefix}, .shares = "1", .seq_length = 4, .samples = samples});
      for (std::int64_t i = 0; i < std::min<std::int64_t>(dataset->size(), 20); ++i)
        fuzz::want(dataset->sample(i).input_ids.size() == 4);
    });
  return 0;
}
