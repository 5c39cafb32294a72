#include "checks/global_shadow.h"

#include <doctest/doctest.h>

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "machine/report.h"
#include "memory/address_space.h"
#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// Kinds of reports.
struct Kinds : std::set<std::string> {
  using set::set;
  friend std::ostream& operator<<(std::ostream& out, const Kinds& kinds) {
    for (const std::string& kind : kinds) out << kind << ' ';
    return out;
  }
};

Kinds take_kinds() {
  const std::vector<std::string> reports = take_reports();
  return {reports.begin(), reports.end()};
}

struct Setup {
  std::uint32_t blocks = 8, threads = 32;
  std::uint64_t bytes = 4096;  ///< of p0, zeros
  bool written = true;         ///< p0 has been filled with zeros
};

/// Kinds of reports of a kernel with the buffer p0 and more buffers of the same size that were never written, over several seeds.
/// In the text: %p0 ..., %r90 = block, %r91 = thread in the block, %r92 = number of blocks, %rd90 = 4 * block, %rd91 = 4 * thread in
/// the grid.
Kinds reports_of(const std::string& body, const Setup& setup = {}, int buffers = 1, int seeds = 6) {
  const std::string prologue =
      "mov.u32 %r90, %ctaid.x;\nmov.u32 %r91, %tid.x;\nmov.u32 %r92, %nctaid.x;\n"
      "mul.wide.u32 %rd90, %r90, 4;\nmul.wide.u32 %rd91, %t, 4;\n";
  Module module({kernel_text(buffers, prologue + body)}, 0);
  Kinds kinds;
  take_kinds();
  for (int seed = 1; seed <= seeds; ++seed) {
    std::vector<std::unique_ptr<Buffer>> memory;
    Arguments arguments;
    for (int b = 0; b < buffers; ++b) {
      memory.push_back(std::make_unique<Buffer>(setup.bytes));
      arguments.add(memory.back()->address());
    }
    const std::vector<std::byte> zeros(setup.bytes);
    if (setup.written) memory[0]->write(zeros.data(), setup.bytes);
    LaunchShape shape;
    shape.grid.x = setup.blocks;
    shape.block.x = setup.threads;
    CHECK(run(module, shape, arguments, "", static_cast<std::uint64_t>(seed)) == 0);
    kinds.merge(take_kinds());
  }
  return kinds;
}

const Kinds silent;

/// Thread 0 goes on, the others jump to the end.
const std::string first_thread = "setp.ne.u32 %q0, %r91, 0;\n@%q0 bra END;\n";
const std::string address_of_mine = "add.s64 %rd1, %p0, %rd90;\n";
/// The word of the next block, the first one after the last.
const std::string address_of_next =
    "add.u32 %r1, %r90, 1;\nrem.u32 %r1, %r1, %r92;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %p0, %rd2;\n";

/// A barrier of all blocks by the counter at p0 + `at`, which thread 0 of each block raises by one in phase `phase` (from 1 on).
std::string grid_barrier(int at, int phase, const std::string& arrive) {
  const std::string n = std::to_string(at) + std::to_string(phase);
  return "bar.sync 0;\nsetp.ne.u32 %q1, %r91, 0;\n@%q1 bra GO" + n + ";\n" + arrive + "add.s64 %rd10, %p0, " +
         std::to_string(at) + ";\nmul.lo.u32 %r10, %r92, " + std::to_string(phase) + ";\nSPIN" + n +
         ":\nld.acquire.gpu.global.u32 %r11, [%rd10];\nsetp.lt.u32 %q2, %r11, %r10;\n@%q2 bra SPIN" + n +
         ";\nGO" + n + ":\nbar.sync 0;\n";
}
std::string arrive_released(int at) {
  return "add.s64 %rd10, %p0, " + std::to_string(at) +
         ";\natom.add.release.gpu.global.u32 %r11, [%rd10], 1;\n";
}
std::string arrive_fenced(int at) {
  return "add.s64 %rd10, %p0, " + std::to_string(at) +
         ";\nmembar.gl;\natom.add.global.u32 %r11, [%rd10], 1;\n";
}
std::string arrive_unfenced(int at) {
  return "add.s64 %rd10, %p0, " + std::to_string(at) + ";\natom.add.global.u32 %r11, [%rd10], 1;\n";
}

}  // namespace

