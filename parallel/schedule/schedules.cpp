#include "parallel/schedule/schedules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/quote.h"

namespace nemocube {
namespace {

using Kind = Action::Kind;

struct KindNames {
  ScheduleKind kind;
  std::string_view name, pytorch_class;
};
constexpr std::array<KindNames, 5> kind_names{{
    {ScheduleKind::gpipe, "gpipe", "ScheduleGPipe"},
    {ScheduleKind::one_f_one_b, "1f1b", "Schedule1F1B"},
    {ScheduleKind::interleaved_1f1b, "interleaved1f1b", "ScheduleInterleaved1F1B"},
    {ScheduleKind::interleaved_zero_bubble, "interleavedzerobubble", "ScheduleInterleavedZeroBubble"},
    {ScheduleKind::zbv, "zbv", "ScheduleZBVZeroBubble"},
}};

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// The `warmup` first forwards, then one forward and one backward in turn, then the remaining backwards. With
/// `weight_lag` backwards are Is, and a W follows the I that is `weight_lag` Is after its own; the remaining
/// Ws come at the end.
std::vector<Action> warm_up_and_alternate(const std::vector<Action>& forwards,
                                          const std::vector<Action>& backwards, std::size_t warmup,
                                          std::optional<std::size_t> weight_lag = {}) {
  std::vector<Action> actions;
  const auto push = [&actions](Action action, Kind kind) {
    action.kind = kind;
    actions.push_back(action);
  };
  warmup = std::min(warmup, forwards.size());
  actions.assign(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warmup));
  for (std::size_t k = 0; k < backwards.size(); ++k) {
    if (k + warmup < forwards.size()) actions.push_back(forwards[k + warmup]);
    push(backwards[k], weight_lag ? Kind::backward_input : Kind::backward);
    if (weight_lag && k >= *weight_lag) push(backwards[k - *weight_lag], Kind::backward_weight);
  }
  if (weight_lag)
    for (std::size_t k = backwards.size() - std::min(*weight_lag, backwards.size()); k < backwards.size();
         ++k)
      push(backwards[k], Kind::backward_weight);
  return actions;
}

std::vector<Action> single_stage(ScheduleKind kind, std::int64_t rank, std::int64_t pp,
                                 std::int64_t microbatches) {
  std::vector<Action> forwards, backwards;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    forwards.push_back({Kind::forward, rank, m});
    backwards.push_back({Kind::backward, rank, m});
  }
  const std::int64_t warmup = kind == ScheduleKind::gpipe ? microbatches : pp - 1 - rank;
  return warm_up_and_alternate(forwards, backwards, static_cast<std::size_t>(warmup));
}

std::vector<Action> interleaved(ScheduleKind kind, std::int64_t rank, std::int64_t pp, std::int64_t chunks,
                                std::int64_t microbatches) {
  const std::int64_t rounds = std::max<std::int64_t>(1, microbatches / pp);
  std::vector<Action> forwards, backwards;
  for (std::int64_t round = 0, begin = 0, end; round < rounds; ++round, begin = end) {
    end = begin + microbatches / rounds + (round < microbatches % rounds);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      for (std::int64_t m = begin; m < end; ++m) {
        forwards.push_back({Kind::forward, chunk * pp + rank, m});
        backwards.push_back({Kind::backward, (chunks - 1 - chunk) * pp + rank, m});
      }
  }
  const std::int64_t largest_round = (microbatches + rounds - 1) / rounds, hops = pp - 1 - rank;
  const std::int64_t warmup_of_last_rank = (chunks - 1) * largest_round;
  if (kind == ScheduleKind::interleaved_1f1b)
    return warm_up_and_alternate(forwards, backwards,
                                 static_cast<std::size_t>(warmup_of_last_rank + 2 * hops));
  return warm_up_and_alternate(forwards, backwards, static_cast<std::size_t>(warmup_of_last_rank + hops),
                               static_cast<std::size_t>(rank));
}

/// The actions of one rank with placement v. Each call adds the next action of its kind on chunk 0 (stage q)
/// or chunk 1 (stage 2 p - 1 - q).
class VOrder {
 public:
  VOrder(std::int64_t rank, std::int64_t pp) : stages_{rank, 2 * pp - 1 - rank} {}
  void forward(int chunk) { add(Kind::forward, chunk, forwards_[chunk]); }
  void input(int chunk) { add(Kind::backward_input, chunk, inputs_[chunk]); }
  void weight(int chunk) { add(Kind::backward_weight, chunk, weights_[chunk]); }
  void backward(int chunk) {
    input(chunk);
    weight(chunk);
  }
  void pending_weights(int chunk) {
    while (weights_[chunk] < inputs_[chunk]) weight(chunk);
  }
  std::int64_t forwards(int chunk) const { return forwards_[chunk]; }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(Kind kind, int chunk, std::int64_t& next) { actions_.push_back({kind, stages_[chunk], next++}); }

