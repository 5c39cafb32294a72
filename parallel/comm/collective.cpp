#include "parallel/comm/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>

namespace nemocube {
namespace {

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

std::byte* at(const Tensor& tensor, std::int64_t offset) { return tensor.host_bytes() + offset; }

void write_parts(std::ostream& out, const std::vector<std::int64_t>& counts) {
  constexpr std::size_t most = 8;
  out << counts[0];
  for (std::size_t r = 1; r < counts.size() && r < most; ++r) out << " + " << counts[r];
  if (counts.size() > most) out << " + ... = " << std::reduce(counts.begin(), counts.end(), std::int64_t{0});
  out << " elements";
}

}  // namespace

std::string describe(const Collective& c) {
  std::ostringstream out;
  out << name_of(c.operation) << " number " << c.number;
  switch (c.operation) {
    case Operation::barrier:
      break;
    case Operation::all_reduce:
      out << " (" << name_of(c.reduction) << ", " << c.dtype << ", " << c.out.numel() << " elements)";
      break;
    case Operation::broadcast:
      out << " (from rank " << c.root << ", " << c.dtype << ", " << c.out.numel() << " elements)";
      break;
    case Operation::all_gather:
      out << " (" << c.dtype << ", ";
      write_parts(out, c.out_counts);
      out << ')';
      break;
    case Operation::reduce_scatter:
      out << " (" << name_of(c.reduction) << ", " << c.dtype << ", ";
      write_parts(out, c.in_counts);
      out << ')';
      break;
    case Operation::all_to_all:
      out << " (" << c.dtype << ", rows of " << c.row << " elements)";
      break;
    case Operation::exchange:
      out << " (" << c.sends.size() << " sent, " << c.receives.size() << " received)";
      break;
  }
  return out.str();
}

std::uint32_t fingerprint(const Collective& c) {
  std::uint64_t hash = 1;
  const auto add = [&hash](auto value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  };
  add(c.operation);
  // Two ranks that exchange need not have exchanged equally often with others.
  if (c.operation == Operation::exchange) return static_cast<std::uint32_t>(hash);
  for (const std::int64_t value : {c.number, std::int64_t{c.root}, c.row}) add(value);
  add(c.dtype);
  add(c.reduction);
  switch (c.operation) {
    case Operation::all_reduce:
    case Operation::broadcast:
      add(c.out.numel());
      break;
    case Operation::all_gather:
      std::ranges::for_each(c.out_counts, add);
      break;
    case Operation::reduce_scatter:
      std::ranges::for_each(c.in_counts, add);
      break;
    default:
      break;
  }
  return static_cast<std::uint32_t>(hash);
}

void copy_own_part(const Collective& c, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  switch (c.operation) {
    case Operation::all_gather:
      copy_bytes(at(c.out, byte_offsets(c.out_counts, c.dtype)[r]), c.in.host_bytes(), c.in.bytes());
      break;
    case Operation::all_to_all:
      copy_bytes(at(c.out, byte_offsets(c.out_counts, c.dtype)[r]),
                 at(c.in, byte_offsets(c.in_counts, c.dtype)[r]), c.in_counts[r] * size_of(c.dtype));
      break;
    case Operation::exchange: {
      auto receive = c.receives.begin();
      for (const Send& send : c.sends) {
        if (send.to != rank) continue;
        while (receive->from != rank) ++receive;
        copy_bytes(receive->tensor.host_bytes(), send.tensor.host_bytes(), send.tensor.bytes());
        ++receive;
      }
      break;
    }
    default:
      break;
  }
}

std::vector<std::int64_t> byte_offsets(const std::vector<std::int64_t>& counts, DType dtype) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count * size_of(dtype));
  return offsets;
}

std::vector<std::int64_t> even_counts(std::int64_t count, int parts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(parts), count / parts);
  for (std::int64_t r = 0; r < count % parts; ++r) ++counts[static_cast<std::size_t>(r)];
  return counts;
}

}  // namespace nemocube
