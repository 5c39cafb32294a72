#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/allocator.h"
#include "core/log.h"
#include "core/parallel_for.h"
#include "ops/matmul/matmul_cpu.h"

namespace nemocube::cpu {
namespace {

/// The facts about a product for which oneDNN generates code.
struct Key {
  Sizes sizes;
  std::int64_t step_a = 0, step_b = 0, step_c = 0;
  DType operands = DType::f32, result = DType::f32;
  bool transpose_a = false, transpose_b = false, add = false;
  int threads = 1;

  auto fields() const {
    return std::array<std::int64_t, 8>{sizes.m,
                                       sizes.n,
                                       sizes.k,
                                       step_a,
                                       step_b,
                                       step_c,
                                       threads,
                                       static_cast<std::int64_t>(operands) * 256 +
                                           static_cast<std::int64_t>(result) * 8 + transpose_a * 4 +
                                           transpose_b * 2 + add};
  }
  friend bool operator==(const Key& a, const Key& b) { return a.fields() == b.fields(); }
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const std::int64_t field : key.fields()) {
      h = (h ^ static_cast<std::uint64_t>(field)) * 0x9e3779b97f4a7c15u;
      h ^= h >> 32;
    }
    return h;
  }
};

struct Plan {
  bool supported = false;
  dnnl::matmul product;
  dnnl::memory::desc a, b, c, scratch;
  std::uint64_t last_use = 0;             // guarded by the cache's mutex
  mutable std::atomic<bool> ran = false;  // oneDNN generates more code when a product first runs
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// A matrix of rows `step` values apart, or of columns when it is transposed. A dimension of size 1 has the
/// stride of a dense matrix, whatever `step` is: the stride of such a dimension means nothing, but oneDNN
/// derives layouts from it.
dnnl::memory::desc matrix(std::int64_t rows, std::int64_t cols, std::int64_t step, bool transposed,
                          DType dtype) {
  using Dims = dnnl::memory::dims;
  const auto type = dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  if (rows == 1) return {Dims{rows, cols}, type, Dims{cols, 1}};
  if (cols == 1) return {Dims{rows, cols}, type, Dims{1, transposed ? rows : 1}};
  return {Dims{rows, cols}, type, transposed ? Dims{1, step} : Dims{step, 1}};
}

dnnl::matmul::primitive_desc describe(const Plan& plan, const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), plan.a, plan.b, plan.c, attributes};
#else
  return {dnnl::matmul::desc(plan.a, plan.b, plan.c), attributes, cpu_engine()};
#endif
}

/// oneDNN fixes the number of threads when a product is prepared, by asking OpenMP.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

[[noreturn]] void fail_onednn(const dnnl::error& e) {
  if (e.status == dnnl_out_of_memory)
    throw OutOfMemory(cat("out of memory: matmul: oneDNN: ", e.what(), "; ", memory_in_use()));
  fail("matmul: oneDNN: ", e.what());
}

std::shared_ptr<Plan> make_plan(const Key& key) {
  check_threads_start(key.threads);
  const ThreadLimit limit(key.threads);
  auto plan = std::make_shared<Plan>();
  const Sizes& s = key.sizes;
  plan->a = matrix(s.m, s.k, key.step_a, key.transpose_a, key.operands);
  plan->b = matrix(s.k, s.n, key.step_b, key.transpose_b, key.operands);
  plan->c = matrix(s.m, s.n, key.step_c, false, key.result);
  dnnl::primitive_attr attributes;
  // The library's own scratchpad would be shared between threads.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  try {
    // oneDNN writes through a null pointer when it gets no memory for the code that it generates.
    const CpuHeadroom headroom("oneDNN");
    const auto description = describe(*plan, attributes);
    // oneDNN's reference code is plain loops. Converting the operands and an f32 product is many times
    // faster.
    if (key.operands == DType::bf16 && std::string_view(description.impl_info_str()).starts_with("ref"))
      return plan;
    plan->scratch = description.scratchpad_desc();
    plan->product = dnnl::matmul(description);
    plan->supported = true;
  } catch (const dnnl::error& e) {
    if (e.status != dnnl_unimplemented) fail_onednn(e);
  }
  return plan;
}

class PlanCache {
 public:
  // oneDNN's own cache would keep products that are dropped here, as many again: 50 MB more in a run of 60
  // steps of configs/squad_tiny.yaml with oneDNN 3.7.
  PlanCache() { dnnl::set_primitive_cache_capacity(0); }

