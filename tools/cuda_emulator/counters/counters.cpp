#include "counters/counters.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "counters/l2.h"
#include "machine/launch.h"
#include "machine/resources.h"
#include "machine/watch.h"

namespace emulator {
namespace {

constexpr const char* class_names[] = {
    "integer",     "logic",        "move",       "compare",     "convert",       "half",
    "single",      "double",       "special",    "matrix",      "load_global",   "store_global",
    "load_shared", "store_shared", "load_local", "store_local", "load_constant", "parameter",
    "generic",     "atomic",       "async_copy", "fence",       "warp",          "barrier",
    "control",     "other"};
static_assert(std::size(class_names) == instruction_classes);

/// Sums over all launches of a kernel.
struct Totals {
  std::uint64_t launches = 0, blocks = 0, warp_instructions = 0, lane_instructions = 0, local_bytes = 0;
  std::array<std::uint64_t, instruction_classes> by_class{};
  std::uint64_t multiply_adds = 0, matrix_multiply_adds = 0, atomics = 0;
  std::uint64_t global_bytes = 0, sectors = 0, requests = 0, wavefronts = 0, ideal_wavefronts = 0;
  std::uint64_t dram_read = 0, dram_write = 0;
  KernelResources resources;
  std::uint64_t resident_blocks = 0;  ///< that a multiprocessor holds at once, at the last launch
  double occupancy = 0;
};

struct Book {
  std::mutex mutex;
  std::map<std::string, Totals> kernels;  ///< by readable name
};
Book& book() {
  static Book& the = *new Book;  // outlives static objects: counters are written at exit
  return the;
}

thread_local LaunchCounts last_launch;

const char* counter_file() {
  static const char* const name = std::getenv("CUDA_EMULATOR_COUNTERS");
  return name && *name ? name : nullptr;
}

/// Wavefronts of the lanes of one phase: the most distinct words that one bank of 4 bytes has to serve.
std::uint32_t wavefronts_of(const Access& access, LaneMask lanes, std::uint32_t bytes, std::uint32_t& words) {
  std::array<std::uint32_t, warp_size * 4> list;
  std::uint32_t count = 0;
  for_lanes(lanes, [&](int lane) {
    const std::uint32_t first =
        static_cast<std::uint32_t>(access.address[static_cast<std::size_t>(lane)]) / 4;
    const std::uint32_t last =
        static_cast<std::uint32_t>(access.address[static_cast<std::size_t>(lane)] + bytes - 1) / 4;
    for (std::uint32_t w = first; w <= last && count < list.size(); ++w) list[count++] = w;
  });
  std::sort(list.begin(), list.begin() + count);
  words = static_cast<std::uint32_t>(std::unique(list.begin(), list.begin() + count) - list.begin());
  std::array<std::uint32_t, 32> banks{};
  std::uint32_t most = 0;
  for (std::uint32_t k = 0; k < words; ++k) most = std::max(most, ++banks[list[k] % 32]);
  return most;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

const char* name_of(InstructionClass kind) { return class_names[static_cast<std::size_t>(kind)]; }

void Tally::count(const Instruction& i, LaneMask lanes) {
  const auto active = static_cast<std::uint64_t>(std::popcount(lanes));
  ++by_class_[static_cast<std::size_t>(i.kind)];
  multiply_adds_ += i.multiply_adds * active;
  if (lanes) matrix_multiply_adds_ += i.multiply_adds_of_warp;
  if (i.kind == InstructionClass::atomic) atomics_ += active;
}

void Tally::count_global(const Access& access) {
  if (!access.lanes) return;
  ++requests_;
  global_bytes_ +=
      static_cast<std::uint64_t>(access.bytes) * static_cast<std::uint64_t>(std::popcount(access.lanes));
  struct Piece {
    std::uint64_t address;
    std::uint32_t bytes;
  };
  std::array<Piece, warp_size * 2> pieces;
  std::size_t count = 0;
  for_lanes(access.lanes, [&](int lane) {
    std::uint64_t at = access.address[static_cast<std::size_t>(lane)];
    std::uint32_t left = access.bytes;
    while (left && count < pieces.size()) {
      const std::uint32_t here =
          std::min(left, L2::sector_bytes - static_cast<std::uint32_t>(at % L2::sector_bytes));
      pieces[count++] = {at, here};
      at += here;
      left -= here;
    }
  });
  std::sort(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(count),
            [](const Piece& a, const Piece& b) { return a.address < b.address; });
  const L2::Use use = access.kind == AccessKind::load    ? L2::Use::load
                      : access.kind == AccessKind::store ? L2::Use::store
                                                         : L2::Use::atomic;
  const std::lock_guard lock(l2_->mutex());
  for (std::size_t k = 0; k < count;) {
    // Neighbouring pieces of one sector become one access.
    const std::uint64_t sector = pieces[k].address / L2::sector_bytes;
    ++sectors_;
    while (k < count && pieces[k].address / L2::sector_bytes == sector) {
      const std::uint64_t first = pieces[k].address;
      std::uint64_t end = first + pieces[k].bytes;
      for (++k; k < count && pieces[k].address <= end && pieces[k].address / L2::sector_bytes == sector; ++k)
        end = std::max(end, pieces[k].address + pieces[k].bytes);
      l2_->access(first, static_cast<std::uint32_t>(end - first), use);
    }
  }
}

void Tally::count_shared(const Access& access, bool matrix_rows) {
  if (!access.lanes) return;
  // 8-byte accesses go by half-warps, 16-byte ones and rows of ldmatrix by quarters.
  const std::uint32_t phases = matrix_rows || access.bytes >= 16 ? 4 : access.bytes == 8 ? 2 : 1;
  std::uint32_t words = 0;
  const std::uint32_t whole = wavefronts_of(access, access.lanes, access.bytes, words);
  const std::uint32_t ideal = std::max(1u, (words + 31) / 32);
  std::uint32_t taken = whole;
  if (phases > 1 && whole > 1) {
    taken = 0;
    const std::uint32_t lanes = warp_size / phases;
    for (std::uint32_t p = 0; p < phases; ++p) {
      const LaneMask part = access.lanes & (((1u << lanes) - 1) << (p * lanes));
      std::uint32_t ignored = 0;
      if (part) taken += wavefronts_of(access, part, access.bytes, ignored);
    }
  }
  if (access.kind == AccessKind::atomic) {
    // Lanes that meet at one word go one after the other.
    std::array<std::uint64_t, warp_size> sorted;
    std::size_t count = 0;
    for_lanes(access.lanes,
              [&](int lane) { sorted[count++] = access.address[static_cast<std::size_t>(lane)] / 4; });
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
    std::uint32_t run = 1, longest = 1;
    for (std::size_t k = 1; k < count; ++k)
      longest = std::max(longest, run = sorted[k] == sorted[k - 1] ? run + 1 : 1);
    taken += longest - 1;
  }
  wavefronts_ += taken;
  ideal_wavefronts_ += ideal;
}

struct LaunchCounters {
  Totals totals;
  std::unique_ptr<L2> l2;

  Tally tally() const {
    Tally tally;
    tally.enabled_ = counters_enabled();
    tally.l2_ = l2.get();
    return tally;
  }
  void add(const Tally& t);
};

void DeleteWatched::operator()(LaunchCounters* counters) const { delete counters; }

void LaunchCounters::add(const Tally& t) {
  Totals& sum = totals;
  sum.warp_instructions += t.warp_instructions_;
  sum.lane_instructions += t.lane_instructions_;
  sum.local_bytes += t.local_bytes_;
  for (std::size_t k = 0; k < sum.by_class.size(); ++k) sum.by_class[k] += t.by_class_[k];
  sum.multiply_adds += t.multiply_adds_;
  sum.matrix_multiply_adds += t.matrix_multiply_adds_;
  sum.atomics += t.atomics_;
  sum.global_bytes += t.global_bytes_;
  sum.sectors += t.sectors_;
  sum.requests += t.requests_;
  sum.wavefronts += t.wavefronts_;
  sum.ideal_wavefronts += t.ideal_wavefronts_;
}

namespace count {

Watched<LaunchCounters> launch_begins() {
  Watched<LaunchCounters> counters(new LaunchCounters);
  if (counters_enabled()) counters->l2 = std::make_unique<L2>(l2_bytes());
  return counters;
}

Tally thread_begins(LaunchCounters& counters) { return counters.tally(); }
void thread_ends(LaunchCounters& counters, const Tally& tally) { counters.add(tally); }

void launch_ends(LaunchCounters& counters, const Launch& launch) {
  if (!counters_enabled()) return;
  const Kernel& kernel = launch.kernel();
  const Totals& one = counters.totals;
  counters.l2->flush();
  const LaunchShape& shape = launch.shape();
  const KernelResources& resources = resources_of(kernel);
  const std::uint32_t threads = shape.block.x * shape.block.y * shape.block.z;
  const std::uint64_t resident =
      blocks_per_multiprocessor(threads, resources.registers,
                                kernel.dynamic_shared_offset - kernel.shared_gap_bytes + shape.dynamic_shared)
          .blocks;
  const std::uint64_t blocks = std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z,
                      dram_read = counters.l2->dram_read_bytes(),
                      dram_write = counters.l2->dram_write_bytes();
  last_launch = {dram_read + dram_write,
                 one.sectors,
                 one.matrix_multiply_adds,
                 one.multiply_adds,
                 one.wavefronts,
                 one.warp_instructions,
                 blocks,
                 resident};
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  Totals& sum = all.kernels[kernel.readable];
  ++sum.launches;
  sum.blocks += blocks;
  sum.warp_instructions += one.warp_instructions;
  sum.lane_instructions += one.lane_instructions;
  sum.local_bytes += one.local_bytes;
  for (std::size_t k = 0; k < sum.by_class.size(); ++k) sum.by_class[k] += one.by_class[k];
  sum.multiply_adds += one.multiply_adds;
  sum.matrix_multiply_adds += one.matrix_multiply_adds;
  sum.atomics += one.atomics;
  sum.global_bytes += one.global_bytes;
  sum.sectors += one.sectors;
  sum.requests += one.requests;
  sum.wavefronts += one.wavefronts;
  sum.ideal_wavefronts += one.ideal_wavefronts;
  sum.dram_read += dram_read;
  sum.dram_write += dram_write;
  sum.resources = resources;
  sum.resident_blocks = resident;
  sum.occupancy = static_cast<double>(resident * ((threads + 31) / 32)) / 64;
}

}  // namespace count

LaunchCounts counts_of_last_launch() { return last_launch; }

void restart_counters() {
  const std::lock_guard lock(book().mutex);
  book().kernels.clear();
}

void write_counters() {
  if (!counter_file()) return;
  const std::lock_guard lock(book().mutex);
  // Readers never see half a file.
  const std::string name = counter_file(), draft = name + ".part";
  bool written = false;
  {
    std::ofstream out(draft);
    out << "{\"kernels\":[";
    bool comma = false;
    for (const auto& [kernel, t] : book().kernels) {
      out << (comma ? ",\n" : "\n") << " {\"name\":" << quoted(kernel) << ",\"launches\":" << t.launches
          << ",\"blocks\":" << t.blocks << ",\"resident_blocks\":" << t.resident_blocks
          << ",\"dram_bytes\":" << t.dram_read + t.dram_write << ",\"dram_read_bytes\":" << t.dram_read
          << ",\"dram_write_bytes\":" << t.dram_write << ",\"global_bytes\":" << t.global_bytes
          << ",\"sectors\":" << t.sectors << ",\"requests\":" << t.requests
          << ",\"shared_wavefronts\":" << t.wavefronts
          << ",\"shared_wavefronts_ideal\":" << t.ideal_wavefronts << ",\"local_bytes\":" << t.local_bytes
          << ",\"spill_bytes\":";
      if (t.resources.known)
        out << t.resources.spill_store_bytes + t.resources.spill_load_bytes
            << ",\"registers\":" << t.resources.registers;
      else
        out << "null,\"registers\":null";
      out << ",\"occupancy\":" << t.occupancy << ",\"warp_instructions\":" << t.warp_instructions
          << ",\"lane_instructions\":" << t.lane_instructions << ",\"active_lanes\":"
          << (t.warp_instructions
                  ? static_cast<double>(t.lane_instructions) / static_cast<double>(t.warp_instructions)
                  : 0)
          << ",\"multiply_adds\":" << t.multiply_adds << ",\"mma_multiply_adds\":" << t.matrix_multiply_adds
          << ",\"atomics\":" << t.atomics << ",\"instructions\":{";
      bool inner = false;
      for (std::size_t k = 0; k < t.by_class.size(); ++k) {
        if (!t.by_class[k]) continue;
        out << (inner ? "," : "") << '"' << class_names[k] << "\":" << t.by_class[k];
        inner = true;
      }
      out << "}}";
      comma = true;
    }
    out << "\n]}\n";
    out.close();
    written = out.good();
  }
  if (!written || std::rename(draft.c_str(), name.c_str()) != 0)
    std::fprintf(stderr, "cuda_emulator: cannot write counters to %s\n", name.c_str());
}

void print_counters() {
  if (!counter_file()) return;
  const std::lock_guard lock(book().mutex);
  if (book().kernels.empty()) return;
  std::fprintf(stderr, "cuda_emulator: %8s %11s %11s %11s %9s %7s %6s %6s %6s %6s  kernel\n", "launches",
               "warp instr", "DRAM bytes", "asked", "sectors", "shared", "regs", "spill", "occup", "lanes");
  for (const auto& [kernel, t] : book().kernels) {
    const double conflicts =
        t.ideal_wavefronts ? static_cast<double>(t.wavefronts) / static_cast<double>(t.ideal_wavefronts) : 1;
    std::fprintf(stderr, "cuda_emulator: %8llu %11llu %11llu %11llu %9llu %6.2fx %6s %6s %5.0f%% %6.1f  %s\n",
                 static_cast<unsigned long long>(t.launches),
                 static_cast<unsigned long long>(t.warp_instructions),
                 static_cast<unsigned long long>(t.dram_read + t.dram_write),
                 static_cast<unsigned long long>(t.global_bytes), static_cast<unsigned long long>(t.sectors),
                 conflicts, t.resources.known ? std::to_string(t.resources.registers).c_str() : "?",
                 t.resources.known
                     ? std::to_string(t.resources.spill_store_bytes + t.resources.spill_load_bytes).c_str()
                     : "?",
                 100 * t.occupancy,
                 t.warp_instructions
                     ? static_cast<double>(t.lane_instructions) / static_cast<double>(t.warp_instructions)
                     : 0.0,
                 kernel.c_str());
  }
}

}  // namespace emulator
