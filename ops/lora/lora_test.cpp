#include "ops/lora/lora.h"

#include <doctest/doctest.h>

#include <limits>

#include "core/allocator.h"
#include "core/host_wait.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora_products.h"
#include "ops/lora/test_reference.h"
#include "ops/view/view.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Tensor f64(const Shape& shape, std::uint64_t seed) { return random_tensor(shape, DType::f64, seed); }

/// Numbers of rows of a later step, which do not fit into 32 bits.
Tensor row_numbers(std::int64_t rows, Device device = Device::cpu) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t t = 0; t < rows; ++t) numbers.push_back((std::int64_t{5} << 32) + 7 * t);
  return Tensor::from(numbers, {rows}).to(device);
}

const RandomStream stream(11, "layers.3.mixer.up_proj");

LoraDropout dropout_of(DropoutPosition position, std::int64_t rows, Device device = Device::cpu,
                       double probability = 0.375) {
  return {.probability = probability,
          .position = position,
          .stream = stream,
          .row_numbers = row_numbers(rows, device)};
}

/// No dropout, that of x and that of the branch.
std::vector<LoraDropout> dropouts(std::int64_t rows, Device device = Device::cpu) {
  return {LoraDropout(), dropout_of(DropoutPosition::pre, rows, device),
          dropout_of(DropoutPosition::post, rows, device)};
}

/// The factors of the elements of a matrix with this dropout, by the definition.
Tensor factors(const LoraDropout& dropout, std::int64_t rows, std::int64_t cols) {
  const RandomTable draws(*dropout.stream);
  const auto of = [](const Tensor& numbers) {
    std::vector<std::uint64_t> values;
    const Tensor on_host = numbers.to(Device::cpu);
    for (std::int64_t i = 0; i < on_host.numel(); ++i)
      values.push_back(static_cast<std::uint64_t>(on_host.data<std::int64_t>()[i]));
    return values;
  };
  const auto row = of(dropout.row_numbers);
  const auto column = dropout.column_numbers ? of(dropout.column_numbers) : std::vector<std::uint64_t>();
  const Tensor t = Tensor::empty({rows, cols}, DType::f64, Device::cpu);
  for (std::size_t r = 0; r < row.size(); ++r)
    for (std::size_t c = 0; c < static_cast<std::size_t>(cols); ++c)
      t.row<double>(static_cast<std::int64_t>(r))[c] =
          draws.bits(row[r], column.empty() ? c : column[c]) < dropout.probability * 0x1p32
              ? 0
              : 1 / (1 - dropout.probability);
  return t;
}

Var intermediate(const Tensor& t) {
  return {t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false)};
}

/// linear() with a branch, of {x, weight, a, b}.
DiffFn adapted(const LoraDropout& dropout) {
  return [dropout](Context& ctx, const std::vector<Var>& v) {
    return std::vector<Var>{add_lora(ctx, linear(ctx, v[0], v[1]), v[0], {v[2], v[3], 1.75, dropout})};
  };
}

std::vector<Tensor> operands(std::int64_t rows, std::int64_t in, std::int64_t rank, std::int64_t out) {
  return {f64({rows, in}, 1), f64({out, in}, 2), f64({rank, in}, 3), f64({out, rank}, 4)};
}

}  // namespace

TEST_CASE("lora: against finite differences") {
  for (const LoraDropout& dropout : dropouts(5)) {
    CHECK_GRADIENTS(adapted(dropout), operands(5, 3, 2, 4));
    CHECK_GRADIENTS(adapted(dropout), operands(5, 9, 1, 7));
    GradCheckOptions options;
    for (int wanted = 1; wanted < 16; ++wanted) {  // a frozen weight, an x or y without a gradient
      CAPTURE(wanted);
      options.wants = {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0, (wanted & 8) != 0};
      CHECK_GRADIENTS(adapted(dropout), operands(5, 3, 2, 4), options);
    }
  }
  for (const LoraDropout& dropout : dropouts(6))
    CHECK_GRADIENTS(adapted(dropout), {f64({2, 3, 5}, 1), f64({4, 5}, 2), f64({2, 9}, 3).narrow(-1, 1, 5),
                                       f64({4, 6}, 4).narrow(-1, 3, 2)});
  for (const LoraDropout& dropout : dropouts(1))
    CHECK_GRADIENTS(adapted(dropout), {f64({3}, 1), f64({4, 3}, 2), f64({2, 3}, 3), f64({4, 2}, 4)});
}