TEST_CASE("blocks that keep to words of their own are silent") {
  CHECK(reports_of("add.s64 %rd1, %p0, %rd91;\nld.global.u32 %r1, [%rd1];\nadd.u32 %r1, %r1, 1;\n"
                   "st.global.u32 [%rd1], %r1;\nld.global.u32 %r2, [%rd1];\n") == silent);
}

TEST_CASE("writes of several blocks to one word") {
  CHECK(reports_of(first_thread + "st.global.u32 [%p0], %r90;\nEND:\n") == Kinds{"global-race"});
  CHECK(reports_of(first_thread + "mov.u32 %r1, 7;\nst.global.u32 [%p0], %r1;\nEND:\n") ==
        Kinds{"global-race-equal"});
  CHECK(reports_of(first_thread + "atom.global.add.u32 %r1, [%p0], 1;\nEND:\n") == silent);
  CHECK(reports_of(first_thread + "st.volatile.global.u32 [%p0], %r90;\nEND:\n") == silent);
  CHECK(reports_of(first_thread + "atom.global.cta.add.u32 %r1, [%p0], 1;\nEND:\n") == Kinds{"global-race"});
}

TEST_CASE("a block reads what another one writes") {
  const std::string exchange =
      first_thread + address_of_mine + address_of_next + "st.global.u32 [%rd1], %r90;\n";
  CHECK(reports_of(exchange + "ld.global.u32 %r2, [%rd2];\nEND:\n") == Kinds{"global-race"});
  CHECK(reports_of(exchange + "ld.global.u32 %r2, [%rd1];\nEND:\n") == silent);
}

TEST_CASE("neighbouring halves and bytes of one word belong to different blocks") {
  const std::string half = first_thread + "mul.wide.u32 %rd1, %r90, 2;\nadd.s64 %rd1, %p0, %rd1;\n";
  CHECK(reports_of(
            half +
            "ld.global.b16 %h1, [%rd1];\nst.global.b16 [%rd1], %h1;\nld.global.b16 %h2, [%rd1];\nEND:\n") ==
        silent);
  const std::string byte = first_thread + "cvt.u64.u32 %rd1, %r90;\nadd.s64 %rd1, %p0, %rd1;\n";
  CHECK(reports_of(byte + "mov.b16 %h1, 1;\nst.global.u8 [%rd1], %h1;\nld.global.u8 %h2, [%rd1];\nEND:\n") ==
        silent);
  CHECK(reports_of(
            byte +
            "mov.b16 %h1, 1;\nst.global.u8 [%rd1], %h1;\nadd.u32 %r1, %r90, 1;\nrem.u32 %r1, %r1, %r92;\n"
            "cvt.u64.u32 %rd2, %r1;\nadd.s64 %rd2, %p0, %rd2;\nld.global.u8 %h2, [%rd2];\nEND:\n") ==
        Kinds{"global-race"});
}

TEST_CASE("odd rows of halves: the first and the last word of a row are shared with its neighbours") {
  // Block b works on halves [33 b, 33 b + 33), a thread each.
  CHECK(reports_of("mad.lo.u32 %r1, %r90, 33, %r91;\nmul.wide.u32 %rd1, %r1, 2;\nadd.s64 %rd1, %p0, %rd1;\n"
                   "ld.global.b16 %h1, [%rd1];\nst.global.b16 [%rd1], %h1;\nld.global.b16 %h2, [%rd1];\n",
                   {.blocks = 8, .threads = 33}) == silent);
}

TEST_CASE("the last block adds up what the others have left") {
  const auto reduction = [](const std::string& fence, const std::string& after = "") {
    return first_thread + address_of_mine + "st.global.u32 [%rd1+1024], %r90;\n" + fence +
           "sub.u32 %r5, %r92, 1;\natom.global.inc.u32 %r1, [%p0], %r5;\n" + after +
           "setp.ne.u32 %q1, %r1, %r5;\n@%q1 bra END;\n" + fence +
           "mov.u32 %r2, 0;\nmov.u64 %rd3, %p0;\n"
           "LOOP:\nld.global.u32 %r3, [%rd3+1024];\nadd.s64 %rd3, %rd3, 4;\nadd.u32 %r2, %r2, 1;\n"
           "setp.lt.u32 %q2, %r2, %r92;\n@%q2 bra LOOP;\nst.global.u32 [%p0+2048], %r3;\n"
           "mov.u32 %r4, 0;\nst.global.u32 [%p0], %r4;\nEND:\n";
  };
  CHECK(reports_of(reduction("membar.gl;\n")) == silent);
  CHECK(reports_of(reduction("fence.acq_rel.gpu;\n")) == silent);
  CHECK(reports_of(reduction("")) == Kinds{"missing-fence"});
  CHECK(reports_of(reduction("membar.cta;\n")) == Kinds{"missing-fence"});
  // A store after the counter was raised.
  CHECK(reports_of(reduction("membar.gl;\n", "st.global.u32 [%rd1+1024], %r90;\n")) == Kinds{"global-race"});
}

