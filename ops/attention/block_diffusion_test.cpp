#include "ops/attention/block_diffusion.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/kernel.h"
#include "core/variants.h"
#include "ops/attention/partial_attention.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Halves of texts of these lengths, noised and clean in turn.
Sequences halves(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> of_halves;
  for (const std::int64_t n : lengths) of_halves.insert(of_halves.end(), {n, n});
  return Sequences::of_lengths(of_halves);
}

/// The mask of a doubled text of L rows, rows and columns counted through both halves.
bool sees(std::int64_t i, std::int64_t j, std::int64_t length, std::int64_t block) {
  const auto block_of = [&](std::int64_t row) { return row % length / block; };
  const bool noised = i < length, noised_key = j < length;
  if (noised && noised_key) return block_of(i) == block_of(j);
  if (noised) return block_of(i) > block_of(j);
  return !noised_key && j <= i;
}

struct Outcome {
  Tensor o, dq, dk, dv;
};

/// The contract with a mask of all rows, as loops over single numbers, f64.
Outcome reference(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& d_o,
                  const AttentionOptions& a, std::int64_t block, const std::vector<std::int64_t>& lengths) {
  const std::int64_t hd = a.head_dim, group = a.heads / a.kv_heads;
  const double scale = 1 / std::sqrt(static_cast<double>(hd));
  const auto q = q_.to_vector(), k = k_.to_vector(), v = v_.to_vector(), g = d_o.to_vector(),
             factors = a.query_scale ? a.query_scale.to_vector() : std::vector<double>();
  std::vector<double> o(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
  const auto at = [](auto& x, std::int64_t i) -> auto& { return x[static_cast<std::size_t>(i)]; };
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < 2 * length; ++i)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t qi = ((begin + i) * a.heads + h) * hd;
        const auto key = [&](std::int64_t j) { return ((begin + j) * a.kv_heads + h / group) * hd; };
        const double factor = scale * (factors.empty() ? 1 : at(factors, begin + i));
        std::vector<double> p(static_cast<std::size_t>(2 * length));
        double sum = 0, delta = 0;
        for (std::int64_t j = 0; j < 2 * length; ++j) {
          if (!sees(i, j, length, block)) continue;
          double product = 0;
          for (std::int64_t d = 0; d < hd; ++d) product += at(q, qi + d) * at(k, key(j) + d);
          sum += at(p, j) = std::exp(factor * product);
        }
        for (double& x : p) x /= sum;
        for (std::int64_t j = 0; j < 2 * length; ++j)
          for (std::int64_t d = 0; d < hd; ++d) at(o, qi + d) += at(p, j) * at(v, key(j) + d);
        for (std::int64_t d = 0; d < hd; ++d) delta += at(o, qi + d) * at(g, qi + d);
        for (std::int64_t j = 0; j < 2 * length; ++j) {
          double dp = 0;
          for (std::int64_t d = 0; d < hd; ++d) dp += at(g, qi + d) * at(v, key(j) + d);
          const double ds = factor * at(p, j) * (dp - delta);
          for (std::int64_t d = 0; d < hd; ++d) {
            at(dq, qi + d) += ds * at(k, key(j) + d);
            at(dk, key(j) + d) += ds * at(q, qi + d);
            at(dv, key(j) + d) += at(p, j) * at(g, qi + d);
          }
        }
      }
    begin += 2 * length;
  }
  return {Tensor::from(o, q_.shape()), Tensor::from(dq, q_.shape()), Tensor::from(dk, k_.shape()),
          Tensor::from(dv, k_.shape())};
}

std::vector<const char*> variants_on(Device device) {
  std::vector<const char*> variants{"tiled", "plain"};
  std::erase_if(variants, [&](const char* variant) { return !has_variant(device, "attention", variant); });
  return variants;
}

}  // namespace

TEST_CASE("block diffusion: the mask is the closed form, also where the last block is short") {
  // Zero scores give every key that is seen the same weight, and unit vectors as values show the weights.
  for (const char* variant : {"tiled", "plain"})
    for (const std::int64_t length : {12, 10, 4, 3, 1})
      for (const std::int64_t block : {4, 1, 3, 16}) {
        CAPTURE(variant);
        CAPTURE(length);
        CAPTURE(block);
        const KernelChoice choice{{{"attention", variant}}};
        Context ctx{.kernels = &choice};
        const std::int64_t rows = 2 * length;
        const Tensor zeros = Tensor::zeros({rows, rows}, DType::f64, Device::cpu);
        std::vector<double> units(static_cast<std::size_t>(rows * rows));
        for (std::int64_t i = 0; i < rows; ++i) units[static_cast<std::size_t>(i * rows + i)] = 1;
        const Tensor o =
            block_diffusion_attention(ctx, Var(zeros), Var(zeros), Var(Tensor::from(units, {rows, rows})),
                                      {1, 1, rows}, block, halves({length}))
                .value();
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < rows; ++j) {
            CAPTURE(i);
            CAPTURE(j);
            CHECK((o.row<double>(i)[j] > 0) == sees(i, j, length, block));
          }
      }
}

