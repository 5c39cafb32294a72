#include <algorithm>

#include "data/safetensors/quantized.h"
#include "data/safetensors/reader.h"

namespace nemocube {

const std::vector<std::int64_t>& StoredIn::shape() const {
  return quantized ? quantized->shape() : entry->shape;
}

std::string StoredIn::value_dtype() const { return quantized ? "BF16" : entry->dtype; }

int StoredIn::element_bits() const { return quantized ? quantized->bits() : stored_bits(entry->dtype); }

Tensor StoredIn::value() const {
  if (!quantized) return file->tensor(*entry);
  const Tensor all = Tensor::empty(Shape{std::span(shape())}, DType::f32, Device::cpu);  // of the file
  read(0, all);
  return all;
}

StoredIn::Pieces StoredIn::pieces(Range elements) const {
  const std::int64_t bits = element_bits();
  const Range bytes{elements.begin * bits / 8, (elements.end * bits + 7) / 8};
  Pieces pieces{{{file.get(), entry, bytes}, {}, {}}};
  if (quantized) {
    pieces[1] = quantized->scale_bytes(elements);
    pieces[2] = quantized->scale_2_bytes();
  }
  return pieces;
}

std::int64_t bytes_of(const StoredIn::Pieces& pieces) {
  std::int64_t bytes = 0;
  for (const StoredBytes& piece : pieces) bytes += piece.bytes.size();
  return bytes;
}

void read_pieces(const StoredIn::Pieces& pieces, std::vector<std::byte>& to) {
  to.resize(static_cast<std::size_t>(bytes_of(pieces)));
  std::span<std::byte> rest(to);
  for (const StoredBytes& piece : pieces) {
    if (!piece.file) continue;
    const auto size = static_cast<std::size_t>(piece.bytes.size());
    piece.file->read_bytes(*piece.entry, piece.bytes.begin, rest.first(size));
    rest = rest.subspan(size);
  }
}

void StoredIn::convert(Range elements, std::span<const std::byte> bytes, const Tensor& into) const {
  if (!quantized) return file->convert(*entry, bytes, into);
  const Pieces parts = pieces(elements);
  const auto size = [&](std::size_t i) { return static_cast<std::size_t>(parts[i].bytes.size()); };
  expect(std::ssize(bytes) == bytes_of(parts) && into.numel() == elements.size(), entry->name, ": ",
         bytes.size(), " bytes for ", elements.size(), " elements");
  const Tensor values = Tensor::empty(into.shape(), DType::f32, Device::cpu);  // of a file
  quantized->decode(elements, bytes.first(size(0)), bytes.subspan(size(0), size(1)),
                    bytes.subspan(size(0) + size(1)),
                    {values.data<float>(), static_cast<std::size_t>(values.numel())});
  into.copy_from(values);
}

void StoredIn::read(std::int64_t first, const Tensor& into) const {
  if (!quantized) return file->read(*entry, first, into);
  constexpr std::int64_t at_once = 1 << 18;  // elements
  const Tensor flat = into.reshape({-1});
  std::vector<std::byte> bytes;
  for (std::int64_t at = 0; at < flat.numel(); at += at_once) {
    const std::int64_t count = std::min(at_once, flat.numel() - at);
    const Range elements{first + at, first + at + count};
    read_pieces(pieces(elements), bytes);
    convert(elements, bytes, flat.narrow(0, at, count));
  }
}

}  // namespace nemocube
