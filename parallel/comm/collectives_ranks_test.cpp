#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/host_wait.h"
#include "core/rng.h"
#include "parallel/comm/collective.h"
#include "tests/support/devices.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Counts = std::vector<std::int64_t>;

/// Input element i of a world rank in call `key`: a small integer, so that sums over ranks are exact in every
/// dtype. Every rank can compute the inputs of all.
std::int64_t input(std::uint64_t key, int rank, std::int64_t i) {
  const auto mixed = (key * 31 + static_cast<std::uint64_t>(rank)) * 0x9E3779B97F4A7C15ull +
                     static_cast<std::uint64_t>(i) * 0xBF58476D1CE4E5B9ull;
  return static_cast<std::int64_t>((mixed ^ (mixed >> 29)) >> 32) % 13;
}

void put(const Tensor& t, std::int64_t i, std::int64_t value) {
  visit_any(t.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<T, bf16>)
      t.data<T>()[i] = bf16(static_cast<float>(value));
    else
      t.data<T>()[i] = static_cast<T>(value);
  });
}

Tensor inputs(std::uint64_t key, int rank, std::int64_t count, DType dtype, Device device) {
  const Tensor t = Tensor::empty({count}, dtype, Device::cpu);
  for (std::int64_t i = 0; i < count; ++i) put(t, i, input(key, rank, i));
  return t.to(device);
}

/// Number of elements that differ from want(i).
template <class Fn>
std::int64_t wrong(const Tensor& t, Fn&& want) {
  std::int64_t count = 0;
  const std::vector<double> values = t.to_vector();
  for (std::size_t i = 0; i < values.size(); ++i)
    count += values[i] != static_cast<double>(want(static_cast<std::int64_t>(i)));
  return count;
}

std::int64_t reduced(const Communicator& group, std::uint64_t key, std::int64_t i, Reduction reduction) {
  std::int64_t result = input(key, group.members()[0], i);
  for (const int rank : group.members().subspan(1)) {
    const std::int64_t next = input(key, rank, i);
    result = reduction == Reduction::sum   ? result + next
             : reduction == Reduction::max ? std::max(result, next)
                                           : std::min(result, next);
  }
  return result;
}

struct Case {
  std::uint64_t key = 0;  // the same on all ranks of the group, another one for every call
  DType dtype = DType::f32;
  std::int64_t count = 0;
  Reduction reduction = Reduction::sum;
  Device device = Device::cpu;
};

/// A call, started or done, and the check of its result.
struct Started {
  Work work;
  std::function<std::int64_t()> wrong;
};

Counts uneven_counts(std::uint64_t key, int size, std::int64_t most) {
  Counts counts;
  for (int r = 0; r < size; ++r)
    counts.push_back(static_cast<std::int64_t>(
        RandomStream(key, "counts")
            .below(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(most) + 1)));
  return counts;
}