TEST_CASE("lora: against finite differences, sizes of 0") {
  for (const auto& [rows, in, rank, out] :
       std::vector<std::array<std::int64_t, 4>>{{0, 3, 2, 4}, {5, 0, 2, 4}, {5, 3, 0, 4}, {5, 3, 2, 0}})
    for (const LoraDropout& dropout : dropouts(rows))
      CHECK_GRADIENTS(adapted(dropout), operands(rows, in, rank, out));
}

TEST_CASE("lora: against finite differences, windows, values used twice, computed matrices, checkpoints") {
  const auto several = [](const LoraDropout& dropout) {
    return DiffFn([dropout](Context& ctx, const std::vector<Var>& v) {
      // As q, k and v of one product, of which v has no branch; x is a window with a gradient in a larger
      // buffer.
      const std::vector<Var> in = split_last(ctx, v[0], std::array<std::int64_t, 2>{2, 3});
      std::vector<Var> parts =
          split_last(ctx, linear(ctx, in[1], v[1]), std::array<std::int64_t, 3>{4, 4, 1});
      parts[0] = add_lora(ctx, parts[0], in[1], {v[2], v[3], 0.5, dropout});
      parts[1] = add_lora(ctx, parts[1], in[1], {v[2], v[3], -2, dropout});
      parts.push_back(in[0]);
      return parts;
    });
  };
  const DiffFn computed = [](Context& ctx, const std::vector<Var>& v) {
    const Var a = linear(ctx, v[2], v[4]), b = linear(ctx, v[3], v[4]);
    return std::vector<Var>{
        add_lora(ctx, linear(ctx, v[0], v[1]), v[0], {a, b, 1.5, dropout_of(DropoutPosition::post, 5)})};
  };
  CHECK_GRADIENTS(computed, {f64({5, 2}, 1), f64({4, 2}, 2), f64({2, 3}, 3), f64({4, 3}, 4), f64({2, 3}, 5)});
  for (const LoraDropout& dropout : dropouts(5)) {
    CHECK_GRADIENTS(several(dropout), {f64({5, 5}, 1), f64({9, 3}, 2), f64({2, 3}, 3), f64({4, 2}, 4)});
    const DiffFn replayed = [&](Context& ctx, const std::vector<Var>& v) {
      const Recomputed block = [&](Context& inner, const Var& x) {
        return add_lora(inner, linear(inner, x, v[1]), x, {v[2], v[3], 0.5, dropout});
      };
      return std::vector<Var>{checkpoint(ctx, "block", block, v[0])};
    };
    CHECK_GRADIENTS(replayed, operands(5, 3, 2, 4));
  }
}