  std::shared_ptr<Plan> find_or_make(const Key& key) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = plans_.find(key); found != plans_.end()) {
        found->second->last_use = ++clock_;
        return found->second;
      }
    }
    std::shared_ptr<Plan> plan = make_plan(key);
    log_debug("oneDNN: new product ", key.operands, " -> ", key.result, ", m=", key.sizes.m,
              " n=", key.sizes.n, " k=", key.sizes.k, " on ", key.threads, " threads",
              plan->supported ? "" : ": not supported");
    const std::lock_guard lock(mutex_);
    if (static_cast<std::int64_t>(plans_.size()) >= most_onednn_plans) drop_older_half();
    plan->last_use = ++clock_;
    return plans_.try_emplace(key, plan).first->second;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    plans_.clear();
  }
  std::int64_t size() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(plans_.size());
  }

 private:
  void drop_older_half() {
    std::vector<std::uint64_t> uses;
    for (const auto& [key, plan] : plans_) uses.push_back(plan->last_use);
    const auto middle = uses.begin() + static_cast<std::ptrdiff_t>(uses.size() / 2);
    std::ranges::nth_element(uses, middle);
    const std::uint64_t oldest_kept = *middle;
    std::erase_if(plans_, [&](const auto& entry) { return entry.second->last_use < oldest_kept; });
    ::malloc_trim(
        0);  // products are made of many small objects, so the pages between those that stay are free
  }

  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Plan>, KeyHash> plans_;
  std::uint64_t clock_ = 0;
};

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

// The row stride; of a matrix of one row, which has no distance between rows, its length.
std::int64_t row_step(const Tensor& t) { return t.rows() == 1 ? t.cols() : t.row_stride(); }

/// A matrix of one column whose values do not lie side by side. oneDNN 3.7 reads and writes such a matrix as
/// if its values did.
bool is_spread(const Tensor& t) { return t.cols() == 1 && t.rows() > 1 && t.row_stride() != 1; }

Tensor side_by_side(const Tensor& t) {
  if (!is_spread(t)) return t;
  const Tensor column = Tensor::empty({t.rows(), 1}, t.dtype(), Device::cpu);
  column.copy_from(t.reshape({t.rows(), 1}));
  return column;
}

using PlanPtr = std::shared_ptr<const Plan>;

PlanPtr plan_for(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes, int threads) {
  return plan_cache().find_or_make({.sizes = sizes,
                                    .step_a = row_step(a.tensor),
                                    .step_b = row_step(b.tensor),
                                    .step_c = row_step(c.to),
                                    .operands = a.tensor.dtype(),
                                    .result = c.to.dtype(),
                                    .transpose_a = a.transposed,
                                    .transpose_b = b.transposed,
                                    .add = c.how == Into::add,
                                    .threads = threads});
}

void execute(const Plan& plan, const Tensor& c, const Tensor& a, const Tensor& b) {
  const Tensor scratch =
      Tensor::empty({static_cast<std::int64_t>(plan.scratch.get_size())}, DType::u8, Device::cpu);
  const auto memory = [](const dnnl::memory::desc& desc, const Tensor& t) {
    return dnnl::memory(desc, cpu_engine(), t.host_bytes());
  };
  try {
    std::optional<CpuHeadroom> headroom;
    if (!plan.ran.load(std::memory_order_relaxed)) headroom.emplace("oneDNN");
    thread_local dnnl::stream stream(cpu_engine());
    plan.product.execute(stream, {{DNNL_ARG_SRC, memory(plan.a, a)},
                                  {DNNL_ARG_WEIGHTS, memory(plan.b, b)},
                                  {DNNL_ARG_DST, memory(plan.c, c)},
                                  {DNNL_ARG_SCRATCHPAD, memory(plan.scratch, scratch)}});
    stream.wait();
    plan.ran.store(true, std::memory_order_relaxed);
  } catch (const dnnl::error& e) {
    fail_onednn(e);
  }
}

/// A slice of rows of C and the columns of A that it needs.
struct Slice {
  Tensor to, left;
  PlanPtr plan;  // none: the product is formed from copies of `left`
};