std::int64_t start_of(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

Started start_all_reduce(Communicator& group, const Case& c) {
  const Tensor t =
      inputs(c.key, group.members()[static_cast<std::size_t>(group.rank())], c.count, c.dtype, c.device);
  return {group.start_all_reduce(t, c.reduction),
          [&group, c, t] { return wrong(t, [&](auto i) { return reduced(group, c.key, i, c.reduction); }); }};
}

int world_rank(const Communicator& group) { return group.members()[static_cast<std::size_t>(group.rank())]; }

Started start_reduce_scatter(Communicator& group, const Case& c, bool uneven, bool in_place) {
  const Counts counts = uneven ? uneven_counts(c.key, group.size(), c.count)
                               : Counts(static_cast<std::size_t>(group.size()), c.count);
  const std::int64_t begin = start_of(counts, group.rank()), all = start_of(counts, group.size());
  const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
  const Tensor in = inputs(c.key, world_rank(group), all, c.dtype, c.device);
  const Tensor out = in_place ? in.narrow(0, begin, own) : Tensor::empty({own}, c.dtype, c.device);
  const auto check = [&group, c, out, in, in_place, begin, own] {
    std::int64_t n = wrong(out, [&](auto i) { return reduced(group, c.key, begin + i, c.reduction); });
    n += wrong(in, [&](auto i) {
      const bool replaced = in_place && i >= begin && i < begin + own;
      return replaced ? reduced(group, c.key, i, c.reduction) : input(c.key, world_rank(group), i);
    });
    return n;
  };
  if (uneven) return {group.start_reduce_scatter_v(out, in, counts, c.reduction), check};
  return {group.start_reduce_scatter(out, in, c.reduction), check};
}

Started start_all_gather(Communicator& group, const Case& c, bool uneven, bool in_place) {
  const Counts counts = uneven ? uneven_counts(c.key, group.size(), c.count)
                               : Counts(static_cast<std::size_t>(group.size()), c.count);
  const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
  const Tensor out = Tensor::zeros({start_of(counts, group.size())}, c.dtype, c.device);
  Tensor in = inputs(c.key, world_rank(group), own, c.dtype, c.device);
  if (in_place) {
    const Tensor part = out.narrow(0, start_of(counts, group.rank()), own);
    part.copy_from(in);
    in = part;
  }
  const auto check = [&group, c, counts, out] {
    std::int64_t n = 0;
    for (int r = 0; r < group.size(); ++r)
      n += wrong(out.narrow(0, start_of(counts, r), counts[static_cast<std::size_t>(r)]),
                 [&](auto i) { return input(c.key, group.members()[static_cast<std::size_t>(r)], i); });
    return n;
  };
  if (uneven) return {group.start_all_gather_v(out, in, counts), check};
  return {group.start_all_gather(out, in), check};
}

/// Ends at once: a broadcast is not started alone.
Started broadcast(Communicator& group, const Case& c) {
  const int root = static_cast<int>(c.key % static_cast<std::uint64_t>(group.size()));
  const Tensor t = inputs(c.key, world_rank(group), c.count, c.dtype, c.device);
  group.broadcast(t, root);
  return {Work(), [&group, c, t, root] {
            return wrong(
                t, [&](auto i) { return input(c.key, group.members()[static_cast<std::size_t>(root)], i); });
          }};
}

/// Rows of three elements; rank a sends rank b rows(a, b) of them.
Started start_all_to_all(Communicator& group, const Case& c) {
  constexpr std::int64_t row = 3;
  const auto rows = [&](int from) {
    return uneven_counts(c.key * 97 + static_cast<std::uint64_t>(from), group.size(), c.count / 3);
  };
  const Counts in_rows = rows(group.rank());
  Counts out_rows;
  for (int r = 0; r < group.size(); ++r) out_rows.push_back(rows(r)[static_cast<std::size_t>(group.rank())]);
  const std::int64_t in_all = start_of(in_rows, group.size()), out_all = start_of(out_rows, group.size());
  const Tensor in = inputs(c.key, world_rank(group), in_all * row, c.dtype, c.device).reshape({in_all, row});
  const Tensor out = Tensor::empty({out_all, row}, c.dtype, c.device);
  std::vector<std::int64_t> want;
  for (int r = 0; r < group.size(); ++r) {
    const std::int64_t begin = start_of(rows(r), group.rank()) * row;
    for (std::int64_t i = 0; i < out_rows[static_cast<std::size_t>(r)] * row; ++i)
      want.push_back(input(c.key, group.members()[static_cast<std::size_t>(r)], begin + i));
  }
  return {group.start_all_to_all_v(out, out_rows, in, in_rows),
          [out, want] { return wrong(out, [&](auto i) { return want[static_cast<std::size_t>(i)]; }); }};
}

/// Two messages around the ring, and one from each rank to itself.
Started start_exchange(Communicator& group, const Case& c) {
  const int n = group.size(), next = (group.rank() + 1) % n, previous = (group.rank() + n - 1) % n;
  const Tensor first = inputs(c.key, world_rank(group), c.count, c.dtype, c.device);
  const Tensor second = inputs(c.key + 1, world_rank(group), c.count / 2, c.dtype, c.device);
  const Tensor from_first = Tensor::empty({c.count}, c.dtype, c.device),
               from_second = Tensor::empty({c.count / 2}, c.dtype, c.device);
  const Tensor own = Tensor::empty({c.count}, c.dtype, c.device);
  return {
      group.start_exchange(
          {{first, next}, {first, group.rank()}, {second, next}},
          n > 1 ? std::vector<Receive>{{from_first, previous}, {from_second, previous}, {own, group.rank()}}
                : std::vector<Receive>{{from_first, 0}, {own, 0}, {from_second, 0}}),
      [&group, c, from_first, from_second, own, previous] {
        const int from = group.members()[static_cast<std::size_t>(previous)];
        return wrong(from_first, [&](auto i) { return input(c.key, from, i); }) +
               wrong(from_second, [&](auto i) { return input(c.key + 1, from, i); }) +
               wrong(own, [&](auto i) { return input(c.key, world_rank(group), i); });
      }};
}

constexpr int kinds = 10;
Started start(Communicator& group, int kind, const Case& c) {
  switch (kind) {
    case 0:
      return start_all_reduce(group, c);
    case 1:
      return start_reduce_scatter(group, c, false, false);
    case 2:
      return start_reduce_scatter(group, c, false, true);
    case 3:
      return start_reduce_scatter(group, c, true, false);
    case 4:
      return start_all_gather(group, c, false, true);
    case 5:
      return start_all_gather(group, c, true, false);
    case 6:
      return broadcast(group, c);
    case 7:
      return start_all_to_all(group, c);
    case 8:
      return start_exchange(group, c);
    default:
      group.host_barrier();
      return {Work(), [] { return 0; }};
  }
}

/// Small limits, so that few elements already need several chunks and messages, and NCCL's sums in the order
/// of ranks.
struct SmallLimits {
  explicit SmallLimits(bool check = false) {
    test_world().set_options({.timeout_seconds = 60,
                              .check_collectives = check,
                              .deterministic_collectives = true,
                              .staging_bytes = 8000,
                              .chunk_bytes = 1000,
                              .message_bytes = 768});
  }
  ~SmallLimits() { test_world().set_options({.timeout_seconds = 60}); }
};

std::int64_t sum_over_ranks(std::int64_t value) { return test_world().communicator().host_all_reduce(value); }

}  // namespace

