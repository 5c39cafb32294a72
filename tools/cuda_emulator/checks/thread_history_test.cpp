#include "checks/thread_history.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

using namespace emulator;

namespace {

/// A block of four warps, whose accesses go to the history.
struct Threads {
  static constexpr std::uint32_t warps = 4;
  SharedClocks clocks{warps * warp_size};
  ThreadHistory history{clocks};
  std::vector<ThreadConflict> conflicts;

  /// Lanes of a warp, each `bytes` from its address on, in runs as the checks of global memory make them. Returns how many conflicts.
  std::size_t access(std::uint32_t warp, AccessKind kind, std::uint32_t bytes, LaneMask lanes,
                     const std::array<std::uint64_t, warp_size>& addresses, Order order = Order::weak) {
    Access a;
    a.kind = kind;
    a.order = order;
    a.bytes = bytes;
    a.lanes = lanes;
    a.address = addresses;
    const ThreadHistory::Turn turn{a, warp, 7, kind != AccessKind::load,
                                   kind == AccessKind::atomic || order != Order::weak};
    conflicts.clear();
    std::uint64_t begin = 0, end = 0;
    LaneMask together = 0;
    const auto flush = [&] {
      if (together) history.record(turn, begin, end, together, conflicts);
      together = 0;
    };
    for_lanes(lanes, [&](int lane) {
      const std::uint64_t at = addresses[static_cast<std::size_t>(lane)];
      if (together && at == end) {
        end += bytes;
      } else if (!together || end != at + bytes) {
        flush();
        begin = at;
        end = at + bytes;
      }
      together |= LaneMask{1} << lane;
    });
    flush();
    return conflicts.size();
  }
  /// Lane l's bytes from `base` + l `stride` on.
  std::size_t row(std::uint32_t warp, AccessKind kind, std::uint32_t bytes, std::uint64_t base,
                  std::uint64_t stride, LaneMask lanes = all_lanes) {
    std::array<std::uint64_t, warp_size> addresses{};
    for (std::size_t l = 0; l < warp_size; ++l) addresses[l] = base + l * stride;
    return access(warp, kind, bytes, lanes, addresses);
  }
  std::size_t read(std::uint32_t warp, std::uint32_t bytes, std::uint64_t base, std::uint64_t stride) {
    return row(warp, AccessKind::load, bytes, base, stride);
  }
  std::size_t write(std::uint32_t warp, std::uint32_t bytes, std::uint64_t base, std::uint64_t stride) {
    return row(warp, AccessKind::store, bytes, base, stride);
  }
  void barrier() {
    for (std::uint32_t w = 0; w < warps; ++w) clocks.arrive(0, w);
    clocks.complete(0, (1u << warps) - 1, true);
  }
};

constexpr std::uint64_t base = 0x7f00'0000'0000;

}  // namespace

TEST_CASE("rows of warps: own words, words of other lanes, words of other warps") {
  for (const std::uint32_t bytes : {1u, 2u, 4u, 8u, 16u}) {
    CAPTURE(bytes);
    const std::size_t cells =
        bytes < 4 ? bytes : bytes / 4;  // of a lane's part, once lines are kept in pieces
    for (const std::uint64_t from : {base, base + 16, base + 112}) {
      CAPTURE(from);
      Threads t;
      CHECK(t.write(1, bytes, from, bytes) == 0);
      CHECK(t.read(1, bytes, from, bytes) == 0);
      CHECK(t.write(1, bytes, from, bytes) == 0);
      CHECK(t.row(1, AccessKind::load, bytes, from + bytes, bytes, all_lanes >> 1) == 31 * cells);
      t.clocks.warp_sync(1, all_lanes);
      CHECK(t.row(1, AccessKind::load, bytes, from + bytes, bytes, all_lanes >> 1) == 0);
      CHECK(t.read(2, bytes, from, bytes) == 32 * cells);
      t.barrier();
      CHECK(t.read(2, bytes, from, bytes) == 0);
      CHECK(t.write(3, bytes, from, bytes) > 0);
    }
  }
}