TEST_CASE("lora: f32 and bf16 against f64" * doctest::test_suite("cuda")) {
  const std::vector<std::array<std::int64_t, 4>> sizes{
      {37, 67, 5, 41}, {70, 24, 8, 32}, {1, 1, 1, 1}, {0, 3, 2, 4}, {3, 0, 2, 4}, {3, 4, 0, 4}, {3, 4, 2, 0}};
  for_dtypes(test_devices("lora"), [&](Device device, DType dtype) {
    for (const auto& [rows, in, rank, out] : sizes)
      for (const LoraDropout& dropout : dropouts(rows, device)) {
        CAPTURE(rows);
        CAPTURE(in);
        CAPTURE(out);
        const bool has = dropout.probability > 0, pre = dropout.position == DropoutPosition::pre;
        CAPTURE(has);
        CAPTURE(pre);
        LoraOperands o{.y = random_tensor({rows, out}, dtype, 1),
                       .x = random_tensor({rows, in}, dtype, 2),
                       .a = random_tensor({rank, in}, dtype, 3),
                       .b = random_tensor({out, rank}, dtype, 4),
                       .g = random_tensor({rows, out}, dtype, 5),
                       .scale = 1.3,
                       .kept_x = has && pre ? factors(dropout, rows, in) : Tensor(),
                       .kept_y = has && !pre ? factors(dropout, rows, out) : Tensor()};
        const LoraResult want = lora_reference(o), magnitude = lora_magnitudes(o);
        const auto strided = [&](const Tensor& t) {  // a window of a wider tensor, at an odd place
          const Tensor wide = Tensor::zeros({t.rows(), t.cols() + 5}, dtype, device);
          wide.narrow(-1, 3, t.cols()).copy_from(t.to(device));
          return wide.narrow(-1, 3, t.cols());
        };
        const Var vx = intermediate(strided(o.x)), va = Var::leaf(strided(o.a)), vb = Var::leaf(strided(o.b));
        for (int pass = 1; pass <= 2; ++pass) {  // Into::set, then Into::add
          Tape tape;
          Context ctx{.tape = &tape};
          const Var before = pass == 1 ? intermediate(strided(o.y)) : Var(o.y.to(device).clone());
          reset_host_waits();
          const Var y = add_lora(ctx, before, vx, {va, vb, o.scale, dropout});
          CHECK(y.needs_grad());
          tape.backward(y, o.g.to(device));
          CHECK(host_waits().empty());
          CHECK(y.value().same_storage(before.value()));
          if (before.needs_grad())
            CHECK_BITS(before.node()->take(), o.g);  // as it came, for the product
          else
            CHECK_FALSE(y.node()->filled());
          CHECK_WITHIN(y.value(), want.y, magnitude.y, lora_roundings(dtype, in + rank));
          const Tensor dx = vx.node()->take();
          CHECK(dx.dtype() == dtype);
          CHECK_WITHIN(dx, want.dx, magnitude.dx, lora_roundings(dtype, out + rank));
          const auto check_sum = [&](const Var& leaf, const Tensor& sum, const Tensor& bound,
                                     std::int64_t terms) {
            CHECK(leaf.grad().dtype() == accumulate_dtype(dtype));
            auto values = sum.to_vector(), bounds = bound.to_vector();
            for (double& v : values) v *= pass;
            for (double& v : bounds) v *= pass;
            CHECK_WITHIN(leaf.grad(), Tensor::from(values, sum.shape()), Tensor::from(bounds, sum.shape()),
                         lora_roundings(dtype, terms));
          };
          check_sum(va, want.da, magnitude.da, out + 2 * rows);
          check_sum(vb, want.db, magnitude.db, in + 2 * rows);
        }
      }
  });
}

TEST_CASE("lora: adapters of f32 for x of bf16 count as rounded, and keep gradients of f32" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("lora")) {
    const Tensor x = random_tensor({9, 16}, DType::bf16, 1).to(device),
                 y = random_tensor({9, 8}, DType::bf16, 2).to(device),
                 a = random_tensor({4, 16}, DType::f32, 3).to(device),
                 b = random_tensor({8, 4}, DType::f32, 4).to(device);
    const auto run = [&](const Var& va, const Var& vb) {
      Tape tape;
      Context ctx{.tape = &tape};
      const Var vx = intermediate(x), result = add_lora(ctx, y.clone(), vx, {va, vb, 0.7});
      tape.backward(result, random_tensor({9, 8}, DType::bf16, 5).to(device));
      return std::vector<Tensor>{result.value(), vx.node()->take(), va.node()->grad(), vb.node()->grad()};
    };
    const auto want = run(Var::leaf(a.to(DType::bf16)), Var::leaf(b.to(DType::bf16)));
    const auto leaves = run(Var::leaf(a), Var::leaf(b)), others = run(intermediate(a), intermediate(b));
    for (std::size_t i = 0; i < want.size(); ++i) {
      CHECK_BITS(leaves[i], want[i]);
      CHECK_BITS(others[i], want[i]);
    }
    CHECK(want[2].dtype() == DType::f32);
  }
}

