#include <doctest/doctest.h>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Tensor prefill_logits(Stack& model, const TestBatch& b) { return model.logits(hidden_of(model, b)); }

// Feeds rows [from, to) of every sequence (clipped to its length) to the state; writes their logits where
// they belong in `logits` [tokens, vocabulary].
void feed(Stack& model, const TestBatch& b, DecodeState& state, std::int64_t from, std::int64_t to,
          const Tensor& logits) {
  std::vector<std::int64_t> lengths, starts;
  std::vector<std::int64_t> ids, rows;
  for (std::int64_t i = 0; i < b.sequences.count(); ++i) {
    for (std::int64_t t = from; t < std::min(to, b.sequences.length(i)); ++t) {
      rows.push_back(b.sequences.begin(i) + t);
      ids.push_back(b.ids.data<std::int64_t>()[rows.back()]);
    }
    lengths.push_back(std::max<std::int64_t>(0, std::min(to, b.sequences.length(i)) - from));
    starts.push_back(from);
  }
  Context ctx;
  const auto count = static_cast<std::int64_t>(ids.size());
  const Tensor out = model.logits(
      model.hidden(ctx, Tensor::from(ids, {count}), Sequences::of_lengths(lengths, starts), &state).value());
  for (std::int64_t r = 0; r < count; ++r)
    logits.narrow(0, rows[static_cast<std::size_t>(r)], 1).copy_from(out.narrow(0, r, 1));
}

Tensor decoded_logits(Stack& model, const TestBatch& b, const std::vector<std::int64_t>& cuts) {
  const Tensor logits =
      Tensor::zeros({b.ids.numel(), model.config().vocab_size}, accumulate_dtype(model.dtype()), Device::cpu);
  DecodeState state = model.make_state(b.sequences.count());
  std::int64_t from = 0;
  for (const std::int64_t to : cuts) {
    feed(model, b, state, from, to, logits);
    from = to;
  }
  return logits;
}

std::vector<std::int64_t> one_by_one(std::int64_t n) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t i = 1; i <= n; ++i) cuts.push_back(i);
  return cuts;
}

// The bound for the same sums in another order, through a model of a few blocks.
Tol tolerance(DType dtype) { return dtype == DType::f64 ? Tol{1e-12, 1e-12} : Tol{1e-5, 2e-5}; }

}  // namespace

TEST_CASE("decode: token by token gives the logits of a prefill") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const char* pattern : {"M", "*", "-", "E", "ME*-", "M*M*EM"}) {
      CAPTURE(dtype);
      CAPTURE(pattern);
      Stack model(tiny_config(pattern), dtype, Device::cpu);
      randomise(model, 3);
      const TestBatch b = random_batch(model.config(), {19}, 5);
      CHECK_CLOSE(decoded_logits(model, b, one_by_one(19)), prefill_logits(model, b), tolerance(dtype));
    }
}

TEST_CASE("decode: blocks of different sizes, token by token") {
  Stack model(tiny_pruned_config(), DType::f64, Device::cpu);
  randomise(model, 3);
  const TestBatch b = random_batch(model.config(), {19}, 5);
  CHECK_CLOSE(decoded_logits(model, b, one_by_one(19)), prefill_logits(model, b), tolerance(DType::f64));
}

TEST_CASE("decode: a rotary embedding turns cached keys and new queries by their positions") {
  for (const RopeType type : {RopeType::standard, RopeType::llama3, RopeType::yarn}) {
    ModelConfig config = tiny_llama_config();
    config.attention.rope.type = type;
    Stack model(config, DType::f64, Device::cpu);
    randomise(model, 3);
    const TestBatch b = random_batch(model.config(), {19, 7, 0, 1}, 5);
    const Tensor want = prefill_logits(model, b);
    for (const auto& cuts : {one_by_one(19), {5, 6, 19}, {19}})
      CHECK_CLOSE(decoded_logits(model, b, cuts), want, tolerance(DType::f64));
  }
  // A call that does not say where its rows are in their sequences.
  Stack model(tiny_llama_config(), DType::f64, Device::cpu);
  DecodeState state = model.make_state(1);
  const TestBatch b = random_batch(model.config(), {4}, 5);
  Context ctx;
  (void)model.hidden(ctx, b.ids, Sequences::uniform(1, 4), &state);
  CHECK_THROWS_AS((void)model.hidden(ctx, b.ids, Sequences::uniform(1, 4), &state), std::logic_error);
}

