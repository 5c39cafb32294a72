#include <algorithm>
#include <functional>

#include "instructions/decoders.h"
#include "instructions/meeting.h"
#include "machine/watch.h"
#include "memory/address_space.h"

// Exchange of values within a warp (PTX ISA 9.7.9.6, 9.7.13.9 to 9.7.13.14).
namespace emulator {
namespace {

enum class Shuffle : std::uint8_t { up, down, butterfly, index };

/// Operands: d, p, a, b, c, members. The lane that a lane reads from follows from b (distance, lane or lane mask) and c
/// (clamp in bits 0 to 4, segment mask in bits 8 to 12); p tells whether that lane lies in the segment.
template <Shuffle mode>
void shuffle(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  const auto a = gather<std::uint32_t>(participants, 2);
  Values<std::uint8_t> sources;
  LaneMask all_undefined = 0;
  for (const Participant& p : participants) {
    const std::uint32_t* b_row = p.source<std::uint32_t>(3);
    const std::uint32_t* c_row = p.source<std::uint32_t>(4);
    std::uint32_t* d = p.result<std::uint32_t>(0);
    LaneMask in_range = 0, undefined = 0;
    for_lanes(p.lanes, [&](int lane) {
      const int b = b_row[lane] & 31, clamp = c_row[lane] & 31, segment = c_row[lane] >> 8 & 31;
      const int first = lane & segment, last = first | (clamp & ~segment);
      int source;
      bool inside;
      if constexpr (mode == Shuffle::up) {
        source = lane - b;
        inside = source >= last;
      } else {
        source = mode == Shuffle::down        ? lane + b
                 : mode == Shuffle::butterfly ? lane ^ b
                                              : first | (b & ~segment);
        inside = source <= last;
      }
      if (!inside) source = lane;
      in_range |= LaneMask{inside} << lane;
      undefined |= LaneMask{!(lanes >> source & 1)} << lane;
      sources[lane] = static_cast<std::uint8_t>(source);
    });
    for_lanes(p.lanes, [&](int lane) { d[lane] = a[sources[lane]]; });
    for_lanes(undefined, [&](int lane) {
      d[lane] = AddressSpace::fill_pattern;
      const ReportPlace place{&warp, lane, p.instruction};
      if (repeated("shuffle-source", place)) return;
      const bool exited = !(warp.alive() >> sources[lane] & 1);
      report(
          Severity::error, "shuffle-source",
          "lane " + std::to_string(lane) + " reads from lane " + std::to_string(sources[lane]) +
              (exited ? ", which has exited or does not exist" : ", which does not take part in the shuffle"),
          place);
    });
    all_undefined |= undefined;
    LaneMask& row = *p.result<LaneMask>(1);
    row = (row & ~p.lanes) | in_range;
  }
  if (warp.undefined()) [[unlikely]]
    watch::shuffled(warp, participants, 0, 2, sources, all_undefined);
}

enum class Vote : std::uint8_t { all, any, uniform, ballot };

/// Operands: d, a, negation of a, members.
template <Vote mode>
void vote(Warp&, std::span<const Participant> participants, LaneMask lanes) {
  const LaneMask votes = gather_predicate(participants, 1);
  if constexpr (mode == Vote::ballot) {
    Values<std::uint32_t> ballot;
    ballot.fill(votes);
    scatter(participants, 0, ballot);
  } else {
    const bool result = mode == Vote::all   ? votes == lanes
                        : mode == Vote::any ? votes != 0
                                            : votes == lanes || votes == 0;
    scatter_predicate(participants, 0, result ? all_lanes : 0);
  }
}

/// Operands: d, a, members.
template <class T>
void match_any(Warp&, std::span<const Participant> participants, LaneMask lanes) {
  const auto a = gather<T>(participants, 1);
  Values<std::uint32_t> equal{};
  for_lanes(lanes, [&](int lane) {
    for_lanes(lanes, [&](int other) { equal[lane] |= LaneMask{a[other] == a[lane]} << other; });
  });
  scatter(participants, 0, equal);
}

/// Operands: d, p, a, members.
template <class T>
void match_all(Warp&, std::span<const Participant> participants, LaneMask lanes) {
  const auto a = gather<T>(participants, 2);
  bool equal = true;
  for_lanes(lanes, [&](int lane) { equal &= a[lane] == a[lowest(lanes)]; });
  Values<std::uint32_t> mask;
  mask.fill(equal ? lanes : 0);
  scatter(participants, 0, mask);
  scatter_predicate(participants, 1, equal ? all_lanes : 0);
}

struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

/// Operands: d, a, members.
template <class T, class Combine>
void reduce(Warp&, std::span<const Participant> participants, LaneMask lanes) {
  const auto a = gather<T>(participants, 1);
  T total = a[lowest(lanes)];
  for_lanes(lanes & (lanes - 1), [&](int lane) { total = Combine{}(total, a[lane]); });
  Values<T> result;
  result.fill(total);
  scatter(participants, 0, result);
}

/// Operands: d, p, members. The leader is the lowest lane.
void elect(Warp&, std::span<const Participant> participants, LaneMask lanes) {
  Values<std::uint32_t> leader;
  leader.fill(static_cast<std::uint32_t>(lowest(lanes)));
  scatter(participants, 0, leader);
  scatter_predicate(participants, 1, lanes & -lanes);
}

void expect_sync(Form& form) {
  form.instruction().kind = InstructionClass::warp;
  if (!form.take("sync")) form.unknown("warp operations without .sync are gone since sm_70");
}

}  // namespace

Execute decode_shfl(Form& form) {
  expect_sync(form);
  const auto mode = form.take_one_of({"up", "down", "bfly", "idx"});
  form.take_type({ptx::Type::b32});
  form.result_pair(0, ptx::Type::b32, ptx::Type::pred);
  for (std::size_t operand = 1; operand <= 4; ++operand) form.source(operand, ptx::Type::b32);
  if (mode == "up") return meet_members<shuffle<Shuffle::up>, 5>;
  if (mode == "down") return meet_members<shuffle<Shuffle::down>, 5>;
  if (mode == "bfly") return meet_members<shuffle<Shuffle::butterfly>, 5>;
  if (mode == "idx") return meet_members<shuffle<Shuffle::index>, 5>;
  form.unknown("shfl needs .up, .down, .bfly or .idx");
}

Execute decode_vote(Form& form) {
  expect_sync(form);
  const auto mode = form.take_one_of({"all", "any", "uni", "ballot"});
  if (mode == "ballot") {
    form.take_type({ptx::Type::b32});
    form.result(0, ptx::Type::b32);
  } else {
    form.take_type({ptx::Type::pred});
    form.result_predicate(0);
  }
  source_with_negation(form, 1);
  form.source(2, ptx::Type::b32);
  if (mode == "all") return meet_members<vote<Vote::all>, 3>;
  if (mode == "any") return meet_members<vote<Vote::any>, 3>;
  if (mode == "uni") return meet_members<vote<Vote::uniform>, 3>;
  if (mode == "ballot") return meet_members<vote<Vote::ballot>, 3>;
  form.unknown("vote needs .all, .any, .uni or .ballot");
}

Execute decode_match(Form& form) {
  expect_sync(form);
  const auto mode = form.take_one_of({"any", "all"});
  const ptx::Type type = form.take_type({ptx::Type::b32, ptx::Type::b64});
  const bool wide = type == ptx::Type::b64;
  if (mode == "any") {
    form.result(0, ptx::Type::b32);
  } else if (mode == "all") {
    form.result_pair(0, ptx::Type::b32, ptx::Type::pred);
  } else {
    form.unknown("match needs .any or .all");
  }
  form.source(1, type);
  form.source(2, ptx::Type::b32);
  if (mode == "any")
    return wide ? meet_members<match_any<std::uint64_t>, 2> : meet_members<match_any<std::uint32_t>, 2>;
  return wide ? meet_members<match_all<std::uint64_t>, 3> : meet_members<match_all<std::uint32_t>, 3>;
}

Execute decode_activemask(Form& form) {
  form.instruction().kind = InstructionClass::warp;
  form.take_type({ptx::Type::b32});
  form.result(0, ptx::Type::b32);
  return [](Warp& warp, const Instruction& i, LaneMask lanes) {
    std::uint32_t* d = warp.result<std::uint32_t>(i, 0);
    for_lanes(lanes, [&](int lane) { d[lane] = lanes; });
  };
}

Execute decode_redux(Form& form) {
  using enum ptx::Type;
  expect_sync(form);
  const auto operation = form.take_one_of({"add", "min", "max", "and", "or", "xor"});
  const bool bitwise = operation == "and" || operation == "or" || operation == "xor";
  const ptx::Type type = bitwise ? form.take_type({b32}) : form.take_type({u32, s32});
  form.result(0, type);
  form.source(1, type);
  form.source(2, b32);
  // Two's complement sums wrap alike for both types; .u32 and .s32 still are different qualifiers, which do not meet.
  form.instruction().detail = static_cast<std::uint64_t>(type);
  if (operation == "add") return meet_members<reduce<std::uint32_t, std::plus<std::uint32_t>>, 2>;
  if (operation == "and") return meet_members<reduce<std::uint32_t, std::bit_and<std::uint32_t>>, 2>;
  if (operation == "or") return meet_members<reduce<std::uint32_t, std::bit_or<std::uint32_t>>, 2>;
  if (operation == "xor") return meet_members<reduce<std::uint32_t, std::bit_xor<std::uint32_t>>, 2>;
  if (operation == "min")
    return type == s32 ? meet_members<reduce<std::int32_t, Minimum>, 2>
                       : meet_members<reduce<std::uint32_t, Minimum>, 2>;
  if (operation == "max")
    return type == s32 ? meet_members<reduce<std::int32_t, Maximum>, 2>
                       : meet_members<reduce<std::uint32_t, Maximum>, 2>;
  form.unknown("redux needs .add, .min, .max, .and, .or or .xor");
}

Execute decode_elect(Form& form) {
  expect_sync(form);
  form.result_pair(0, ptx::Type::b32, ptx::Type::pred);
  form.source(1, ptx::Type::b32);
  return meet_members<elect, 2>;
}

}  // namespace emulator