TEST_CASE("the last block clears a counter that all blocks raised at the same time") {
  const std::string arrivals =
      first_thread +
      "mul.lo.u32 %r5, %r92, 50;\nsub.u32 %r5, %r5, 1;\nmov.u32 %r2, 0;\n"
      "LOOP:\nmembar.gl;\natom.global.inc.u32 %r1, [%p0], %r5;\nadd.u32 %r2, %r2, 1;\n"
      "setp.lt.u32 %q2, %r2, 50;\n@%q2 bra LOOP;\n"
      "setp.ne.u32 %q1, %r1, %r5;\n@%q1 bra END;\nmembar.gl;\nst.global.u32 [%p0], %r2;\nEND:\n";
  CHECK(reports_of(arrivals, {}, 1, 20) == silent);
}

TEST_CASE("all threads store, one hands over after the block barrier") {
  const auto reduction = [](const std::string& by_all, const std::string& by_first) {
    return "add.s64 %rd1, %p0, %rd91;\nst.global.u32 [%rd1+1024], %r90;\n" + by_all + "bar.sync 0;\n" +
           first_thread + by_first +
           "sub.u32 %r5, %r92, 1;\natom.global.inc.u32 %r1, [%p0], %r5;\n"
           "setp.ne.u32 %q1, %r1, %r5;\n@%q1 bra END;\nmembar.gl;\nld.global.u32 %r3, "
           "[%p0+1024];\nld.global.u32 %r3, [%p0+1284];\n"
           "ld.global.u32 %r3, [%p0+2044];\nEND:\n";
  };
  CHECK(reports_of(reduction("membar.gl;\n", "")) == silent);
  CHECK(reports_of(reduction("", "membar.gl;\n")) == silent);
  CHECK(reports_of(reduction("", "")) == Kinds{"missing-fence"});
  CHECK(reports_of(reduction("bar.sync 0;\nmembar.gl;\n", "")) == silent);
}

TEST_CASE("a stencil over two buffers with a barrier of the grid between its steps") {
  // Thread t writes word t of one half and reads word t+1 of it after the barrier.
  const auto stencil = [](const std::string& barrier1, const std::string& barrier2) {
    return "add.s64 %rd1, %p0, %rd91;\nld.global.u32 %r1, [%rd1+64];\nst.global.u32 [%rd1+1088], %r1;\n" +
           barrier1 + "ld.global.u32 %r2, [%rd1+1092];\nst.global.u32 [%rd1+64], %r2;\n" + barrier2 +
           "ld.global.u32 %r3, [%rd1+68];\nst.global.u32 [%rd1+1088], %r3;\n";
  };
  const Setup setup{.blocks = 6, .threads = 32};
  const auto barrier = [](int phase, const std::string& arrive) { return grid_barrier(0, phase, arrive); };
  // Reading the words of the buffer's end, which nobody wrote in this launch, is fine: p0 is filled with zeros.
  CHECK(reports_of(stencil(barrier(1, arrive_released(0)), barrier(2, arrive_released(0))), setup) == silent);
  CHECK(reports_of(stencil(barrier(1, arrive_fenced(0)), barrier(2, arrive_fenced(0))), setup) == silent);
  CHECK(reports_of(stencil(barrier(1, arrive_unfenced(0)), barrier(2, arrive_unfenced(0))), setup) ==
        Kinds{"missing-fence"});
  CHECK(reports_of(stencil("", ""), setup) == Kinds{"global-race"});
  CHECK(reports_of(stencil(barrier(1, arrive_released(0)), ""), setup) == Kinds{"global-race"});
}