TEST_CASE(
    "decode: what Llama's relatives have: norms of heads, windows, scales, slopes, packed weights, "
    "multipliers") {
  for (const ModelConfig& config :
       {tiny_windowed_config(NormKind::rmsnorm), tiny_gemma_config(), tiny_phi_config(),
        tiny_baichuan_config(), tiny_falcon_config(MambaNorm::none, true),
        tiny_falcon_config(MambaNorm::before_gate, false), tiny_gated_experts_config(),
        tiny_delta_net_config(), tiny_gemma4_config()}) {
    Stack model(config, DType::f64, Device::cpu);
    randomise(model, 3);
    const TestBatch b = random_batch(model.config(), {19, 7, 0, 1}, 5);
    const Tensor want = prefill_logits(model, b);
    for (const auto& cuts : {one_by_one(19), {5, 6, 19}, {19}})
      CHECK_CLOSE(decoded_logits(model, b, cuts), want, tolerance(DType::f64));
  }
}

TEST_CASE("decode: prompts of different lengths in one batch, some already at their end") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Stack model(tiny_config("ME*-M*"), dtype, Device::cpu);
    randomise(model, 4);
    const TestBatch b = random_batch(model.config(), {7, 1, 13, 4}, 6);
    const Tensor want = prefill_logits(model, b);
    CHECK_CLOSE(decoded_logits(model, b, one_by_one(13)), want, tolerance(dtype));
    // Prefill of all sequences, then single tokens for the sequences that have not ended.
    CHECK_CLOSE(decoded_logits(model, b, {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}), want, tolerance(dtype));
  }
}

TEST_CASE("decode: prefill in pieces, through the convolution's window and across chunks") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Stack model(tiny_config("M*EM"), dtype, Device::cpu);
    randomise(model, 5);
    const TestBatch b = random_batch(model.config(), {21, 9}, 7);
    const Tensor want = prefill_logits(model, b);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{21}, {1, 21}, {2, 3, 21}, {8, 21}, {10, 15, 21}})
      CHECK_CLOSE(decoded_logits(model, b, cuts), want, tolerance(dtype));
  }
}

TEST_CASE("decode: the caches grow beyond their first room") {
  Stack model(tiny_config("*M"), DType::f64, Device::cpu);
  randomise(model, 6);
  const TestBatch b = random_batch(model.config(), {300}, 8);
  std::vector<std::int64_t> cuts{5};
  for (std::int64_t i = 6; i <= 300; i += 1 + i / 40) cuts.push_back(i);
  cuts.push_back(300);
  CHECK_CLOSE(decoded_logits(model, b, cuts), prefill_logits(model, b), Tol({1e-11, 1e-11}));
}

TEST_CASE("decode: every kernel variant continues from a state") {
  Stack model(tiny_config("M*"), DType::f64, Device::cpu);
  randomise(model, 7);
  const TestBatch b = random_batch(model.config(), {11}, 9);
  const Tensor want = prefill_logits(model, b);
  for (const auto& [op, names] : kernel_variants())
    for (const std::string& name : names) {
      CAPTURE(op);
      CAPTURE(name);
      KernelChoice choice;
      choice.by_op[op] = name;
      Context ctx;
      ctx.kernels = &choice;
      DecodeState state = model.make_state(1);
      (void)model.hidden(ctx, b.ids.narrow(0, 0, 6), Sequences::uniform(1, 6), &state);
      const Var rest = model.hidden(ctx, b.ids.narrow(0, 6, 5).clone(), Sequences::uniform(1, 5), &state);
      CHECK_CLOSE(model.logits(rest.value()), want.narrow(0, 6, 5), tolerance(DType::f64));
    }
}

TEST_CASE("decode: bf16 decoding stays near bf16 prefill") {
  Stack model(tiny_config("M*-M"), DType::bf16, Device::cpu);
  randomise(model, 8);
  const TestBatch b = random_batch(model.config(), {17}, 10);
  // Four blocks round their results to 2^-9. Both computations round as much, but differently.
  CHECK(relative_error(decoded_logits(model, b, one_by_one(17)), prefill_logits(model, b)) < 4 * 0x1p-7);
}
