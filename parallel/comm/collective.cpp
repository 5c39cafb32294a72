#include "parallel/comm/collective.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "core/range.h"

namespace nemocube {
namespace {

Tensor flat(const Tensor& t) { return t.reshape({t.numel()}); }

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

trace::Event traced_collective(const Collective& call, const char* group, const CommStats& stats) {
  return {.name = name_of(call.operation).data(),
          .category = trace::Category::collective,
          .arguments = {{{"bytes", stats.bytes_sent},
                         {"group", group},
                         {"number", call.number},
                         {"waiting_seconds", stats.waiting_seconds}}}};
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

GroupedMessages grouped_messages(const Collective& c, int rank) {
  if (c.operation == Operation::exchange) return {c.sends, c.receives};
  GroupedMessages messages;
  const bool gathers = c.operation == Operation::all_gather;
  if (!gathers && c.operation != Operation::all_to_all) return messages;
  const int size = static_cast<int>(c.out_counts.size());
  const auto parts = [&](const Tensor& t, const std::vector<std::int64_t>& counts) {
    std::vector<Tensor> of_rank;
    std::int64_t begin = 0;
    for (const std::int64_t count : counts) {
      of_rank.push_back(flat(t).narrow(0, begin, count));
      begin += count;
    }
    return of_rank;
  };
  const std::vector<Tensor> out = parts(c.out, c.out_counts),
                            in = gathers ? std::vector(out.size(), flat(c.in)) : parts(c.in, c.in_counts);
  for (int i = 0; i < size; ++i) {
    const int next = (rank + i) % size, previous = (rank + size - i) % size;
    messages.receives.push_back({out[static_cast<std::size_t>(previous)], previous});
    messages.sends.push_back({in[static_cast<std::size_t>(next)], next});
  }
  return messages;
}

std::int64_t bytes_for_others(const Collective& call, int rank, int size) {
  const auto own_part = [&](std::int64_t count) {
    return even_part({0, count}, size, rank).size() * size_of(call.dtype);
  };
  const std::int64_t others = size - 1;
  switch (call.operation) {
    case Operation::all_reduce:  // the parts of others, and the sum of the own one to all
      return call.out.bytes() - own_part(call.out.numel()) + others * own_part(call.out.numel());
    case Operation::reduce_scatter:
      return call.in.bytes() - call.out.bytes();
    case Operation::broadcast: {  // each part from the root to its rank, and from there to the others
      const std::int64_t own = own_part(call.out.numel());
      return rank == call.root ? call.out.bytes() - own + others * own : (others - 1) * own;
    }
    default:
      break;
  }
  std::int64_t bytes = 0;
  for (const Send& send : grouped_messages(call, rank).sends)
    if (send.to != rank) bytes += send.tensor.bytes();
  return bytes;
}

void copy_own_messages(const GroupedMessages& messages, int rank) {
  auto receive = messages.receives.begin();
  for (const Send& send : messages.sends) {
    if (send.to != rank) continue;
    while (receive->from != rank) ++receive;
    copy_elements(receive->tensor, send.tensor);
    ++receive;
  }
}

void copy_elements(const Tensor& to, const Tensor& from) {
  if (to.numel() > 0 && to.address() != from.address()) flat(to).copy_from(flat(from));
}

std::vector<std::int64_t> byte_offsets(const std::vector<std::int64_t>& counts, DType dtype) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count * size_of(dtype));
  return offsets;
}

}  // namespace nemocube