TEST_CASE("every block reads all, then one writes") {
  const std::string read =
      "mul.wide.u32 %rd1, %r91, 4;\nadd.s64 %rd1, %p0, %rd1;\nld.global.u32 %r1, [%rd1+64];\n";
  const std::string write = "st.global.u32 [%rd1+64], %r90;\n";
  const std::string by_first = "setp.ne.u32 %q0, %r90, 0;\n@%q0 bra END;\n";
  const std::string barrier = grid_barrier(0, 1, arrive_released(0));
  CHECK(reports_of(read + barrier + by_first + write + "END:\n") == silent);
  CHECK(reports_of(read + by_first + write + "END:\n") == Kinds{"global-race"});
  CHECK(reports_of(read + barrier + read + by_first + write + "END:\n") == Kinds{"global-race"});
}

TEST_CASE("look-back by packs of 16 bytes without a fence") {
  // Block b > 0 waits for the pack of block b - 1 and publishes its own.
  CHECK(
      reports_of(
          first_thread +
              "mul.wide.u32 %rd1, %r90, 16;\nadd.s64 %rd1, %p0, %rd1;\nmov.u64 %rd4, 1;\nmov.u64 %rd3, 0;\n"
              "setp.eq.u32 %q1, %r90, 0;\n@%q1 bra PUBLISH;\nSPIN:\n"
              "ld.relaxed.gpu.global.v2.u64 {%rd2, %rd3}, [%rd1+-16];\nsetp.eq.u64 %q2, %rd2, 0;\n@%q2 bra "
              "SPIN;\n"
              "PUBLISH:\nadd.u64 %rd3, %rd3, 5;\nst.relaxed.gpu.global.v2.u64 [%rd1], {%rd4, %rd3};\nEND:\n",
          {.blocks = 20}) == silent);
}

TEST_CASE("a flag behind which a block leaves a value") {
  const auto chain = [](const std::string& store_flag, const std::string& load_flag,
                        const std::string& fence) {
    return first_thread + address_of_mine + "setp.eq.u32 %q1, %r90, 0;\n@%q1 bra PUBLISH;\nSPIN:\n" +
           load_flag + " %r1, [%rd1+-4];\nsetp.eq.u32 %q2, %r1, 0;\n@%q2 bra SPIN;\n" + fence +
           "ld.global.u32 %r2, [%rd1+1020];\nPUBLISH:\nst.global.u32 [%rd1+1024], %r90;\n" + fence +
           "mov.u32 %r3, 1;\n" + store_flag + " [%rd1], %r3;\nEND:\n";
  };
  CHECK(reports_of(chain("st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;\n")) == silent);
  CHECK(reports_of(chain("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", "")) == silent);
  CHECK(reports_of(chain("st.volatile.global.u32", "ld.volatile.global.u32", "")) == Kinds{"missing-fence"});
  CHECK(reports_of(chain("st.volatile.global.u32", "ld.volatile.global.u32", "membar.cta;\n")) ==
        Kinds{"missing-fence"});
}

TEST_CASE("a lock around a counter") {
  const auto locked = [](const std::string& lock, const std::string& unlock) {
    return first_thread + "add.s64 %rd1, %p0, 128;\n" + lock +
           "ld.global.u32 %r2, [%rd1];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%rd1], %r2;\n" + unlock +
           "END:\n";
  };
  const std::string lock =
      "SPIN:\natom.global.cas.b32 %r1, [%p0], 0, 1;\nsetp.ne.u32 %q1, %r1, 0;\n@%q1 bra SPIN;\nmembar.gl;\n";
  CHECK(reports_of(locked(lock, "membar.gl;\natom.global.exch.b32 %r3, [%p0], 0;\n")) == silent);
  CHECK(reports_of(locked(lock, "mov.u32 %r3, 0;\nst.release.gpu.global.u32 [%p0], %r3;\n")) == silent);
  CHECK(reports_of(locked(lock, "atom.global.exch.b32 %r3, [%p0], 0;\n")) == Kinds{"missing-fence"});
  CHECK(reports_of(locked("", "")).contains("global-race"));
}

TEST_CASE("a histogram by atomics") {
  const std::string count =
      "add.s64 %rd1, %p0, %rd91;\nld.global.u32 %r1, [%rd1+1024];\nand.b32 %r1, %r91, 15;\nmul.wide.u32 "
      "%rd2, %r1, 4;\n"
      "add.s64 %rd2, %p0, %rd2;\nred.global.add.u32 [%rd2], 1;\natom.global.add.u32 %r3, [%rd2], 1;\n";
  CHECK(reports_of(count) == silent);
  CHECK(reports_of("mov.u32 %r5, 0;\nst.global.u32 [%p0], %r5;\n" + count).contains("global-race"));
}

