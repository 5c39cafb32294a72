#include "ops/ssd_scan/ssd_scan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/profile.h"
#include "core/variants.h"
#include "ops/contribute.h"
#include "ops/reduce.h"
#include "ops/ssd_scan/ssd_scan_kernels.h"

namespace nemocube {

namespace {

SsdChunks make_chunks(const Sequences& sequences, std::int64_t chunk_size, bool tensor_cores, Device device) {
  // In longer chunks, products between tokens cost more than the smaller number of states saves. Chunks of
  // 128 took 12 % longer than chunks of 32 or 64, which are equally fast (forward and backward, 4 x 512
  // tokens, 16 heads of 64, state 64, f32, Zen 4).
  constexpr std::int64_t longest_useful = 64;
  // With spare rows all sizes follow from the capacity alone.
  const bool spare = sequences.has_spare_rows();
  const std::int64_t longest = spare ? sequences.tokens() : sequences.longest(),
                     length = tensor_cores ? ssd_tensor_core_chunk
                                           : std::clamp<std::int64_t>(longest, 1,
                                                                      std::min(chunk_size, longest_useful));
  // The number of parts of all sequences, and a table of each sequence's first one.
  const auto cut = [&](std::int64_t part, std::int64_t fewest) {
    std::vector<std::int64_t> first{0};
    for (std::int64_t i = 0; i < sequences.count(); ++i)
      first.push_back(first.back() + std::max(fewest, (sequences.length(i) + part - 1) / part));
    const std::int64_t room = sequences.tokens() / part + sequences.count();
    return std::pair(spare ? room : first.back(), Tensor::from(first, {std::ssize(first)}).to(device));
  };
  SsdChunks chunks;
  chunks.length = length;
  chunks.segments = sequences.count();
  std::tie(chunks.count, chunks.first) = cut(length, 0);
  if (tensor_cores && longest > ssd_segment_tokens)
    std::tie(chunks.segments, chunks.first_segment) = cut(ssd_segment_tokens, 1);
  return chunks;
}

enum class ScanVariant { chunked, recurrent };
const Variants<ScanVariant> scan_variants("ssd_scan", {{ScanVariant::chunked, "chunked"},
                                                       {ScanVariant::recurrent, "recurrent"}});

void check_options(const SsdOptions& o) {
  require(o.heads >= 1 && o.head_dim >= 1 && o.groups >= 1 && o.state_size >= 1,
          "ssd_scan: heads, head_dim, groups and state_size must be positive, got ", o.heads, ", ",
          o.head_dim, ", ", o.groups, ", ", o.state_size);
  require(o.heads % o.groups == 0, "ssd_scan: ", o.heads, " heads cannot be shared by ", o.groups, " groups");
  require(o.chunk_size >= 1, "ssd_scan: chunk_size must be positive, got ", o.chunk_size);
  require(o.dt_min >= 0 && o.dt_min <= o.dt_max, "ssd_scan: time step limits [", o.dt_min, ", ", o.dt_max,
          "] are not an interval of times");
}

void check_inputs(const SsdInputs& in, const SsdOptions& o) {
  const DType dtype = in.x.value().dtype();
  require(in.x.value().ndim() == 2, "ssd_scan: x has shape ", in.x.shape(), ", want [tokens, channels]");
  require(is_float(dtype), "ssd_scan: x is ", dtype, ", want f32, f64 or bf16");
  const std::int64_t tokens = in.x.shape()[0];
  check_shape("ssd_scan: x", in.x.value(), {tokens, o.heads * o.head_dim});
  check_shape("ssd_scan: dt_raw", in.dt_raw.value(), {tokens, o.heads});
  check_shape("ssd_scan: B", in.B.value(), {tokens, o.groups * o.state_size});
  check_shape("ssd_scan: C", in.C.value(), {tokens, o.groups * o.state_size});
  check_dtype("ssd_scan: dt_raw", in.dt_raw.value(), dtype);
  check_dtype("ssd_scan: B", in.B.value(), dtype);
  check_dtype("ssd_scan: C", in.C.value(), dtype);
  const auto parameter = [&](std::string_view name, const Tensor& t) {
    check_shape(cat("ssd_scan: ", name), t, {o.heads});
    require(t.dtype() == dtype || t.dtype() == accumulate_dtype(dtype), "ssd_scan: ", name, " is ", t.dtype(),
            " for inputs of ", dtype);
  };
  parameter("A_log", in.A_log.value());
  parameter("D", in.D.value());
  parameter("dt_bias", in.dt_bias.value());
}

// The tensor for a gradient that the kernel writes. An input that wants no gradient gets one too; its result
// is dropped.
Tensor contribution(const Var& v) {
  const DType dtype = v.value().dtype();
  return v.needs_grad() ? contribution(*v.node(), dtype)
                        : Tensor::empty(v.shape(), dtype, v.value().device());
}

}  // namespace

Var ssd_scan(Context& ctx, const SsdInputs& in, const SsdOptions& options, const Sequences& sequences,
             const Tensor* initial_state, Tensor* final_state) {
  static Zone forward_zone("ssd_scan/forward"), backward_zone("ssd_scan/backward");
  const ZoneTimer timer(forward_zone);
  check_options(options);
  check_inputs(in, options);
  sequences.check("ssd_scan", in.x.shape()[0]);
  const DType dtype = in.x.value().dtype(), acc = accumulate_dtype(dtype);
  const Device device = in.x.value().device();
  const Shape state_shape{sequences.count(), options.heads, options.head_dim, options.state_size};
  if (initial_state) {
    check_shape("ssd_scan: initial state", *initial_state, state_shape);
    check_dtype("ssd_scan: initial state", *initial_state, acc);
  }

  const bool tensor_cores = ssd_on_tensor_cores(device, dtype, options);
  const SsdProblem problem{in.x.value(),
                           in.dt_raw.value(),
                           in.B.value(),
                           in.C.value(),
                           in.A_log.value().to(acc),
                           in.D.value().to(acc),
                           in.dt_bias.value().to(acc),
                           initial_state ? initial_state->as_contiguous() : Tensor(),
                           options,
                           sequences.on(device),
                           sequences.derived<SsdChunks>(
                               device, {options.chunk_size, tensor_cores},
                               [chunk_size = options.chunk_size, tensor_cores, device](const Sequences& s) {
                                 return make_chunks(s, chunk_size, tensor_cores, device);
                               })};
  const ScanVariant variant = scan_variants.chosen(ctx, in.x.value().device());
  const bool records = ctx.records({&in.x, &in.dt_raw, &in.B, &in.C, &in.A_log, &in.D, &in.dt_bias});
  Var y = make_result(Tensor::empty(in.x.shape(), dtype, in.x.value().device()), records);
  SsdStates states;
  if (records)
    states.chunk_starts =
        tensor_cores
            ? Tensor::empty({problem.chunks.count, options.heads, options.state_size, options.head_dim},
                            DType::bf16, device)
            : Tensor::empty({problem.chunks.count, options.heads, options.head_dim, options.state_size}, acc,
                            device);
  if (final_state) states.final = Tensor::empty(state_shape, acc, in.x.value().device());
  if (variant == ScanVariant::recurrent)
    ssd_recurrent_forward(problem, y.value(), states);
  else
    ssd_chunked_forward(problem, y.value(), states);
  if (final_state) *final_state = states.final;
  if (!records) return y;

  const bool chunks_without_tokens = sequences.has_spare_rows();
  ctx.tape->record("ssd_scan", [in, problem, variant, starts = states.chunk_starts, out = y.node(),
                                chunks_without_tokens] {
    if (!out->filled()) return;
    const ZoneTimer backward_timer(backward_zone);
    const Shape partial{problem.chunks.count, problem.options.heads};
    const auto sums = [&] {
      const Tensor t = Tensor::empty(partial, problem.A_log.dtype(), problem.A_log.device());
      if (chunks_without_tokens) t.zero();
      return t;
    };
    const SsdGradients g{contribution(in.x),
                         contribution(in.dt_raw),
                         contribution(in.B),
                         contribution(in.C),
                         sums(),
                         sums(),
                         sums()};
    if (variant == ScanVariant::recurrent)
      ssd_recurrent_backward(problem, g, out->take(), starts);
    else
      ssd_chunked_backward(problem, g, out->take(), starts);
    if (in.x.needs_grad()) in.x.node()->add(g.x);
    if (in.dt_raw.needs_grad()) in.dt_raw.node()->add(g.dt_raw);
    if (in.B.needs_grad()) in.B.node()->add(g.B);
    if (in.C.needs_grad()) in.C.node()->add(g.C);
    ContributedSums parameters;
    parameters.add(in.A_log.node(), g.A_log, in.A_log.value().dtype());
    parameters.add(in.D.node(), g.D, in.D.value().dtype());
    parameters.add(in.dt_bias.node(), g.dt_bias, in.dt_bias.value().dtype());
    parameters.contribute();
  });
  return y;
}

}  // namespace nemocube