TEST_CASE("lora: the product's own gradients do not change") {
  const Tensor x = random_tensor({6, 5}, DType::f32, 1), weight = random_tensor({4, 5}, DType::f32, 2),
               bias = random_tensor({4}, DType::f32, 3), g = random_tensor({6, 4}, DType::f32, 4);
  const auto run = [&](bool branch) {
    Tape tape;
    Context ctx{.tape = &tape};
    const Var vw = Var::leaf(weight), vb = Var::leaf(bias);
    Var y = linear(ctx, x, vw, vb);
    if (branch) {
      const Var with = add_lora(ctx, y, x,
                                {Var::leaf(random_tensor({2, 5}, DType::f32, 5)),
                                 Var::leaf(random_tensor({4, 2}, DType::f32, 6)), 1});
      CHECK(with.node() == y.node());
      y = with;
    }
    tape.backward(y, g);
    return std::pair(vw.grad(), vb.grad());
  };
  const auto alone = run(false), adapted_too = run(true);
  CHECK_BITS(adapted_too.first, alone.first);
  CHECK_BITS(adapted_too.second, alone.second);
}

TEST_CASE("lora: nothing is recorded for frozen operands, or without a tape") {
  Tape tape;
  Context ctx{.tape = &tape}, silent;
  const auto zeros = [](const Shape& shape) { return Tensor::zeros(shape, DType::f32, Device::cpu); };
  const Var y = intermediate(zeros({3, 4}));
  CHECK(add_lora(ctx, y, zeros({3, 5}), {zeros({2, 5}), zeros({4, 2}), 1}).node() == y.node());
  CHECK_FALSE(add_lora(ctx, zeros({3, 4}), zeros({3, 5}), {zeros({2, 5}), zeros({4, 2}), 1}).needs_grad());
  CHECK_FALSE(add_lora(silent, zeros({3, 4}), zeros({3, 5}), {Var::leaf(zeros({2, 5})), zeros({4, 2}), 1})
                  .needs_grad());
  CHECK(tape.size() == 0);
}

TEST_CASE("lora: dx is set at once, dA and dB when weight work is due" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("lora"))
    for (const LoraDropout& dropout : dropouts(20, device)) {
      const Tensor x = random_tensor({20, 8}, DType::bf16, 1).to(device),
                   y = random_tensor({20, 16}, DType::bf16, 2).to(device),
                   g = random_tensor({20, 16}, DType::bf16, 3).to(device);
      const auto run = [&](bool deferred) {
        Tape tape;
        if (deferred) tape.defer_weight_work();
        Context ctx{.tape = &tape};
        const Var vx = intermediate(x), va = Var::leaf(random_tensor({4, 8}, DType::bf16, 4).to(device)),
                  vb = Var::leaf(random_tensor({16, 4}, DType::bf16, 5).to(device));
        // Twice: the second contribution to dx is added to a tensor that the first one has left.
        Var result = add_lora(ctx, y.clone(), vx, {va, vb, 2, dropout});
        result = add_lora(ctx, result, vx, {va, vb, 0.3, dropout});
        tape.backward(result, g);
        CHECK(vx.node()->filled());
        CHECK(va.node()->filled() != deferred);
        CHECK(vb.node()->filled() != deferred);
        tape.run_weight_work();
        return std::vector<Tensor>{vx.node()->take(), va.grad(), vb.grad()};
      };
      const auto at_once = run(false), later = run(true);
      for (std::size_t i = 0; i < 3; ++i) CHECK_BITS(later[i], at_once[i]);
    }
}

TEST_CASE("lora: dx has the same bits whether the gradient before it is shared or not" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("lora"))
    for (const LoraDropout& dropout : dropouts(20, device)) {
      const Tensor x = random_tensor({20, 24}, DType::bf16, 1).to(device),
                   a = random_tensor({4, 24}, DType::bf16, 2).to(device),
                   b = random_tensor({16, 4}, DType::bf16, 3).to(device),
                   g = random_tensor({20, 16}, DType::bf16, 4).to(device);
      const auto run = [&](bool shared) {
        Tape tape;
        Context ctx{.tape = &tape};
        const Var vx = intermediate(x);
        Tensor first = random_tensor({20, 24}, DType::bf16, 5).to(device).clone();
        vx.node()->add(first);
        if (!shared) first = {};
        tape.backward(add_lora(ctx, Tensor::zeros({20, 16}, DType::bf16, device), vx, {a, b, 2, dropout}), g);
        return vx.node()->take();
      };
      CHECK_BITS(run(true), run(false));
    }
}