TEST_CASE("loads of memory never written") {
  const Setup unwritten{.blocks = 2, .written = false};
  const std::string address = "add.s64 %rd1, %p0, %rd91;\n";
  const std::string use = "setp.eq.u32 %q9, %r1, 0;\n@%q9 bra used;\nused:\n";
  CHECK(reports_of(address + "ld.global.u32 %r1, [%rd1];\n", unwritten) == silent);
  CHECK(reports_of(address + "ld.global.u32 %r1, [%rd1];\n" + use, unwritten) ==
        Kinds{"uninitialised-global"});
  CHECK(reports_of(address + "atom.global.add.u32 %r1, [%rd1], 1;\n", unwritten) ==
        Kinds{"uninitialised-global"});
  CHECK(reports_of(address + "st.global.u32 [%rd1], %r90;\nld.global.u32 %r1, [%rd1];\n" + use, unwritten) ==
        silent);
  CHECK(reports_of(address + "st.global.u8 [%rd1+1], %r90;\nld.global.u16 %r1, [%rd1];\n" + use, unwritten) ==
        Kinds{"uninitialised-global"});
  // Bytes of a vector that are not used.
  const std::string vectors =
      "mul.wide.u32 %rd1, %t, 16;\nadd.s64 %rd1, %p0, %rd1;\nst.global.u32 [%rd1], %r90;\n"
      "st.global.u32 [%rd1+8], %r90;\n";
  const std::string load = "ld.global.v4.u32 {%r3, %r1, %r2, %r4}, [%rd1];\n" + use;
  CHECK(reports_of(vectors +
                       ".pragma \"used_bytes_mask 3855\";\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n" +
                       use,
                   unwritten) == silent);
  CHECK(reports_of(vectors + ".pragma \"used_bytes_mask 3871\";\n" + load, unwritten) ==
        Kinds{"uninitialised-global"});
  CHECK(reports_of(vectors + load, unwritten) == Kinds{"uninitialised-global"});
}

TEST_CASE("ld.nc of memory that the launch writes") {
  const std::string mine = "add.s64 %rd1, %p0, %rd91;\n";
  CHECK(reports_of(mine + "ld.global.nc.u32 %r1, [%rd1];\nst.global.u32 [%rd1+1024], %r1;\n") == silent);
  CHECK(reports_of(mine + "ld.global.nc.u32 %r1, [%rd1];\nst.global.u32 [%rd1], %r1;\n") ==
        Kinds{"read-only-race"});
  CHECK(reports_of(mine + "st.global.u32 [%rd1], %r90;\nld.global.nc.u32 %r1, [%rd1];\n") ==
        Kinds{"read-only-race"});
}

TEST_CASE("constant memory is not written") {
  Module module({kernel_text(1, "st.global.u32 [%p0], %t;\n")}, 0);
  Buffer buffer(256);
  AddressSpace::instance().find(buffer.address())->read_only = true;
  take_kinds();
  CHECK(run(module, {}, Arguments().add(buffer.address())) == 0);
  CHECK(take_kinds() == Kinds{"read-only"});
}

namespace {

/// Operations in streams of a test of its own.
struct Streams {
  OperationOrder& order = OperationOrder::instance();
  StreamKey first = [] {
    static StreamKey next = 3'000'000;
    return next += 10;
  }();
  std::vector<Clock> clocks = std::vector<Clock>(5);
  OperationId add(StreamKey stream) { return order.add(first + stream, clocks[stream], "test operation"); }
  void wait(StreamKey stream, StreamKey event_of) { join(clocks[stream], clocks[event_of]); }

  /// Runs a kernel that adds 1 to each word of the buffer (write) or reads it.
  void run_kernel(StreamKey stream, const Buffer& buffer, bool write) {
    static Module writer(
        {kernel_text(1,
                     "add.s64 %rd1, %p0, 0;\nmad.wide.u32 %rd1, %t, 4, %rd1;\nld.global.u32 %r1, [%rd1];\n"
                     "st.global.u32 [%rd1], %r1;\n")},
        0);
    static Module reader({kernel_text(1, "mad.wide.u32 %rd1, %t, 4, %p0;\nld.global.u32 %r1, [%rd1];\n")}, 0);
    LaunchShape shape;
    shape.grid.x = 4;
    shape.block.x = 64;
    const Kernel& kernel = *(write ? writer : reader).kernel("k");
    CHECK(Launch(kernel, shape, Arguments().add(buffer.address()).bytes(), 0, add(stream), 1).run() == 0);
  }
};

std::unique_ptr<Buffer> zeros(std::uint64_t bytes) {
  auto buffer = std::make_unique<Buffer>(bytes);
  const std::vector<std::byte> data(bytes);
  buffer->write(data.data(), bytes);
  return buffer;
}

}  // namespace

