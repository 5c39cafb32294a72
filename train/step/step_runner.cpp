#include "train/step/step_runner.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>

#include "core/add.h"
#include "core/profile.h"
#include "ops/router/router.h"
#include "ops/view/view.h"

namespace nemocube {
namespace {

using Kind = Action::Kind;
using Payload = Transfer::Payload;

/// The zone of the passes of one of this rank's chunks: "step/forward" of the first, "step/forward 1" of the
/// second. In a trace they are actions of a pipeline.
Zone& zone_of(const std::string& passes, std::size_t chunk) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Zone>> zones;
  const std::lock_guard lock(mutex);
  auto& [name, zone] = *zones.try_emplace(chunk > 0 ? cat(passes, " ", chunk) : passes).first;
  if (!zone) zone = std::make_unique<Zone>(name.c_str(), false);
  return *zone;
}

void add_sizes(GraphCache::Key& key, const MicrobatchRows& own) {
  for (const std::int64_t size : {own.sequences.tokens(), own.sequences.count(), own.label_count()})
    key.push_back(static_cast<double>(size));
}

/// In a trace.
const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return "forward";
    case Kind::backward:
      return "backward";
    case Kind::backward_input:
      return "backward input";
    case Kind::backward_weight:
      return "backward weight";
  }
  throw std::logic_error("kind of an action");
}

std::int64_t number(std::size_t n) { return static_cast<std::int64_t>(n); }

Tensor zeros_like(const Tensor& t) { return Tensor::zeros(t.shape(), t.dtype(), t.device()); }

}  // namespace

StepRunner::StepRunner(ParallelModel& parallel, std::span<const TokenBatch> microbatches,
                       const GradScale& loss_scale, double noised_factor, const KernelChoice* kernels,
                       StepReplay* replay)
    : parallel_(parallel),
      model_(parallel.model()),
      loss_scale_(loss_scale),
      kernels_(kernels),
      replay_(replay && !replay->whole_steps() ? replay : nullptr) {
  const Stack& model = model_;
  for (std::size_t chunk = 0; chunk < model.part().chunks.size(); ++chunk)
    moe_numbers_.push_back(moe_layer_numbers(model, chunk));
  for (const TokenBatch& batch : microbatches) {
    MicrobatchRows own(parallel, batch, noised_factor);
    if (!replay)
      own = own.to(model.device());
    else if (replay->whole_steps())
      own = replay->place(own, std::ssize(rows_));
    rows_.push_back(std::move(own));
  }
}

double StepRunner::aux_grad_scale() const {
  for (MoeMixer* moe : model_.moe_layers())
    if (has_losses(moe->router())) return moe->router().aux_grad_scale;
  return 1;
}

GraphCache::Key StepRunner::key() const {
  GraphCache::Key key{aux_grad_scale()};
  for (const MicrobatchRows& own : rows_) add_sizes(key, own);
  return key;
}

void StepRunner::abandon() {
  live_.clear();
  parallel_.transfers().abandon();
  parallel_.data().abandon_step();
}

void StepRunner::run(const Program& program, StepTensors& sums) {
  const std::vector<bool> last = last_backward_passes(program);
  for (std::size_t i = 0; i < program.size(); ++i) {
    if (const auto* transfers = std::get_if<Exchange>(&program[i])) {
      exchange(*transfers);
    } else if (const Action& action = std::get<Action>(program[i]); is_whole_microbatch(program, i)) {
      ++i;
      run_whole(action.microbatch, last[i], i + 1 == program.size(), sums);
    } else if (action.kind == Kind::forward) {
      forward(action);
    } else {
      backward(action, last[i], sums);
    }
  }
  parallel_.transfers().finish();
  expect(live_.empty(), "a step ends with ", live_.size(), " unfinished microbatches");
  if (!replay_) finish(sums);
}