/// Blocks of rows of C, each from a copy of its columns of A. oneDNN forms every sum in the same order as
/// without blocks and copies, because the copy is no dense matrix either. No block has one row, whose copy
/// would be a spread column.
void run_from_copies(const Slice& s, Into how, const Operand& b) {
  constexpr std::int64_t block_rows = 128;
  const std::int64_t k = s.left.rows();
  const Tensor copies = rows_apart(k, block_rows + 1);
  for (std::int64_t row = 0, rows = 0; row < s.to.rows(); row += rows) {
    const std::int64_t left_over = s.to.rows() - row;
    rows = left_over <= block_rows + 1 ? left_over : block_rows;
    const Tensor to = s.to.narrow(0, row, rows), left = copies.narrow(-1, 0, rows);
    left.copy_from(s.left.narrow(-1, row, rows));
    const PlanPtr plan = plan_for({to, how}, {left, true}, b, {rows, to.cols(), k}, 1);
    expect(plan->supported, "oneDNN has no f32 product");
    execute(*plan, to, left, b.tensor);
  }
}

bool has_isa(dnnl::cpu_isa isa) {
  static const auto effective = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (effective & static_cast<unsigned>(isa)) == static_cast<unsigned>(isa);
}

}  // namespace

/// Each thread forms a slice of the rows of C and packs only its part of A. With AVX-512 and several threads
/// this is 5 to 10 % faster than one product that oneDNN divides among the threads (oneDNN 2.6, two threads,
/// the shapes of weight gradients, f32 and bf16).
bool sliced_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes, int threads) {
  constexpr std::int64_t slice_multiple = 16;
  const std::int64_t multiples = (sizes.m + slice_multiple - 1) / slice_multiple;
  const Tensor left = a.tensor.reshape({sizes.k, sizes.m}), to = c.to.reshape({sizes.m, sizes.n});
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < threads; ++i) {
    const std::int64_t begin = multiples * i / threads * slice_multiple;
    const std::int64_t rows = std::min(sizes.m, multiples * (i + 1) / threads * slice_multiple) - begin;
    Slice& s = slices.emplace_back(Slice{to.narrow(0, begin, rows), left.narrow(-1, begin, rows), {}});
    const Sizes slice{rows, sizes.n, sizes.k};
    expect(rows > 1, "matmul: a slice of one row, whose A would be a spread column");
    if (rereads_crowded(s.left, b, slice)) continue;
    s.plan = plan_for({s.to, c.how}, {s.left, true}, b, slice, 1);
    if (!s.plan->supported) return false;  // before any slice has been written
  }
  parallel_for(threads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const Slice& s = slices[static_cast<std::size_t>(i)];
      if (s.plan)
        execute(*s.plan, s.to, s.left, b.tensor);
      else
        run_from_copies(s, c.how, b);
    }
  });
  return true;
}

bool onednn_product_unchecked(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  if (is_spread(c.to)) {
    const Tensor column =
        c.how == Into::add ? side_by_side(c.to) : Tensor::empty({sizes.m, 1}, c.to.dtype(), Device::cpu);
    if (!onednn_product_unchecked({column, c.how}, a, b, sizes)) return false;
    c.to.reshape({sizes.m, 1}).copy_from(column);
    return true;
  }
  if (is_spread(a.tensor) || is_spread(b.tensor))
    return onednn_product_unchecked(c, {side_by_side(a.tensor), a.transposed},
                                    {side_by_side(b.tensor), b.transposed}, sizes);
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (a.transposed && onednn_has_avx512() && sizes.m >= threads * least_slice)
    return sliced_product(c, a, b, sizes, threads);
  const PlanPtr plan = plan_for(c, a, b, sizes, threads);
  if (plan->supported) execute(*plan, c.to, a.tensor, b.tensor);
  return plan->supported;
}

bool onednn_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  static const bool right = [] {
    const dnnl_version_t* const version = dnnl_version();
    if (!is_tested_onednn(version->major, version->minor)) {
      check_onednn(cat(version->major, '.', version->minor, '.', version->patch), onednn_product_unchecked);
      plan_cache().clear();
    }
    return true;
  }();
  return right && onednn_product_unchecked(c, a, b, sizes);
}

bool onednn_has_avx512() { return has_isa(dnnl::cpu_isa::avx512_core); }

std::int64_t onednn_plans() { return plan_cache().size(); }

std::int64_t onednn_plan_bytes(DType operands, bool reserved) {
  const bool old = dnnl_version()->major < 3, tiles = has_isa(dnnl::cpu_isa::avx512_core_amx);
  if (!onednn_has_avx512()) return old ? 4'000 : 27'000;
  if (reserved) return operands == DType::bf16 && tiles ? 1'800'000 : 1'000'000;
  if (operands == DType::bf16) return (old ? 80'000 : 170'000) + (tiles ? 50'000 : 0);
  return old ? 62'000 : 160'000;
}

}  // namespace nemocube::cpu