TEST_CASE("collectives: exact against a plain reference, for every dtype and many sizes" *
          doctest::test_suite("cuda")) {
  Communicator& world = test_world().communicator();
  std::uint64_t key = 1;
  for (const Device device : test_devices()) {
    const bool host = device.is_host();
    CAPTURE(device);
    for (const bool limited : {false, true}) {
      std::optional<SmallLimits> limits;
      if (limited) limits.emplace();
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8})
        for (const std::int64_t count : {0, 1, 2, 7, 1025, 5000})
          for (int kind = 0; kind < kinds; ++kind) {
            if (!host && count == 2) continue;
            CAPTURE(kind);
            CAPTURE(count);
            CAPTURE(dtype);
            key += 2;
            Started call =
                start(world, kind, {key, dtype, count, static_cast<Reduction>(key / 2 % 3), device});
            call.work.wait();
            CHECK(call.wrong() == 0);
          }
    }
  }
}

TEST_CASE(
    "collectives: tensors of a device wait for nothing but their copies to the host, on which they depend") {
  Communicator& world = test_world().communicator();
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  const auto waits = [&](auto&& call) {
    reset_host_waits();
    call();
    const auto counted = host_waits();
    const auto staged = counted.find("staged message");
    CHECK(counted.size() == (staged == counted.end() ? 0 : 1));
    return staged == counted.end() ? 0 : staged->second;
  };
  const std::int64_t one = n > 1 ? 1 : 0;  // alone, nothing leaves the device
  const Tensor a = Tensor::zeros({n}, DType::f32, Device::guard), b = a.clone(),
               all = Tensor::zeros({n * n}, DType::f32, Device::guard);
  CHECK(waits([&] { world.all_reduce(a); }) == one);
  CHECK(waits([&] { world.all_gather(all, a); }) == one);
  CHECK(waits([&] { world.reduce_scatter(a, all); }) == one);
  CHECK(waits([&] { world.broadcast(a, 0); }) == (world.rank() == 0 ? one : 0));
  CHECK(waits([&] { world.exchange({{a, next}}, {{b, previous}}); }) == one);
  CHECK(waits([&] { world.host_barrier(); }) == 0);
  CHECK(waits([&] { CHECK(world.host_all_reduce(1.5) == 1.5 * n); }) == 0);
}

TEST_CASE("collectives: a started operation of device tensors uses the result of an earlier one" *
          doctest::test_suite("cuda")) {
  Communicator& world = test_world().communicator();
  const std::int64_t n = world.size(), count = 5000;
  for (const Device device : test_devices()) {
    const Tensor whole = Tensor::zeros({count * n}, DType::f32, device),
                 part = Tensor::zeros({count}, DType::f32, device);
    whole.fill(world.rank() + 1);
    {
      const Work first = world.start_reduce_scatter(part, whole);
      const Work second = world.start_all_reduce(part);
      const Work third = world.start_all_gather(whole, part);
    }
    CHECK(wrong(whole, [&](auto) { return n * n * (n + 1) / 2; }) == 0);
  }
}

