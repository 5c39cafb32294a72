#include "parallel/comm/texts.h"

#include <algorithm>

namespace nemocube {
namespace {

Tensor bytes_of(const std::string& text) {
  const Tensor bytes = Tensor::empty({std::ssize(text)}, DType::u8);
  std::ranges::copy(text, bytes.data<std::uint8_t>());
  return bytes;
}

std::string text_of(const Tensor& bytes) {
  const auto* data = bytes.data<std::uint8_t>();
  return {data, data + bytes.numel()};
}

}  // namespace

std::string broadcast_text(Communicator& group, const std::string& text, int root) {
  const Tensor length = Tensor::from<std::int64_t>({std::ssize(text)}, {1});
  group.broadcast(length, root);
  const Tensor bytes =
      group.rank() == root ? bytes_of(text) : Tensor::empty({length.item<std::int64_t>()}, DType::u8);
  group.broadcast(bytes, root);
  return text_of(bytes);
}

std::vector<std::string> all_gather_texts(Communicator& group, const std::string& text) {
  const Tensor lengths = Tensor::empty({group.size()}, DType::i64);
  group.all_gather(lengths, Tensor::from<std::int64_t>({std::ssize(text)}, {1}));
  const std::span<const std::int64_t> counts(lengths.data<std::int64_t>(),
                                             static_cast<std::size_t>(group.size()));
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  const Tensor all = Tensor::empty({total}, DType::u8);
  group.all_gather_v(all, bytes_of(text), counts);
  std::vector<std::string> texts;
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    texts.push_back(text_of(all.narrow(0, first, count)));
    first += count;
  }
  return texts;
}

}  // namespace nemocube
