#include "parallel/data_parallel/data_parallel.h"

#include <algorithm>

#include "core/add.h"
#include "core/profile.h"
#include "ops/global_norm/global_norm.h"

namespace nemocube {
namespace {

Zone wait_zone("data_parallel/wait");

void wait_for(std::vector<Work>& works) {
  const ZoneTimer timer(wait_zone);
  for (Work& work : works) work.wait();
  works.clear();
}

}  // namespace

DataParallel::DataParallel(Stack& model, const ProcessGroups& groups, const DataParallelOptions& options,
                           Device device, const GradientSourceOf& source_of)
    : model_(model), options_(options), groups_(groups), dp_(groups[Group::dp]) {
  std::map<std::int64_t, std::vector<Parameter*>> of_block;
  std::vector<Parameter*> root;
  const bool alone = !model.device().is_meta();  // nothing moves, so parameters need no buffers
  expect(!alone || (groups.all().size() == 1 && options.level == ZeroLevel::none),
         "a model with memory, to be divided among ", groups.all().size(), " ranks");
  if (alone) return;
  for (Parameter& p : model.parameters().all()) {
    if (!p.node) {  // buffers, few and small: every rank keeps them whole
      p.value = p.own = Tensor::zeros(p.value.shape(), p.value.dtype(), device);
      p.counts = p.counts && groups[Group::dp_cp].rank() == 0;
      continue;
    }
    const auto block = unit_of(p.id);
    (block ? of_block[*block] : root).push_back(&p);
  }
  const GradientSourceOf sources = source_of ? source_of : [](const Parameter&) { return GradientSource{}; };
  for (const auto& [block, parameters] : of_block)
    blocks_.emplace(block, make_unit(parameters, device, sources));
  root_ = make_unit(root, device, sources);
  const bool experts_elsewhere = !model.moe_layers().empty() && groups[Group::tp_ep].size() > 1;
  if (options.overlap) exchanges_.emplace(model, experts_elsewhere, [this] { start_waiting(); });
  model_.hooks = this;
}

DataParallel::~DataParallel() { model_.hooks = nullptr; }

DataParallel::Flat DataParallel::make_flat(std::vector<Parameter*> parameters, bool expert,
                                           Device device) const {
  const bool whole = options_.level == ZeroLevel::none;
  Communicator& shard = groups_[expert ? Group::expt_dp : whole ? Group::dp_cp : Group::dp_shard_cp];
  Communicator* replicas = expert || whole ? nullptr : &groups_[Group::dp_replicate];
  if (replicas && replicas->rank() > 0)  // equal parts; those of the first replica count
    for (Parameter* p : parameters) p->counts = false;
  return {FlatUnit(std::move(parameters), options_.level, shard.rank(), shard.size(), device), expert, &shard,
          replicas};
}

DataParallel::Unit DataParallel::make_unit(const std::vector<Parameter*>& parameters, Device device,
                                           const GradientSourceOf& source_of) const {
  std::map<std::tuple<bool, DType, bool>, std::vector<Parameter*>> alike;  // trained ones first
  for (Parameter* p : parameters)
    alike[{source_of(*p).expert, p->value.dtype(), !p->wants_grad()}].push_back(p);
  Unit unit{.flats = {}, .parts = GradientParts(parameters, source_of), .gathers = {}};
  for (auto& [kind, same] : alike) {
    const FlatUnit& flat =
        unit.flats.emplace_back(make_flat(std::move(same), std::get<0>(kind), device)).unit;
    if (frees_gradients() && flat.trained()) flat.gradients().storage()->release();
    if (flat.divides_values()) flat.values().storage()->release();
  }
  unit.gathered = !shards_values();
  return unit;
}

DataParallel::Unit* DataParallel::block_unit(std::int64_t block) {
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? nullptr : &found->second;
}

// --- values

void DataParallel::start_waiting() {
  start_reduction();
  if (waiting_gather_) start_gather(*waiting_gather_);
}

void DataParallel::start_gather(Unit& unit) {
  if (waiting_gather_ == &unit) waiting_gather_ = nullptr;
  if (unit.gathered) return;
  unit.gathered = true;
  for (const Flat& flat : unit.flats) {
    const FlatUnit& u = flat.unit;
    if (!u.values().storage()->released()) continue;
    u.values().storage()->restore();
    unit.gathers.push_back(flat.shard->start_all_gather(u.values(), u.own_values()));
    if (!options_.overlap) wait_for(unit.gathers);
  }
}

void DataParallel::gather(Unit& unit) {
  start_gather(unit);
  if (!unit.gathers.empty()) wait_for(unit.gathers);
}

void DataParallel::release(Unit& unit, bool after_forward) {
  if (!shards_values() || !unit.gathered || keep_blocks_) return;
  if (!unit.gathers.empty()) wait_for(unit.gathers);
  for (const Flat& flat : unit.flats) {
    if (!flat.unit.divides_values() || (after_forward && !reshards(flat))) continue;
    flat.unit.values().storage()->release();
    unit.gathered = false;
  }
}

void DataParallel::hold(Held what) {
  gather(root_);
  if (what == Held::root) return;
  keep_blocks_ = true;
  for (auto& [block, unit] : blocks_) gather(unit);
}

void DataParallel::let_go() {
  keep_blocks_ = false;
  release(root_);
  for (auto& [block, unit] : blocks_) release(unit);
}

void DataParallel::spread_values(bool trained_alone) {
  if (options_.level == ZeroLevel::none || shards_values()) return;
  const ZoneTimer timer(wait_zone);
  const auto spread = [&](const Unit& unit) {
    for (const Flat& flat : unit.flats)
      if (flat.unit.trained() || !trained_alone)
        flat.shard->all_gather(flat.unit.values(), flat.unit.own_values());
  };
  for (const auto& [block, unit] : blocks_) spread(unit);
  spread(root_);
}

void DataParallel::abandon_step() {
  const auto abandon = [&](Unit& unit) {
    unit.gathers.clear();
    for (const Flat& flat : unit.flats) {
      if (frees_gradients() && flat.unit.trained()) flat.unit.gradients().storage()->release();
      if (flat.unit.divides_values()) flat.unit.values().storage()->release();
    }
    unit.gathered = !shards_values();
    unit.reduced = false;
  };
  waiting_gather_ = nullptr;
  waiting_reduction_.reset();
  passed_backward_.reset();
  reductions_.clear();
  for (auto& [block, unit] : blocks_) abandon(unit);
  abandon(root_);
}

void DataParallel::before_forward(std::int64_t block) {
  Unit* unit = block_unit(block);
  if (!unit) return;
  gather(*unit);
  const auto next = blocks_.upper_bound(block);
  if (next == blocks_.end() || !exchanges_) return;
  waiting_gather_ = &next->second;
  if (!exchanges_->in_forward(block)) start_gather(next->second);
}

void DataParallel::after_forward(std::int64_t block) {
  if (Unit* unit = block_unit(block); unit && unit != &blocks_.rbegin()->second) release(*unit, true);
}

void DataParallel::before_backward(std::int64_t block) {
  Unit* unit = block_unit(block);
  if (!unit) return;
  gather(*unit);
  take_gradient_memory(*unit);
  const auto here = blocks_.find(block);
  if (here == blocks_.begin() || !exchanges_) return;
  waiting_gather_ = &std::prev(here)->second;
  if (!exchanges_->in_backward(block)) start_gather(*waiting_gather_);
}

void DataParallel::after_backward(std::int64_t block) {
  if (Unit* unit = block_unit(block); unit && reduces_now()) release(*unit);
  passed_backward_ = block;
}

// --- gradients

void DataParallel::take_gradient_memory(Unit& unit) {
  // A reduction of an earlier microbatch still reads the gradients of this unit.
  const auto under_way = std::ranges::find(reductions_, &unit, &PendingReduction::unit);
  if (under_way != reductions_.end()) {
    finish(*under_way);
    reductions_.erase(under_way);
  }
  if (!frees_gradients()) return;
  for (const Flat& flat : unit.flats)
    if (flat.unit.trained()) flat.unit.restore_gradients();
}

void DataParallel::gradients_written(std::int64_t block) {
  // Weight work that comes later meets no exchange to wait for.
  const bool backward_goes_on = std::exchange(passed_backward_, {}) == block;
  Unit* unit = block_unit(block);
  if (!unit || !reduces_now()) return;
  prepare_reduction(*unit);
  if (!backward_goes_on || !exchanges_ || !exchanges_->in_backward(block - 1)) start_reduction();
  finish_earlier_reductions();
}

void DataParallel::prepare_reduction(Unit& unit) {
  start_reduction();  // of the block before, should it wait still
  for (const Flat& flat : unit.flats)
    if (flat.unit.trained()) flat.unit.complete_gradients();
  waiting_reduction_ = {&unit, unit.parts.start()};
}

void DataParallel::start_reduction() {
  if (!waiting_reduction_) return;
  for (GradientParts::Sum& sum : waiting_reduction_->sums) sum.finish();
  Unit& unit = *waiting_reduction_->unit;
  waiting_reduction_.reset();
  PendingReduction reduction{{}, &unit, {}};
  for (const Flat& flat : unit.flats) {
    const FlatUnit& u = flat.unit;
    if (!u.trained()) continue;
    u.clear_gradients();
    if (options_.level == ZeroLevel::none) {
      reduction.works.push_back(flat.shard->start_all_reduce(u.gradients()));
      continue;
    }
    Tensor to = u.own_gradients();
    if (unit.reduced) reduction.parts.push_back(to = Tensor::empty(to.shape(), to.dtype(), to.device()));
    reduction.works.push_back(flat.shard->start_reduce_scatter(to, u.gradients()));
    if (flat.replicas && flat.replicas->size() > 1)
      reduction.works.push_back(flat.replicas->start_all_reduce(to));
  }
  unit.reduced = true;
  reductions_.push_back(std::move(reduction));
}

// One reduction runs beside the next block's backward pass; the memory of earlier ones is needed.
void DataParallel::finish_earlier_reductions() {
  const std::size_t under_way = options_.overlap && !waiting_reduction_ ? 1 : 0;
  while (frees_gradients() && reductions_.size() > under_way) {
    finish(reductions_.front());
    reductions_.erase(reductions_.begin());
  }
}

void DataParallel::finish(PendingReduction& reduction) {
  wait_for(reduction.works);
  std::size_t part = 0;
  for (const Flat& flat : reduction.unit->flats) {
    if (!flat.unit.trained()) continue;
    if (!reduction.parts.empty()) {
      const Tensor& sum = flat.unit.own_gradients();
      add_elements(sum, sum, reduction.parts[part++]);
    }
    if (frees_gradients()) flat.unit.gradients().storage()->release();
  }
}

void DataParallel::begin_backward(bool last) {
  start_reduction();  // this pass may write gradients of the same block
  passed_backward_.reset();
  last_microbatch_ = last;
}

void DataParallel::begin_step() {
  hold(Held::root);
  take_gradient_memory(root_);
  root_.reduced = false;
  for (auto& [block, unit] : blocks_) unit.reduced = false;
}

void DataParallel::finish_gradients() {
  prepare_reduction(root_);
  start_reduction();
  for (PendingReduction& reduction : reductions_) finish(reduction);
  reductions_.clear();
}

Tensor DataParallel::square_sum_of_gradients() const {
  std::vector<Tensor> counted;
  for (const Parameter& p : model_.parameters().all())
    if (p.wants_grad()) std::ranges::move(p.counted_gradient(), std::back_inserter(counted));
  const Tensor own = sum_of_squares(counted, model_.device());
  Communicator& all = groups_.all();
  const Tensor parts = Tensor::empty({all.size(), own.numel()}, own.dtype(), own.device());
  all.all_gather(parts, own);
  return add_square_sums(parts);
}

void DataParallel::finish_update() {
  spread_values(true);
  let_go();
}

}  // namespace nemocube
