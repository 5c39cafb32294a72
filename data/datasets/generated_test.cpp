#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "data/datasets/mock.h"
#include "data/datasets/permutation.h"
#include "data/datasets/tokens.h"
#include "data/json/test_dir.h"
#include "data/safetensors/writer.h"

using namespace nemocube;

TEST_CASE("mock data: uniform, shifted, the same every time") {
  const MockDataset data({.vocab_size = 10, .seq_length = 50, .num_samples = 40, .seed = 3});
  const MockDataset again({.vocab_size = 10, .seq_length = 50, .num_samples = 40, .seed = 3});
  const MockDataset other({.vocab_size = 10, .seq_length = 50, .num_samples = 40, .seed = 4});
  CHECK(data.size() == 40);
  std::vector<std::int64_t> seen(10, 0);
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const Sample sample = data.sample(i);
    check_sample(sample);
    REQUIRE(sample.positions() == 50);
    CHECK(sample.content_length() == 50);
    CHECK(sample.input_ids == again.sample(i).input_ids);
    CHECK(sample.input_ids != other.sample(i).input_ids);
    CHECK(std::equal(sample.labels.begin(), sample.labels.end() - 1, sample.input_ids.begin() + 1));
    CHECK(sample.labels.back() == ignored_label);
    for (const std::int64_t id : sample.input_ids) ++seen.at(static_cast<std::size_t>(id));
  }
  for (const std::int64_t count : seen) CHECK(std::abs(count - 200) < 70);  // 5 sigma of a binomial
  CHECK_THROWS_AS(data.sample(40), std::logic_error);
  CHECK_THROWS_AS(MockDataset({.vocab_size = 0, .seq_length = 5, .num_samples = 4}), Error);
  CHECK_THROWS_AS(MockDataset({.vocab_size = 9, .seq_length = 1, .num_samples = 4}), Error);
  CHECK_THROWS_AS(MockDataset({.vocab_size = 9, .seq_length = 5, .num_samples = 0}), Error);
}

TEST_CASE("permutation: every row once") {
  CHECK(permutation(0, 1).empty());
  CHECK(permutation(1, 1) == std::vector<std::int64_t>{0});
  const auto order = permutation(1000, 1);
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 1000);
  CHECK(std::ranges::min(order) == 0);
  CHECK(std::ranges::max(order) == 999);
  CHECK(order == permutation(1000, 1));
  CHECK(order != permutation(1000, 2));
  // The six orders of three rows come equally often: 600 draws, 5 sigma of a binomial.
  std::map<std::vector<std::int64_t>, int> seen;
  for (std::uint64_t seed = 0; seed < 600; ++seed) ++seen[permutation(3, seed)];
  CHECK(seen.size() == 6);
  for (const auto& [ignored, count] : seen) CHECK(std::abs(count - 100) < 46);
}

TEST_CASE("tokens: rows of a file, in order") {
  using Ids = std::vector<std::int64_t>;
  const testing::TestDir dir;
  const Tensor ids = Tensor::from<std::int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor labels = Tensor::from<std::int64_t>({2, 3, -100, -100, 6, -100}, {2, 3});
  write_safetensors(dir / "f.safetensors",
                    {source_of("input_ids", ids, DType::i64), source_of("labels", labels, DType::i64)});
  const TokensDataset data(dir / "f.safetensors");
  CHECK(TokensDataset(dir / "f.safetensors", 1).size() == 1);
  CHECK(TokensDataset(dir / "f.safetensors", 1000).size() == data.size());
  CHECK(data.size() == 2);
  CHECK(data.sample(1).input_ids == Ids{4, 5, 6});
  CHECK(data.sample(1).labels == Ids{-100, 6, -100});
  CHECK(data.sample(1).lengths == Ids{3});
  CHECK(data.sample(1).id == "row 1");

  // The file is written over, and then cut off, while it is open.
  const std::string bytes = testing::slurp(dir / "f.safetensors");
  const auto overwrite = [&](std::int64_t id) {
    std::fstream file(dir / "f.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(bytes.size() - 6 * sizeof id - sizeof id));
    file.write(reinterpret_cast<const char*>(&id), sizeof id);
  };
  overwrite(7);
  CHECK_THROWS_WITH_AS(
      data.sample(1), doctest::Contains("tensor 'input_ids' holds 7 at row 1, position 2; the highest was 6"),
      Error);
  overwrite(6);
  CHECK(data.sample(1).input_ids == Ids{4, 5, 6});
  std::filesystem::resize_file(dir / "f.safetensors", bytes.size() - 8);
  CHECK(data.sample(0).labels == Ids{2, 3, -100});
  CHECK_THROWS_WITH_AS(data.sample(1),
                       cat((dir / "f.safetensors").string(), ": has no bytes from ", bytes.size() - 8,
                           " on; it had ", bytes.size(), " bytes when it was opened")
                           .c_str(),
                       Error);

  write_safetensors(dir / "g.safetensors", {source_of("input_ids", ids, DType::i64)});
  CHECK_THROWS_AS(TokensDataset(dir / "g.safetensors"), Error);
  const auto refused = [&](const Tensor& a, const Tensor& b, const std::string& message) {
    write_safetensors(dir / "F", {source_of("input_ids", a, a.dtype()), source_of("labels", b, b.dtype())});
    CHECK_THROWS_WITH_AS(TokensDataset(dir / "F"), (dir.path().string() + "/" + message).c_str(), Error);
  };
  refused(ids.to(DType::i64), Tensor::zeros({2, 4}, DType::i64, Device::cpu),
          "F: tensor 'labels': want shape [2, 3], got [2, 4]");
  refused(Tensor::zeros({2, 3}, DType::i32, Device::cpu), labels, "F: tensor 'input_ids': want i64, got i32");
  refused(Tensor::zeros({6}, DType::i64, Device::cpu), labels,
          "F: tensor 'input_ids' has shape [6], want [rows, positions], neither 0");
  refused(Tensor::from<std::int64_t>({1, 2, -100, 4, 5, 6}, {2, 3}), labels,
          "F: tensor 'input_ids' holds -100 at row 0, position 2");
  refused(ids, Tensor::from<std::int64_t>({1, 2, 3, 4, -1, 6}, {2, 3}),
          "F: tensor 'labels' holds -1 at row 1, position 1");
  refused(ids, Tensor::from(std::vector<std::int64_t>(6, -100), {2, 3}),
          "F: tensor 'labels' holds no label, only -100");
}