TEST_CASE("control messages: values, structs and texts of every rank") {
  Communicator& world = test_world().communicator();
  const int n = world.size();
  struct Pair {
    std::int16_t a;
    double b;
  };
  const std::vector<Pair> pairs = world.host_all_gather(Pair{static_cast<std::int16_t>(world.rank()), 0.5});
  REQUIRE(pairs.size() == static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r)
    CHECK((pairs[static_cast<std::size_t>(r)].a == r && pairs[static_cast<std::size_t>(r)].b == 0.5));
  Counts counts;
  std::vector<int> want;
  for (int r = 0; r < n; ++r) {
    counts.push_back(r);
    want.insert(want.end(), static_cast<std::size_t>(r), r);
  }
  const std::vector<int> own(static_cast<std::size_t>(world.rank()), world.rank());
  CHECK(world.host_all_gather_v(std::span<const int>(own), counts) == want);
  std::array<float, 2> both{static_cast<float>(world.rank()), 7};
  world.host_all_reduce(std::span<float>(both), Reduction::max);
  CHECK(both == std::array<float, 2>{static_cast<float>(n - 1), 7});
  world.host_broadcast(std::span<float>(both = {static_cast<float>(world.rank()), 1}), n - 1);
  CHECK(both == std::array<float, 2>{static_cast<float>(n - 1), 1});
}

TEST_CASE("collectives: random programs on random groups, started and waited for in any order" *
          doctest::test_suite("cuda")) {
  World& world = test_world();
  const std::vector<Device> devices = test_devices();
  const RandomStream random(7, "programs");  // the same draws on every rank
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t n) { return random.below(draw++, n); };
  for (int program = 0; program < 8; ++program) {
    std::optional<SmallLimits> limits;
    if (program % 2 == 1) limits.emplace(program % 4 == 1);
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int g = 0; g < 3; ++g) {
      std::vector<int> colours, keys;
      for (int r = 0; r < world.size(); ++r) {
        colours.push_back(static_cast<int>(below(3)) - (g == 2 ? 1 : 0));
        keys.push_back(static_cast<int>(below(100)));
      }
      const auto r = static_cast<std::size_t>(world.rank());
      groups.push_back(world.split(cat("random", g), colours[r], keys[r]));
      if (!groups.back()) continue;
      CHECK(groups.back()->size() == std::ranges::count(colours, colours[r]));
      CHECK(world_rank(*groups.back()) == world.rank());
    }
    std::vector<Started> open;
    for (int step = 0; step < 40; ++step) {
      const auto g = static_cast<std::size_t>(below(groups.size() + 1));
      Case c{draw * 2 + 1, static_cast<DType>(below(6)),
             static_cast<std::int64_t>(below(below(4) ? 200 : 6000)), static_cast<Reduction>(below(3)),
             below(3) == 0 ? devices.back() : Device::cpu};
      const auto kind = static_cast<int>(below(kinds));
      const bool at_once = below(3) == 0;
      Communicator* group = g < groups.size() ? groups[g].get() : &world.communicator();
      if (!group) continue;
      open.push_back(start(*group, kind, c));
      // Ranks wait at different places: only the order of calls is the same.
      if (at_once || (step + world.rank()) % 5 == 0)
        for (Started& call : open) call.work.wait();
    }
    std::int64_t errors = 0;
    for (Started& call : open) {
      call.work.wait();
      CHECK(call.work.done());
      errors += call.wrong();
    }
    CHECK(errors == 0);
    CHECK(sum_over_ranks(errors) == 0);
  }
}

TEST_CASE("collectives: blocking calls give the same as started ones, also behind them in the queue") {
  Communicator& world = test_world().communicator();
  const int n = world.size();
  const Tensor first = Tensor::zeros({100000}, DType::f32, Device::cpu),
               second = Tensor::zeros({n}, DType::i32, Device::cpu);
  first.fill(world.rank() + 1);
  second.data<std::int32_t>()[world.rank()] = world.rank();
  Work work = world.start_all_reduce(first);
  world.all_gather(second, second.narrow(0, world.rank(), 1));
  world.host_barrier();
  CHECK(work.done());  // first in, first out
  work.wait();
  CHECK(wrong(first, [&](auto) { return n * (n + 1) / 2; }) == 0);
  CHECK(wrong(second, [](auto i) { return i; }) == 0);
}