TEST_CASE("kernels of two streams need an event between them when one of them writes") {
  take_kinds();
  for (const bool first_writes : {false, true}) {
    for (const bool second_writes : {false, true}) {
      for (const bool event : {false, true}) {
        Streams s;
        const auto buffer = zeros(1024);
        s.run_kernel(0, *buffer, first_writes);
        if (event) s.wait(1, 0);
        s.run_kernel(1, *buffer, second_writes);
        CHECK(take_kinds() == (event || !(first_writes || second_writes) ? silent : Kinds{"stream-race"}));
      }
    }
  }
}

TEST_CASE("a writer must come after the readers of all streams") {
  take_kinds();
  for (const bool both : {false, true}) {
    Streams s;
    const auto buffer = zeros(1024);
    s.run_kernel(0, *buffer, false);
    s.run_kernel(1, *buffer, false);
    s.run_kernel(1, *buffer, false);
    s.wait(2, 1);
    if (both) s.wait(2, 0);
    s.run_kernel(2, *buffer, true);
    CHECK(take_kinds() == (both ? silent : Kinds{"stream-race"}));
  }
}

TEST_CASE("copies and fills, small and big, against kernels and each other") {
  for (const std::uint64_t bytes : {std::uint64_t{1024}, 5 * Granule::bytes + 1024}) {
    for (const bool event : {false, true}) {
      const Kinds expected = event ? silent : Kinds{"stream-race"};
      const auto check = [&](auto first, auto second) {
        Streams s;
        const auto buffer = zeros(bytes);
        take_kinds();
        first(s, StreamKey{0}, *buffer);
        if (event) s.wait(1, 0);
        second(s, StreamKey{1}, *buffer);
        CHECK(take_kinds() == expected);
      };
      const auto copy_in = [](Streams& s, StreamKey stream, const Buffer& b) {
        check_range(s.add(stream), b.address(), AddressSpace::instance().find(b.address())->bytes, true,
                    "cudaMemcpyAsync");
      };
      const auto copy_out = [](Streams& s, StreamKey stream, const Buffer& b) {
        check_range(s.add(stream), b.address(), AddressSpace::instance().find(b.address())->bytes, false,
                    "cudaMemcpyAsync");
      };
      const auto kernel_writes = [](Streams& s, StreamKey stream, const Buffer& b) {
        s.run_kernel(stream, b, true);
      };
      const auto kernel_reads = [](Streams& s, StreamKey stream, const Buffer& b) {
        s.run_kernel(stream, b, false);
      };
      check(copy_in, kernel_reads);
      check(copy_in, kernel_writes);
      check(copy_out, kernel_writes);
      check(kernel_writes, copy_out);
      check(kernel_writes, copy_in);
      check(kernel_reads, copy_in);
      check(copy_in, copy_in);
      check(copy_in, copy_out);
      check(copy_out, copy_in);
    }
  }
  Streams s;
  const auto buffer = zeros(300'000);
  check_range(s.add(0), buffer->address(), 300'000, false, "cudaMemcpyAsync");
  check_range(s.add(1), buffer->address(), 300'000, false, "cudaMemcpyAsync");
  CHECK(take_kinds() == silent);
  s.wait(2, 1);
  check_range(s.add(2), buffer->address(), 300'000, true, "cudaMemsetAsync");
  CHECK(take_kinds() == Kinds{"stream-race"});
}

TEST_CASE("stream-ordered memory is used between its allocation and its free") {
  for (const bool ordered : {false, true}) {
    Streams s;
    const auto buffer = zeros(1024);
    Allocation& allocation = *AddressSpace::instance().find(buffer->address());
    take_kinds();
    allocation.allocated = s.add(0);
    if (ordered) s.wait(1, 0);
    s.run_kernel(1, *buffer, false);
    CHECK(take_kinds() == (ordered ? silent : Kinds{"use-before-allocation"}));
    if (ordered) s.wait(0, 1);
    check_free(allocation, s.add(0));
    CHECK(take_kinds() == (ordered ? silent : Kinds{"use-after-free"}));
  }
}
