#include <doctest/doctest.h>

#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Communicator* world() { return &test_world().communicator(); }

std::vector<std::pair<std::string, Tensor>> tensors() {
  return {{"a", random_tensor({5, 7}, DType::f32, 1)},
          {"b", random_tensor({3, 400, 1000}, DType::f32, 2)},  // converted in more than one part
          {"c", Tensor::scalar(2.5, DType::f32, Device::cpu)},
          {"d", Tensor::empty({4, 0}, DType::f32, Device::cpu)}};
}

DType stored(const std::string& name) { return name == "b" ? DType::bf16 : DType::f32; }

/// Rank r of n has elements [r count / n, (r + 1) count / n) of each tensor.
std::vector<TensorSource> own_pieces() {
  const std::int64_t rank = test_world().rank(), ranks = test_world().size();
  std::vector<TensorSource> sources;
  for (const auto& [name, value] : tensors()) {
    TensorSource& source = sources.emplace_back(source_of(name, value, stored(name)));
    const std::int64_t count = value.numel(), begin = rank * count / ranks, end = (rank + 1) * count / ranks;
    source.pieces.clear();
    if (begin < end)
      source.pieces.push_back(
          piece_of(value.reshape({-1}).narrow(0, begin, end - begin), stored(name), begin));
  }
  return sources;
}

std::string promise_broken_by(const auto& fn) {
  try {
    fn();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("safetensors of ranks: one file of all pieces is the file of one rank") {
  const SharedDir dir;
  const FileSum sum = write_safetensors(dir / "x", own_pieces(), pytorch_metadata, world());
  CHECK(sum == sum_of_file(dir / "x"));
  if (test_world().rank() > 0) return;
  std::vector<TensorSource> whole;
  for (const auto& [name, value] : tensors()) whole.push_back(source_of(name, value, stored(name)));
  const TestDir alone;
  CHECK(write_safetensors(alone / "x", std::move(whole)) == sum);
  CHECK(slurp(alone / "x") == slurp(dir / "x"));
}

TEST_CASE("safetensors of ranks: where one rank fails all say which, and nothing remains") {
  const SharedDir dir;
  const int last = test_world().size() - 1;
  const bool fails = test_world().rank() == last;
  const auto write = [&](std::vector<TensorSource> sources) {
    write_safetensors(dir / "x", std::move(sources), pytorch_metadata, world());
  };
  std::vector<TensorSource> broken = own_pieces();
  if (fails) broken[1].pieces[0].write = [](const ByteSink&) { fail("the disk is full"); };
  CHECK(message_of([&] { write(broken); }) ==
        (fails ? "the disk is full" : cat("rank ", last, ": the disk is full")));

  // Promises that ranks break together are told by all alike.
  broken = own_pieces();
  if (fails) broken[1].pieces.clear();
  const std::int64_t first_lost = last * std::int64_t{3 * 400 * 1000} / (last + 1);
  CHECK(promise_broken_by([&] { write(broken); }) == cat("internal error: ", (dir / "x").string(),
                                                         ": tensor 'b': element ", first_lost,
                                                         " is written by no rank"));
  if (last > 0) {
    broken = own_pieces();
    if (fails) broken[0].name = "e";
    CHECK(promise_broken_by([&] { write(broken); }) == cat("internal error: ", (dir / "x").string(),
                                                           ": rank ", last,
                                                           " writes other tensors than rank 0"));
  }
  // A directory that does not exist fails on rank 0 first; the text is the same on all ranks.
  const auto texts = gather_texts(
      world(), message_of([&] { write_safetensors(dir / "no" / "x", own_pieces(), {}, world()); }));
  for (const std::string& text : texts) {
    CHECK(text == texts[0]);
    CHECK(text.find("cannot create") != text.npos);
  }
  world()->host_barrier();
  CHECK(names_in(dir.path()).empty());
}