TEST_CASE("collectives: a Work that goes out of scope waits, and holds its tensors until then") {
  Communicator& world = test_world().communicator();
  const Tensor kept = Tensor::zeros({50000}, DType::f32, Device::cpu);
  kept.fill(1);
  {
    const Work ends_here = world.start_all_reduce(kept);
    Work replaced =
        world.start_all_reduce(Tensor::zeros({70000}, DType::f32, Device::cpu));  // no other owner
    replaced = world.start_all_reduce(Tensor::zeros({1}, DType::f32, Device::cpu));
  }
  CHECK(kept.unique());
  CHECK(wrong(kept, [&](auto) { return world.size(); }) == 0);
}

TEST_CASE("all_reduce and reduce_scatter: floats are added in rank order, the same bits for any chunks" *
          doctest::test_suite("cuda")) {
  Communicator& world = test_world().communicator();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::int64_t count : {std::int64_t{300}, std::int64_t{9973}}) {
      const auto random = [&](int rank) {
        const Tensor t = Tensor::empty({count * world.size()}, DType::f64, Device::cpu);
        fill_normal(t, RandomStream(3, cat("rank ", rank)), 0, 1);
        return t.to(dtype);
      };
      // The reference adds one rank after the other; bf16 is rounded once, at the end.
      const Tensor want = random(0).to(accumulate_dtype(dtype)).clone();
      for (int r = 1; r < world.size(); ++r) {
        const Tensor next = random(r).to(accumulate_dtype(dtype));
        visit_accumulate("sum", want.dtype(), [&]<class T>(TypeTag<T>) {
          for (std::int64_t i = 0; i < want.numel(); ++i) want.data<T>()[i] += next.data<T>()[i];
        });
      }
      const std::vector<double> expected = want.to(dtype).to_vector();
      for (const bool limited : {false, true}) {
        std::optional<SmallLimits> limits;
        if (limited) limits.emplace();
        if (!limited) test_world().set_options({.timeout_seconds = 60, .deterministic_collectives = true});
        for (const Device device : test_devices()) {
          const Tensor all = random(world.rank()).clone().to(device),
                       part = Tensor::empty({count}, dtype, device);
          world.reduce_scatter(part, all);
          world.all_reduce(all);
          CHECK(all.to_vector() == expected);
          CHECK(part.to_vector() == all.narrow(0, count * world.rank(), count).to_vector());
        }
      }
    }
  test_world().set_options({.timeout_seconds = 60});
}

TEST_CASE("all_reduce: maxima and minima are NaN where a rank has one" * doctest::test_suite("cuda")) {
  Communicator& world = test_world().communicator();
  const auto last = static_cast<std::int64_t>(world.size()) - 1;
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Reduction reduction : {Reduction::max, Reduction::min}) {
        CAPTURE(device);
        CAPTURE(dtype);
        // Element r is NaN on rank r alone; the last element on no rank.
        std::vector<double> values(static_cast<std::size_t>(world.size()) + 1, world.rank());
        values[static_cast<std::size_t>(world.rank())] = std::nan("");
        const Tensor t = Tensor::from(values, {std::ssize(values)}).to(dtype).clone().to(device);
        world.all_reduce(t, reduction);
        const std::vector<double> got = t.to_vector();
        for (int r = 0; r < world.size(); ++r) CHECK(std::isnan(got[static_cast<std::size_t>(r)]));
        CHECK(got.back() == (reduction == Reduction::max ? static_cast<double>(last) : 0.0));
      }
}

TEST_CASE("collectives: NCCL's seconds are those of the device, and a graph's calls have none" *
          doctest::test_suite("cuda")) {
  World& world = test_world();
  if (!world.uses_nccl()) return;
  const Tensor t = Tensor::zeros({1 << 16}, DType::f32, cuda_device());
  // Calls and seconds that these add, and their seconds by the clock of the host.
  const auto seconds_of = [&](auto&& calls) {
    world.wait_for_collectives();
    const CommStats before = world.communicator().stats(Operation::all_reduce);
    const auto start = std::chrono::steady_clock::now();
    calls();
    world.wait_for_collectives();
    const std::chrono::duration<double> on_host = std::chrono::steady_clock::now() - start;
    const CommStats after = world.communicator().stats(Operation::all_reduce);
    CHECK(after.calls == before.calls + 3);
    CHECK(after.waiting_seconds == before.waiting_seconds);
    return std::pair(after.seconds - before.seconds, on_host.count());
  };
  const auto three = [&] {
    for (int i = 0; i < 3; ++i) world.communicator().all_reduce(t);
  };
  cuda::time_zones(true);
  const auto [seconds, on_host] = seconds_of(three);
  CHECK(seconds > 0);
  CHECK(seconds <= on_host);
  const auto graph = cuda::capture_graph(three);
  CHECK(seconds_of([&] { graph->launch(); }).first == 0);
  cuda::time_zones(false);
  CHECK(seconds_of(three).first == 0);
}