  std::array<std::int64_t, 2> stages_, forwards_{}, inputs_{}, weights_{};  // of both chunks
  std::vector<Action> actions_;
};

/// Zero bubble, V shape. The order needs 2 p - 1 microbatches to fill the pipeline.
std::vector<Action> zbv(std::int64_t rank, std::int64_t pp, std::int64_t microbatches) {
  const std::int64_t n = std::max(2 * pp - 1, microbatches);
  VOrder order(rank, pp);
  for (std::int64_t i = 0; i < 2 * (pp - rank) - 1; ++i) order.forward(0);
  for (std::int64_t i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (std::int64_t i = 0; i < pp - rank; ++i) {
    order.forward(1);
    order.backward(1);
  }
  while (order.forwards(1) < order.forwards(0) || order.forwards(0) < n) {
    if (order.forwards(0) < n) order.forward(0);
    order.backward(0);
    order.forward(1);
    order.backward(1);
  }
  for (std::int64_t i = 0; i < rank; ++i) {
    order.input(0);
    order.input(1);
  }
  for (std::int64_t i = 0; i < pp - rank; ++i) order.backward(0);
  order.pending_weights(1);
  order.pending_weights(0);
  return order.take();
}

}  // namespace

ScheduleKind parse_schedule_kind(std::string_view name) {
  std::string known;
  for (const KindNames& k : kind_names) {
    if (same_letters(name, k.name) || same_letters(name, k.pytorch_class)) return k.kind;
    known += cat(known.empty() ? "" : ", ", k.name, " (", k.pytorch_class, ")");
  }
  fail("no pipeline schedule ", quote(name), "; there are: ", known);
}

std::string_view name_of(ScheduleKind kind) { return kind_names[static_cast<std::size_t>(kind)].name; }

bool has_one_chunk(ScheduleKind kind) {
  return kind == ScheduleKind::gpipe || kind == ScheduleKind::one_f_one_b;
}

StagePlacement placement_of(ScheduleKind kind) {
  return kind == ScheduleKind::zbv ? StagePlacement::v : StagePlacement::loop;
}

std::vector<std::int64_t> stages_of_rank(StagePlacement placement, std::int64_t rank, std::int64_t pp,
                                         std::int64_t stages) {
  require(pp >= 1, "pipeline: pp is ", pp, "; want at least 1");
  require(stages >= pp && stages % pp == 0, "pipeline: ", stages, " stages on ", pp,
          " ranks; want a multiple of ", pp, ", such as ", std::max(pp, stages - stages % pp), " or ",
          std::max(pp, stages - stages % pp) + pp);
  expect(rank >= 0 && rank < pp, "stages_of_rank: rank ", rank, " of ", pp);
  if (placement == StagePlacement::v) {
    require(stages == 2 * pp, "pipeline: ", stages, " stages on ", pp,
            " ranks; placement v wants 2 stages for each rank, which makes ", 2 * pp);
    return {rank, stages - 1 - rank};
  }
  std::vector<std::int64_t> ids;
  for (std::int64_t stage = rank; stage < stages; stage += pp) ids.push_back(stage);
  return ids;
}

void check_chunks(ScheduleKind kind, std::int64_t chunks) {
  if (has_one_chunk(kind))
    require(chunks == 1, "pipeline: ", counted(chunks, "stage"), " for each rank; ", name_of(kind),
            " wants exactly 1");
  else if (kind == ScheduleKind::zbv)
    require(chunks == 2, "pipeline: ", counted(chunks, "stage"), " for each rank; zbv wants exactly 2");
  else
    require(chunks >= 2, "pipeline: ", counted(chunks, "stage"), " for each rank; ", name_of(kind),
            " wants at least 2 (1f1b is the same order for 1)");
}

Schedule make_schedule(ScheduleKind kind, std::int64_t pp, std::int64_t chunks, std::int64_t microbatches) {
  require(pp >= 1, "pipeline: pp is ", pp, "; want at least 1");
  require(microbatches >= 1, "pipeline: ", microbatches, " microbatches; want at least 1");
  check_chunks(kind, chunks);
  constexpr std::int64_t most = 1 << 24;
  const std::int64_t filled =
      kind == ScheduleKind::zbv ? std::max(2 * std::min(pp, most) - 1, microbatches) : microbatches;
  require(chunks <= most / pp && filled <= most / (pp * chunks), "pipeline: ", pp, " ranks, ", chunks,
          " stages for each, ", microbatches, " microbatches: more than ", most, " forwards in all");
  Schedule schedule;
  for (std::int64_t rank = 0; rank < pp; ++rank)
    schedule.push_back(has_one_chunk(kind)         ? single_stage(kind, rank, pp, microbatches)
                       : kind == ScheduleKind::zbv ? zbv(rank, pp, microbatches)
                                                   : interleaved(kind, rank, pp, chunks, microbatches));
  return first_microbatches(std::move(schedule), microbatches);
}

}  // namespace nemocube