TEST_CASE("lora: the branch in chunks of the memory that the contract names") {
  const std::int64_t rows = 1150, in = 8200, out = 8200, rank = 2;
  const Tensor x = random_tensor({rows, in}, DType::f32, 1), g = random_tensor({rows, out}, DType::f32, 2);
  const Var va = Var::leaf(random_tensor({rank, in}, DType::f32, 3)),
            vb = Var::leaf(random_tensor({out, rank}, DType::f32, 4));
  va.node()->into();
  vb.node()->into();
  // small: what oneDNN works with; 2.5 MB with release 3.7.
  const std::int64_t chunk = 4 << 22, whole = x.bytes(), small = 3 << 20;
  REQUIRE(whole > 2 * chunk + small);
  for (const LoraDropout& dropout : dropouts(rows)) {
    const bool has = dropout.probability > 0;
    CAPTURE(has);
    const Var vx = intermediate(x);
    const Tensor y = Tensor::zeros({rows, out}, DType::f32, Device::cpu);
    const auto extra = [&](const auto& work) {
      allocator(Device::cpu).reset_peak();
      const std::int64_t before = allocator(Device::cpu).stats().current_bytes;
      work();
      return allocator(Device::cpu).stats().peak_bytes - before;
    };
    Tape tape;
    Context ctx{.tape = &tape};
    Var result;
    CHECK(extra([&] { result = add_lora(ctx, y, vx, {va, vb, 1, dropout}); }) <= (has ? chunk : 0) + small);
    CHECK(extra([&] { tape.backward(result, g); }) <= whole + (has ? chunk : 0) + small);  // whole: dx
    if (!has) continue;
    // Rows of three chunks.
    for (const auto& [first, count] : {std::pair(0, 3), std::pair(506, 4), std::pair(1098, 2)}) {
      LoraDropout own = dropout;
      own.row_numbers = dropout.row_numbers.narrow(0, first, count);
      const bool pre = dropout.position == DropoutPosition::pre;
      const LoraOperands o{.y = Tensor::zeros({count, out}, DType::f32, Device::cpu),
                           .x = x.narrow(0, first, count),
                           .a = va.value(),
                           .b = vb.value(),
                           .g = g.narrow(0, first, count),
                           .kept_x = pre ? factors(own, count, in) : Tensor(),
                           .kept_y = pre ? Tensor() : factors(own, count, out)};
      const LoraResult want = lora_reference(o), magnitude = lora_magnitudes(o);
      CHECK_WITHIN(y.narrow(0, first, count), want.y, magnitude.y, lora_roundings(DType::f32, in + rank));
      CHECK_WITHIN(vx.node()->grad().narrow(0, first, count), want.dx, magnitude.dx,
                   lora_roundings(DType::f32, out + rank));
    }
  }
}