void StepRunner::exchange(const Exchange& transfers) {
  const trace::Span span(trace::Category::pipeline, "exchange");
  parallel_.transfers().exchange(
      transfers, [&](const Transfer& t) { return parallel_.room(t, rows(t.microbatch).sequences); });
}

// Both passes of the whole model, one after the other, by a graph.
bool StepRunner::is_whole_microbatch(const Program& program, std::size_t at) const {
  if (!replay_) return false;
  const Action& forward = std::get<Action>(program[at]);
  const Action* const next = at + 1 < program.size() ? std::get_if<Action>(&program[at + 1]) : nullptr;
  expect(last_stage() == 0 && forward.kind == Kind::forward && next &&
             *next == Action{Kind::backward, 0, forward.microbatch},
         forward, " in a graph without its backward pass");
  return true;
}

// `ends`: the step has no other microbatch behind this one. Work on other streams that the passes begin then
// is awaited in the same graph.
void StepRunner::run_whole(std::int64_t microbatch, bool last, bool ends, StepTensors& sums) {
  MicrobatchRows& own = rows(microbatch);
  own = replay_->place(own);
  GraphCache::Key key{aux_grad_scale(), static_cast<double>(last), static_cast<double>(ends)};
  add_sizes(key, own);
  const auto passes = [&] {
    forward({Kind::forward, 0, microbatch});
    backward({Kind::backward, 0, microbatch}, last, sums);
    if (ends) finish(sums);
  };
  replay_->graphs().run("the passes of a microbatch", key, passes, [this] { abandon(); });
}

void StepRunner::finish(StepTensors& sums) {
  parallel_.data().finish_gradients();
  parallel_.all().all_reduce(sums.sums);
  if (sums.counts.numel() > 0) parallel_.all().all_reduce(sums.counts);
}

void StepRunner::make_records(Live& m, std::size_t chunk) const {
  m.records = model_.make_records(chunk);
  if (model_.part().chunks[chunk].head) m.mtp_records = model_.make_mtp_records();
  std::vector<MoeRecord*> routers = moe_records(m.records);
  std::ranges::copy(moe_records(m.mtp_records), std::back_inserter(routers));
  if (routers.empty()) return;
  m.sums = RouterSums::zeros(std::ssize(routers), model_.setup().most_experts(), model_.device());
  std::int64_t call = 0;
  for (MoeRecord* router : routers) router->sums = m.sums.layer(call++, router->experts);
}

void StepRunner::forward(const Action& action) {
  const auto& [kind, stage, microbatch] = action;
  const std::size_t chunk = parallel_.chunk_of(stage);
  const ZoneTimer timer(zone_of("step/forward", chunk));
  const trace::Span span(trace::Category::pipeline, name_of(kind),
                         {{"microbatch", microbatch}, {"chunk", number(chunk)}, {"stage", stage}});
  Live& m = live_[{stage, microbatch}];
  const MicrobatchRows& own = rows(microbatch);
  if (stage > 0)
    m.in = make_result(parallel_.transfers().take(Payload::activation, stage - 1, microbatch), true);
  make_records(m, chunk);
  Context ctx{.tape = &m.tape, .kernels = kernels_};
  m.out = model_.forward(ctx, {.ids = stage == 0 ? own.ids : Tensor(),
                               .residual = m.in,
                               .sequences = own.sequences,
                               .records = &m.records,
                               .chunk = chunk});
  if (stage == last_stage()) {
    if (!own.mtp_ids.empty())
      m.ahead = model_.predict_ahead(
          ctx, m.out, {.ids = own.mtp_ids, .sequences = own.sequences, .records = &m.mtp_records});
    return;
  }
  parallel_.transfers().give(Payload::activation, stage, microbatch, m.out.value());
  m.out = Var(Tensor(), m.out.node());  // the next stage has the values
}