TEST_CASE("of several readers one is met by any writer") {
  for (std::uint32_t writer = 0; writer < 4; ++writer) {
    Threads t;
    for (std::uint32_t w = 0; w < 4; ++w) CHECK(t.read(w, 4, base, 0) == 0);
    t.clocks.warp_sync(writer, all_lanes);
    CHECK(t.row(writer, AccessKind::store, 4, base, 0, 1) == 1);
    CHECK(t.conflicts[0].other / warp_size != writer);
    t.barrier();
    CHECK(t.row(writer, AccessKind::store, 4, base, 0, 1) == 0);
  }
}

TEST_CASE("a window that slides over a row") {
  Threads t;
  for (std::uint64_t k = 0; k < 40; ++k) CHECK(t.read(1, 4, base + 4 * k, 4) == 0);
  CHECK(t.row(2, AccessKind::store, 4, base + 120, 4, 1) == 1);
  t.barrier();
  CHECK(t.row(2, AccessKind::store, 4, base + 60, 4, 1) == 0);
}

TEST_CASE("atomics meet atomics, and nothing else") {
  std::array<std::uint64_t, warp_size> one;
  one.fill(base);
  Threads t;
  CHECK(t.access(0, AccessKind::atomic, 4, all_lanes, one) == 0);
  CHECK(t.access(1, AccessKind::atomic, 4, all_lanes, one) == 0);
  CHECK(t.access(2, AccessKind::load, 4, 1, one, Order::relaxed) == 0);
  CHECK(t.access(2, AccessKind::load, 4, 1, one) == 1);
  t.barrier();
  CHECK(t.access(2, AccessKind::load, 4, 1, one) == 0);
}

/// Against a plain account of each byte: the last write and the reads since. No access may be accused that the account calls ordered,
/// and a write that meets a write, or a read that meets one, must be.
TEST_CASE("random accesses, against an account of each byte") {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    Threads t;
    struct Byte {
      int writer = -1;
      ThreadTime written = 0;
      std::vector<std::pair<std::uint32_t, ThreadTime>> readers;
    };
    std::map<std::uint64_t, Byte> account;
    for (int step = 0; step < 80; ++step) {
      if (random() % 6 == 0) {
        if (random() % 3)
          t.clocks.warp_sync(random() % Threads::warps, random() % 2 ? all_lanes : random() | 1);
        else
          t.barrier();
        continue;
      }
      const std::uint32_t warp = random() % Threads::warps, bytes = 1u << random() % 4;
      const bool store = random() % 3 == 0;
      const LaneMask lanes = random() % 2 ? all_lanes : random() | 1u << random() % 32;
      // Rows of lanes, scattered lanes, or one place: stores without overlap, whose lanes would race among themselves.
      const std::uint64_t start = base + random() % 8 * 16, kind = random() % (store ? 2 : 3);
      std::array<std::uint64_t, warp_size> addresses;
      for (std::uint64_t l = 0; l < warp_size; ++l)
        addresses[l] = start + (kind == 0 ? l : kind == 1 ? l * 7 % 32 : 0) * bytes;
      bool write_met = false, any_met = false;
      for_lanes(lanes, [&](int lane) {
        const std::uint32_t me = warp * warp_size + static_cast<std::uint32_t>(lane);
        const std::uint64_t from = addresses[static_cast<std::size_t>(lane)];
        for (std::uint64_t at = from; at < from + bytes; ++at) {
          const Byte& byte = account[at];
          if (byte.writer >= 0 && !t.clocks.before(static_cast<std::uint32_t>(byte.writer), byte.written, me))
            write_met = true;
          for (const auto& [reader, time] : byte.readers)
            if (store && !t.clocks.before(reader, time, me)) any_met = true;
        }
      });
      any_met = any_met || write_met;
      const bool found =
          t.access(warp, store ? AccessKind::store : AccessKind::load, bytes, lanes, addresses) > 0;
      CAPTURE(round);
      CAPTURE(step);
      if (write_met) CHECK(found);
      if (!any_met) CHECK_FALSE(found);
      for_lanes(lanes, [&](int lane) {
        const std::uint32_t me = warp * warp_size + static_cast<std::uint32_t>(lane);
        const std::uint64_t from = addresses[static_cast<std::size_t>(lane)];
        for (std::uint64_t at = from; at < from + bytes; ++at) {
          Byte& byte = account[at];
          if (store)
            byte = {static_cast<int>(me), t.clocks.now(warp), {}};
          else
            byte.readers.emplace_back(me, t.clocks.now(warp));
        }
      });
    }
  }
}
