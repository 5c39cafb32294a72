#include "data/safetensors/part_reader.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "data/safetensors/shard_json.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {

constexpr std::int64_t window_bytes = std::int64_t{4} << 20;     // of a part, read at once
constexpr std::int64_t most_gap_bytes = std::int64_t{64} << 10;  // read along with what is wanted around them

std::int64_t elements_of(const StoredIn& stored) {
  std::int64_t elements = 1;
  for (const std::int64_t size : stored.shape()) elements *= size;
  return elements;
}

/// Neighbours in a part and in the global tensor.
struct Piece {
  std::int64_t global, count;
  std::size_t part;
  std::int64_t local;  // element of the part
  std::int64_t end() const { return global + count; }
};

/// Where each element of a global tensor is stored, by rising element.
std::vector<Piece> pieces_of(const std::vector<StoredPart>& parts) {
  std::vector<Piece> all;
  for (std::size_t p = 0; p < parts.size(); ++p)
    parts[p].shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      all.push_back({global, count, p, local});
    });
  std::ranges::sort(all, {}, [](const Piece& piece) { return std::pair(piece.global, piece.part); });
  std::vector<Piece> once;
  std::int64_t covered = 0;
  for (Piece piece : all) {
    const std::int64_t known = std::max<std::int64_t>(covered - piece.global, 0);
    if (known >= piece.count) continue;
    piece.global += known, piece.local += known, piece.count -= known;
    covered = piece.end();
    once.push_back(piece);
  }
  return once;
}

/// Elements of a part that a rank copies into its own.
struct Copy {
  std::size_t part;
  std::int64_t from;  // element of the part
  int rank;
  std::int64_t to;  // element of what the rank wants
  std::int64_t count;
  Range elements() const { return {from, from + count}; }
};

/// Elements of a part that one rank reads at once, and all that is wanted of them.
struct Span {
  std::size_t part;
  std::int64_t begin, end;
  std::vector<Copy> copies;
  int reader = 0;
  Range elements() const { return {begin, end}; }
  bool wanted_by(int rank) const {
    return std::ranges::any_of(copies, [&](const Copy& copy) { return copy.rank == rank; });
  }
};

class Reader {
 public:
  explicit Reader(Communicator* node)
      : node_(node && node->size() > 1 ? node : nullptr),
        rank_(node_ ? node_->rank() : 0),
        loads_(node_ ? static_cast<std::size_t>(node_->size()) : 1, 0) {}

  void read(const std::string& name, const std::vector<StoredPart>& parts,
            const std::vector<std::optional<Shard>>& wanted, const Tensor& into,
            const std::function<void(double share)>& on_share) {
    const bool wants = wanted[static_cast<std::size_t>(rank_)].has_value() && into.numel() > 0;
    // Rows of a matrix are many copies, which are too small for a device.
    const bool staged = wants && into.device() != Device::cpu;  // bytes of files come to the host
    const Tensor host = staged ? Tensor::empty(into.shape(), into.dtype(), Device::cpu)  // for them
                               : into;
    const std::vector<Span> spans = plan(name, parts, wanted);
    const std::int64_t at_once = window_bytes * std::ssize(loads_);
    for (std::size_t begin = 0; begin < spans.size();) {
      std::size_t end = begin;
      for (std::int64_t bytes = 0; end < spans.size() && (end == begin || bytes < at_once); ++end)
        bytes += bytes_of(parts, spans[end]);
      move(parts, std::span(spans).subspan(begin, end - begin), host);
      begin = end;
      on_share(static_cast<double>(end) / static_cast<double>(spans.size()));
    }
    if (staged) attempt([&] { into.copy_from(host); });
  }

  BytesRead finish() const {
    if (failure_) std::rethrow_exception(failure_);
    return bytes_;
  }