TEST_CASE("block diffusion: results and gradients are those of attention with the mask" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("attention"), [](Device device, DType dtype) {
    const std::vector<std::int64_t> lengths{37, 0, 12, 150, 1};
    const Sequences sequences = halves(lengths);
    for (const char* variant : variants_on(device))
      for (const std::int64_t block : {4, 32, 100}) {
        if (device.is_cuda() && block == 4) continue;  // the software GPU takes its time
        CAPTURE(variant);
        CAPTURE(block);
        AttentionOptions options{4, 2, dtype == DType::bf16 ? 64 : 12};
        const Shape q{sequences.tokens(), options.heads * options.head_dim},
            k{sequences.tokens(), options.kv_heads * options.head_dim};
        const auto random = [&](const Shape& shape, std::uint64_t seed) {
          return random_tensor(shape, dtype, seed).to(device);
        };
        if (block == 32) options.query_scale = random_tensor({q[0]}, accumulate_dtype(dtype), 5).to(device);
        const Tensor d_o = random(q, 4);
        const auto intermediate = [](const Tensor& t) {
          return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
        };
        const Var qv = intermediate(random(q, 1)), kv = intermediate(random(k, 2)),
                  vv = intermediate(random(k, 3));
        const KernelChoice choice{{{"attention", variant}}};
        Tape tape;
        Context ctx{.tape = &tape, .kernels = &choice};
        const Var o = block_diffusion_attention(ctx, qv, kv, vv, options, block, sequences);
        tape.backward(o, d_o);
        const Outcome want = reference(qv.value(), kv.value(), vv.value(), d_o, options, block, lengths);
        const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 4e-6 : 0x1p-7;
        CHECK(relative_error(o.value(), want.o) < tolerance);
        CHECK(relative_error(qv.node()->grad(), want.dq) < tolerance);
        CHECK(relative_error(kv.node()->grad(), want.dk) < tolerance);
        CHECK(relative_error(vv.node()->grad(), want.dv) < tolerance);
      }
  });
}

TEST_CASE("block diffusion: gradients are those of finite differences") {
  for (const std::int64_t length : {12, 10}) {
    const Sequences sequences = halves({length, 3});
    const std::int64_t rows = sequences.tokens();
    const auto attend = [&](Context& ctx, const std::vector<Var>& in) {
      return std::vector{block_diffusion_attention(ctx, in[0], in[1], in[2], {4, 2, 3}, 4, sequences)};
    };
    CHECK_GRADIENTS(attend,
                    {random_tensor({rows, 12}, DType::f64, 1), random_tensor({rows, 6}, DType::f64, 2),
                     random_tensor({rows, 6}, DType::f64, 3)});
  }
}

TEST_CASE("block diffusion: a text has the same bits alone and packed; rows without tokens are clean ones") {
  const auto run = [](const Sequences& sequences, std::int64_t first, std::int64_t rows) {
    const Tensor q = random_tensor({60, 12}, DType::f32, 1).narrow(0, first, rows),
                 k = random_tensor({60, 6}, DType::f32, 2).narrow(0, first, rows),
                 v = random_tensor({60, 6}, DType::f32, 3).narrow(0, first, rows);
    Context ctx;
    return block_diffusion_attention(ctx, Var(q), Var(k), Var(v), {4, 2, 3}, 4, sequences).value();
  };
  const Tensor packed = run(halves({10, 13, 7}), 0, 60);
  CHECK_BITS(packed.narrow(0, 20, 26), run(halves({13}), 20, 26));
  const Sequences roomy = halves({10}).with_capacity(33, 4);
  const Tensor with_room = run(roomy, 0, 33);
  CHECK_BITS(with_room.narrow(0, 0, 20), packed.narrow(0, 0, 20));
  Context ctx;
  const auto rows = [](std::int64_t columns, std::uint64_t seed) {
    return Var(random_tensor({60, columns}, DType::f32, seed).narrow(0, 20, 13));
  };
  const Sequences spare = Sequences::uniform(1, 13);
  CHECK(relative_error(with_room.narrow(0, 20, 13),
                       attention(ctx, rows(12, 1), rows(6, 2), rows(6, 3), {4, 2, 3}, spare, spare).value()) <
        1e-6);
}

TEST_CASE("block diffusion: what does not fit is refused") {
  const auto fault = [](const AttentionOptions& options, std::int64_t block, const Sequences& sequences) {
    return message_of([&] {
      Context ctx;
      const Var q(random_tensor({sequences.tokens(), 12}, DType::f32, 1)),
          k(random_tensor({sequences.tokens(), 6}, DType::f32, 2));
      block_diffusion_attention(ctx, q, k, k, options, block, sequences);
    });
  };
  AttentionOptions options{4, 2, 3};
  CHECK(fault(options, 0, halves({4})) == "block diffusion: block: want at least 1, got 0");
  CHECK(fault(options, 4, Sequences::of_lengths(std::vector<std::int64_t>{4, 3})) ==
        "block diffusion: want halves of one length, got 4 noised and 3 clean rows");
  options.window = 3;
  CHECK(fault(options, 4, halves({4})) ==
        "block diffusion: want causal attention without a window, slopes and a query_block");
  options.window = 0;
  options.query_block = 0;
  CHECK(message_of([&] {
          Context ctx;
          attention_inputs(ctx, random_tensor({4, 12}, DType::f32, 1), random_tensor({4, 6}, DType::f32, 1),
                           random_tensor({4, 6}, DType::f32, 1), options);
        }) == "attention: query_block: want at least 1, got 0");
}