Var StepRunner::start_loss(Context& ctx, Live& m, std::int64_t microbatch, StepTensors& sums) {
  const MicrobatchRows& own = rows(microbatch);
  const auto add_up = [&](const Tensor& sum, const Var& loss) {
    if (parallel_.counts_loss()) add_elements(sum, sum, loss.value().reshape({1}));
  };
  Var loss = model_.loss(ctx, std::exchange(m.out, {}), own.labels, own.sequences, loss_scale_);
  add_up(sums.loss(), loss);
  const MtpTraining& mtp = model_.choices().mtp;
  GradScale scale = loss_scale_;
  scale.number *= mtp.scaling_factor / static_cast<double>(std::max<std::int64_t>(1, mtp.depths));
  for (std::size_t k = 0; k < m.ahead.size(); ++k) {
    const Var ahead =
        model_.loss(ctx, std::exchange(m.ahead[k], {}), own.mtp_labels[k], own.sequences, scale);
    add_up(sums.mtp_loss(static_cast<std::int64_t>(k)), ahead);
    loss = add(ctx, loss, ahead);  // for the tape alone: the factors are in the scales
  }
  return loss;
}

void StepRunner::backward(const Action& action, bool last, StepTensors& sums) {
  const auto& [kind, stage, microbatch] = action;
  const std::size_t chunk = parallel_.chunk_of(stage);
  const ZoneTimer timer(zone_of("step/backward", chunk));
  const trace::Span span(trace::Category::pipeline, name_of(kind),
                         {{"microbatch", microbatch}, {"chunk", number(chunk)}, {"stage", stage}});
  const auto found = live_.find({stage, microbatch});
  expect(found != live_.end(), action, " before its forward pass");
  Live& m = found->second;
  parallel_.data().begin_backward(last);
  if (kind == Kind::backward_weight) {
    m.tape.run_weight_work();
    live_.erase(found);
    return;
  }
  if (kind == Kind::backward_input) m.tape.defer_weight_work();
  Context ctx{.tape = &m.tape, .kernels = kernels_};
  if (stage == last_stage()) {
    const Var loss = start_loss(ctx, m, microbatch, sums);
    m.tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), loss.value().device()));
  } else {
    const Var out = std::exchange(m.out, {});
    const Tensor gradient = parallel_.transfers().take(Payload::gradient, stage + 1, microbatch);
    if (out.needs_grad()) m.tape.backward(out, gradient);  // else all up to here is frozen
  }
  if (stage > 0) {
    const bool reached = m.in.node()->filled();
    parallel_.transfers().give(Payload::gradient, stage, microbatch,
                               reached ? m.in.node()->take() : zeros_like(m.in.value()));
    m.in = {};
  }
  add_sums(m.sums, chunk, sums);
  if (kind == Kind::backward) live_.erase(found);
}

// Each call of a router has a row of `own`. The calls of a repeated layer of multi-token prediction come
// last, one depth after another, and are added to the rows of that layer.
void StepRunner::add_sums(const RouterSums& own, std::size_t chunk, StepTensors& sums) const {
  if (!own.counts) return;
  // The layers of a chunk follow each other.
  const std::int64_t first = moe_numbers_[chunk].front(), layers = number(moe_numbers_[chunk].size()),
                     of_depth = moe_layers_of_depth(model_.config());
  // Losses without a coefficient are zero.
  const bool with_losses =
      std::ranges::any_of(model_.moe_layers(), [](MoeMixer* moe) { return has_losses(moe->router()); });
  const auto add_rows = [&](std::int64_t begin, std::int64_t count, std::int64_t layer) {
    add_counts(sums.counts.narrow(0, layer, count), own.counts.narrow(0, begin, count));
    if (!with_losses) return;
    const Tensor losses = sums.losses_of(layer, count);
    add_elements(losses, losses, own.losses.narrow(0, begin, count));
  };
  add_rows(0, layers, first);
  for (std::int64_t call = layers; call < own.counts.dim(0); call += of_depth)
    add_rows(call, of_depth, first + layers - of_depth);
}

}  // namespace nemocube