 private:
  // Ranks that wait for this one get their bytes in any case.
  template <class Fn>
  void attempt(Fn&& work) {
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  static std::int64_t window_of(const StoredPart& part) { return window_bytes * 8 / part.at.element_bits(); }
  static std::int64_t bytes_of(const std::vector<StoredPart>& parts, const Span& span) {
    return nemocube::bytes_of(parts[span.part].at.pieces(span.elements()));
  }

  // All ranks of the node make the same plan.
  std::vector<Span> plan(const std::string& name, const std::vector<StoredPart>& parts,
                         const std::vector<std::optional<Shard>>& wanted) {
    std::vector<Copy> copies = copies_of(name, parts, wanted);
    std::ranges::sort(copies, {}, [](const Copy& c) { return std::tuple(c.part, c.from, c.rank); });
    std::vector<Span> spans;
    for (const Copy& copy : copies) {
      const std::int64_t bits = parts[copy.part].at.element_bits(), window = window_of(parts[copy.part]);
      if (spans.empty() || spans.back().part != copy.part ||
          spans.back().begin / window != copy.from / window ||
          (copy.from - spans.back().end) * bits > most_gap_bytes * 8)
        spans.push_back({copy.part, copy.from, copy.from, {}});
      spans.back().end = std::max(spans.back().end, copy.from + copy.count);
      spans.back().copies.push_back(copy);
    }
    for (Span& span : spans) span.reader = choose_reader(span, bytes_of(parts, span));
    return spans;
  }

  std::vector<Copy> copies_of(const std::string& name, const std::vector<StoredPart>& parts,
                              const std::vector<std::optional<Shard>>& wanted) {
    const std::vector<Piece> pieces = pieces_of(parts);
    std::vector<Copy> copies;
    for (int rank = 0; rank < std::ssize(wanted); ++rank) {
      const auto& shard = wanted[static_cast<std::size_t>(rank)];
      if (!shard) continue;
      shard->for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
        const std::int64_t first = global, end = global + count;
        auto piece = std::ranges::upper_bound(pieces, global, {}, &Piece::end);
        for (; global < end && piece != pieces.end() && piece->global <= global; ++piece) {
          const std::int64_t length = std::min(end, piece->end()) - global;
          add_copy(
              copies, parts,
              {piece->part, piece->local + global - piece->global, rank, local + global - first, length});
          global += length;
        }
        if (global < end && rank == rank_)
          attempt([&] {
            fail("tensor '", name, "' ", shard->global_shape(), ": no file holds its elements from ", global,
                 " on");
          });
      });
    }
    return copies;
  }

  // Windows begin at the same elements of a part whoever wants them.
  static void add_copy(std::vector<Copy>& copies, const std::vector<StoredPart>& parts, Copy copy) {
    const std::int64_t window = window_of(parts[copy.part]);
    while (copy.count > 0) {
      Copy piece = copy;
      piece.count = std::min(copy.count, window - copy.from % window);
      copies.push_back(piece);
      copy.from += piece.count, copy.to += piece.count, copy.count -= piece.count;
    }
  }

  // Of the ranks that want some of the span, the one that has read least.
  int choose_reader(const Span& span, std::int64_t bytes) {
    int reader = span.copies[0].rank;
    for (const Copy& copy : span.copies)
      if (loads_[static_cast<std::size_t>(copy.rank)] < loads_[static_cast<std::size_t>(reader)])
        reader = copy.rank;
    loads_[static_cast<std::size_t>(reader)] += bytes;
    return reader;
  }

  // Reads the spans of this rank, sends what others want of them, and receives what others have read.
  void move(const std::vector<StoredPart>& parts, std::span<const Span> spans, const Tensor& into) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::vector<const Span*> received;
    std::vector<std::byte> bytes, of_copy;
    for (const Span& span : spans) {
      const StoredIn& at = parts[span.part].at;
      if (span.reader != rank_) {
        if (!span.wanted_by(rank_)) continue;
        const Tensor packet =
            Tensor::empty({packed_bytes(at, span, rank_)}, DType::u8, Device::cpu);  // of a file
        receives.push_back({packet, span.reader});
        received.push_back(&span);
        bytes_.from_ranks += receives.back().tensor.bytes();
        continue;
      }
      bytes_.from_files += bytes_of(parts, span);
      if (span.copies.size() == 1) {  // of this rank: straight to its place
        attempt([&] { at.read(span.begin, place_of(span.copies[0], into)); });
        continue;
      }
      const StoredIn::Pieces held = at.pieces(span.elements());
      bytes.resize(static_cast<std::size_t>(nemocube::bytes_of(held)));
      attempt([&] { read_pieces(held, bytes); });
      for (const Copy& copy : span.copies) {
        if (copy.rank != rank_) continue;
        const StoredIn::Pieces wanted = at.pieces(copy.elements());
        of_copy.resize(static_cast<std::size_t>(nemocube::bytes_of(wanted)));
        take(held, bytes, wanted, of_copy.data());
        store(at, of_copy, copy, into);
      }
      for (int rank = 0; rank < std::ssize(loads_); ++rank)
        if (rank != rank_ && span.wanted_by(rank)) sends.push_back({packed(at, span, bytes, rank), rank});
    }
    if (!node_) return;
    node_->exchange(std::move(sends), receives);
    for (std::size_t i = 0; i < received.size(); ++i) {
      const StoredIn& at = parts[received[i]->part].at;
      const Tensor& packet = receives[i].tensor;
      std::span<const std::byte> rest(packet.host_bytes(), static_cast<std::size_t>(packet.bytes()));
      for (const Copy& copy : received[i]->copies) {
        if (copy.rank != rank_) continue;
        const auto size = static_cast<std::size_t>(nemocube::bytes_of(at.pieces(copy.elements())));
        store(at, rest.first(size), copy, into);
        rest = rest.subspan(size);
      }
    }
  }

  static Tensor place_of(const Copy& copy, const Tensor& into) {
    return into.reshape({-1}).narrow(0, copy.to, copy.count);
  }

  void store(const StoredIn& at, std::span<const std::byte> bytes, const Copy& copy, const Tensor& into) {
    attempt([&] { at.convert(copy.elements(), bytes, place_of(copy, into)); });
  }

  // Of `bytes`, which hold the pieces `held`, those of the pieces `wanted`; returns the end of what it wrote.
  static std::byte* take(const StoredIn::Pieces& held, std::span<const std::byte> bytes,
                         const StoredIn::Pieces& wanted, std::byte* to) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < held.size(); ++i) {
      const std::int64_t first = begin + wanted[i].bytes.begin - held[i].bytes.begin;
      to = std::ranges::copy(bytes.subspan(static_cast<std::size_t>(first),
                                           static_cast<std::size_t>(wanted[i].bytes.size())),
                             to)
               .out;
      begin += held[i].bytes.size();
    }
    return to;
  }

  static std::int64_t packed_bytes(const StoredIn& at, const Span& span, int rank) {
    std::int64_t bytes = 0;
    for (const Copy& copy : span.copies)
      if (copy.rank == rank) bytes += nemocube::bytes_of(at.pieces(copy.elements()));
    return bytes;
  }

  // What a rank wants of a span, one copy after the other.
  static Tensor packed(const StoredIn& at, const Span& span, std::span<const std::byte> bytes, int rank) {
    const Tensor all = Tensor::empty({packed_bytes(at, span, rank)}, DType::u8, Device::cpu);  // of a file
    const StoredIn::Pieces held = at.pieces(span.elements());
    std::byte* to = all.host_bytes();
    for (const Copy& copy : span.copies)
      if (copy.rank == rank) to = take(held, bytes, at.pieces(copy.elements()), to);
    return all;
  }

  Communicator* node_;  // null: one rank
  int rank_;
  std::vector<std::int64_t> loads_;  // bytes that each rank reads
  BytesRead bytes_;
  std::exception_ptr failure_;
};