TEST_CASE("collectives: the bytes sent are the fewest that can be" * doctest::test_suite("cuda")) {
  World& world = test_world();
  for (const Device device : test_devices()) {
    const bool by_nccl = device.is_cuda() && world.uses_nccl();
    const auto group = world.split("bytes", 0, world.rank());
    const std::int64_t n = group->size(), count = 3001, bytes = count * 4;
    const SmallLimits limits(true);  // what the checks send does not count
    const auto sent = [&](Operation operation, auto&& call) {
      const CommStats before = group->stats(operation);
      call();
      const CommStats after = group->stats(operation);
      CHECK(after.calls == before.calls + 1);
      CHECK(after.seconds >= before.seconds);
      CHECK(after.waiting_seconds - before.waiting_seconds <= after.seconds - before.seconds);
      return sum_over_ranks(after.bytes_sent - before.bytes_sent);
    };
    const Tensor t = Tensor::zeros({count}, DType::f32, device),
                 all = Tensor::zeros({count * n}, DType::f32, device);
    const Tensor other = Tensor::zeros({count * n}, DType::f32, device);
    CHECK(sent(Operation::all_reduce, [&] { group->all_reduce(t); }) == 2 * (n - 1) * bytes);
    CHECK(sent(Operation::all_reduce, [&] { group->all_reduce(t.narrow(0, 0, 1024)); }) ==
          (by_nccl ? 2 : n) * (n - 1) * 4096);
    CHECK(sent(Operation::reduce_scatter, [&] { group->reduce_scatter(t, all); }) == n * (n - 1) * bytes);
    CHECK(sent(Operation::all_gather, [&] { group->all_gather(all, t); }) == n * (n - 1) * bytes);
    CHECK(sent(Operation::broadcast, [&] { group->broadcast(t, static_cast<int>(n) - 1); }) ==
          (n - 1) * bytes);
    CHECK(sent(Operation::broadcast, [&] { group->broadcast(t.narrow(0, 0, 10), 0); }) == (n - 1) * 40);
    const Counts rows(static_cast<std::size_t>(n), count);
    CHECK(sent(Operation::all_to_all, [&] { group->all_to_all_v(all, rows, other, rows); }) ==
          n * (n - 1) * bytes);
    CHECK(sent(Operation::exchange, [&] {
            const int self = group->rank(), next = (self + 1) % group->size();
            const int previous = (self + group->size() - 1) % group->size();
            group->exchange({{t, next}}, {{other.narrow(0, 0, count), previous}});
          }) == (n > 1 ? n * bytes : 0));
    CHECK(sent(Operation::barrier, [&] { group->host_barrier(); }) == 0);
  }
}

TEST_CASE("collectives: more than 2^31 elements") {
  Communicator& world = test_world().communicator();
  const std::int64_t count = (std::int64_t{1} << 31) + 1003;
  if (world.size() != 2 || !std::getenv("NEMOCUBE_LARGE_TESTS")) {
    if (world.rank() == 0 && world.size() == 2)
      MESSAGE("messages of more than 2^31 elements: did not run (set NEMOCUBE_LARGE_TESTS=1; needs 9 GB)");
    return;
  }
  const Tensor t = Tensor::empty({count}, DType::u8, Device::cpu);
  std::uint8_t* data = t.data<std::uint8_t>();
  std::memset(data, 0, static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; i += 4097) data[i] = static_cast<std::uint8_t>(i % 101 + world.rank());
  const auto errors = [&](auto&& want) {
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < count; ++i) n += data[i] != (i % 4097 == 0 ? want(i) : 0);
    return n;
  };
  world.broadcast(t, 1);
  CHECK(errors([](auto i) { return i % 101 + 1; }) == 0);
  world.all_reduce(t);
  CHECK(errors([](auto i) { return 2 * (i % 101 + 1); }) == 0);
  const Tensor received = Tensor::empty({count}, DType::u8, Device::cpu);
  world.exchange({{t, 1 - world.rank()}}, {{received, 1 - world.rank()}});
  CHECK(std::memcmp(received.host_bytes(), data, static_cast<std::size_t>(count)) == 0);
}