TEST_CASE("lora: products in chunks of any length" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("lora"), [](Device device, DType dtype) {
    const std::int64_t rows = 23, wide_cols = 40, rank = 8;
    const LoraDropout dropout = dropout_of(DropoutPosition::pre, rows, device);
    const KeptElements kept{.factor = 1 / (1 - dropout.probability),
                            .draws = RandomTable(stream),
                            .threshold = std::uint32_t{3} << 29,
                            .row_numbers = dropout.row_numbers};
    // y = 0, b unused: u of lora_reference is one narrow product, dx one wide product, dA one product of a
    // weight.
    LoraOperands o{.y = Tensor::zeros({rows, rank}, DType::f64, Device::cpu),
                   .x = random_tensor({rows, wide_cols}, dtype, 1),
                   .a = random_tensor({rank, wide_cols}, dtype, 2),
                   .b = Tensor::zeros({rank, rank}, DType::f64, Device::cpu),
                   .g = random_tensor({rows, rank}, dtype, 3),
                   .kept_x = factors(dropout, rows, wide_cols)};
    for (std::int64_t i = 0; i < rank; ++i) o.b.row<double>(i)[i] = 1;  // then y = u and w = g
    const LoraResult want = lora_reference(o), magnitude = lora_magnitudes(o);
    const Tensor x = o.x.to(device), a = o.a.to(device), w = o.g.to(device);
    for (const std::int64_t at_once : {1, 5, 22, 23, 64}) {
      CAPTURE(at_once);
      CHECK_WITHIN(narrow_product(x, a, true, 1, kept, at_once), want.y, magnitude.y,
                   lora_roundings(dtype, wide_cols));
      const Tensor dx = Tensor::empty({rows, wide_cols}, dtype, device);
      wide_product({dx, Into::set}, w, a, false, kept, at_once);
      CHECK_WITHIN(dx, want.dx, magnitude.dx, lora_roundings(dtype, rank));
      const Tensor da = Tensor::empty({rank, wide_cols}, accumulate_dtype(dtype), device),
                   turned = Tensor::empty({wide_cols, rank}, accumulate_dtype(dtype), device);
      weight_product({da, Into::set}, w, x, false, kept, at_once);
      CHECK_WITHIN(da, want.da, magnitude.da, lora_roundings(dtype, rows));
      weight_product({turned, Into::set}, w, x, true, kept, at_once);
      for (std::int64_t i = 0; i < rank; ++i)
        CHECK_WITHIN(turned.to(Device::cpu).narrow(-1, i, 1).clone().reshape({wide_cols}), want.da.select(i),
                     magnitude.da.select(i), lora_roundings(dtype, rows));
    }
  });
  CHECK(lora_rows_at_once(0) >= 64);
  CHECK(lora_rows_at_once(4096) == 1024);
  CHECK(lora_rows_at_once(2688) == 1536);
  CHECK(lora_rows_at_once(131072) == 64);
}

TEST_CASE("lora: errors") {
  Context ctx;
  const auto zeros = [](const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu) {
    return Tensor::zeros(shape, dtype, device);
  };
  const Tensor x = zeros({3, 5}), y = zeros({3, 4}), a = zeros({2, 5}), b = zeros({4, 2});
  const auto message = [&](const Var& own_y, const Tensor& own_x, const Tensor& own_a, const Tensor& own_b) {
    return message_of([&] { add_lora(ctx, own_y, own_x, {own_a, own_b, 1}); });
  };
  CHECK(message(y, x, a, b) == "no error");
  CHECK(message(y, zeros({}), a, b) == "add_lora: x: want a last dimension, got shape []");
  CHECK(message(y, zeros({3, 5}, DType::i64), a, b) == "add_lora: x: want f32, f64 or bf16, got i64");
  CHECK(message(y, x, {}, b) == "add_lora: a: got no tensor");
  CHECK(message(y, x, zeros({2, 6}), b) == "add_lora: a: want 2 dimensions and 5 columns, got shape [2, 6]");
  CHECK(message(y, x, zeros({1, 2, 5}), b) ==
        "add_lora: a: want 2 dimensions and 5 columns, got shape [1, 2, 5]");
  CHECK(message(y, x, a, zeros({4, 3})) == "add_lora: b: want 2 dimensions and 2 columns, got shape [4, 3]");
  CHECK(message(y, x, a, zeros({4, 2}, DType::bf16)) == "add_lora: b: want f32, got bf16");
  CHECK(message(y, x, zeros({2, 5}, DType::f64), b) == "add_lora: a: want f32, got f64");
  CHECK(message(zeros({3, 4}, DType::f64), zeros({3, 5}, DType::f64), a, b) ==
        "add_lora: a: want f64, got f32");
  CHECK(message(y, x, zeros({2, 5}, DType::f32, Device::guard), b) ==
        "add_lora: a: want a tensor on cpu like x, got one on guard");
  CHECK(message(zeros({3, 5}), x, a, b) == "add_lora: y: want shape [3, 4], got [3, 5]");
  CHECK(message(zeros({3, 4}, DType::bf16), x, a, b) == "add_lora: y: want f32, got bf16");
  CHECK(message(zeros({3, 4}, DType::f32, Device::guard), x, a, b) ==
        "add_lora: y: want a tensor on cpu like x, got one on guard");
  CHECK(message_of<std::logic_error>([&] {
          add_lora(ctx, Var::leaf(y), x, {a, b, 1});
        }) == "internal error: add_lora: y: a leaf, to which nothing can be added in place");
}