std::int64_t stored_bytes(const std::vector<StoredPart>& parts) {
  std::int64_t bytes = 0;
  for (const StoredPart& part : parts) bytes += part.at.entry->bytes();
  return bytes;
}

/// What each rank wants of each tensor.
std::vector<std::vector<std::optional<Shard>>> wanted_by_ranks(std::span<const WantedPart> wanted,
                                                               Communicator* node) {
  Json own = Json::array();
  for (const WantedPart& w : wanted) own.push_back(w.into.is_meta() ? Json() : to_json(w.shard));
  std::vector<std::vector<std::optional<Shard>>> all(wanted.size());
  for (const std::string& text : gather_texts(node, dump_json(own, -1))) {
    const Json json = parse_json(text, "parts that a rank reads");
    const auto shards = JsonView(json, "parts that a rank reads").elements();
    expect(shards.size() == wanted.size(), "a rank reads ", shards.size(), " tensors, another ",
           wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      all[i].push_back(shards[i].value().is_null() ? std::nullopt
                                                   : std::optional(shard_from_json(shards[i])));
  }
  return all;
}

}  // namespace

BytesRead read_parts(std::span<const WantedPart> wanted,
                     const std::function<std::vector<StoredPart>(const WantedPart&)>& stored,
                     Communicator* node, const OnBytes& on_bytes) {
  std::int64_t total = 0, before = 0;
  if (on_bytes)
    for (const WantedPart& part : wanted) total += stored_bytes(stored(part));
  const auto by_rank = wanted_by_ranks(wanted, node);
  Reader reader(node);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool anyone = std::ranges::any_of(by_rank[i], [](const auto& shard) { return shard.has_value(); });
    if (!anyone && !on_bytes) continue;
    const std::vector<StoredPart> parts = stored(wanted[i]);
    const std::int64_t bytes = stored_bytes(parts);
    const auto on_share = [&](double share) {
      if (on_bytes) on_bytes(before + static_cast<std::int64_t>(share * static_cast<double>(bytes)), total);
    };
    before += anyone ? 0 : bytes;
    if (!anyone) continue;
    for (const StoredPart& part : parts) {
      require(elements_of(part.at) == part.shard.numel(), part.at.file->path().string(), ": ",
              describe(*part.at.entry), " of '", part.at.entry->name, "': want ", part.shard.numel(),
              " elements of ", part.shard.global_shape());
    }
    reader.read(wanted[i].name, parts, by_rank[i], wanted[i].into, on_share);
    before += bytes;
  }
  return reader.finish();
}

}  // namespace nemocube
