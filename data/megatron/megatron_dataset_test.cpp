#include "data/megatron/megatron_dataset.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/loader/loader.h"
#include "data/megatron/test_token_files.h"
#include "data/megatron/weights.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;

namespace {

using testing::spit;
using testing::TestDir;
using testing::write_token_files;
using Ids = std::vector<std::int64_t>;

Ids ids_of(const Sample& sample) {
  check_sample(sample);
  Ids ids = sample.input_ids;
  ids.push_back(sample.labels.back());
  CHECK(Ids(ids.begin() + 1, ids.end()) == sample.labels);
  return ids;
}

TEST_CASE("megatron: samples are those of AutoModel's MegatronPretraining") {
  // tools/goldens/make_megatron.py
  const Json golden = read_json_file(testing::source_path("tests/goldens/datasets/megatron.json"));
  const TestDir dir;
  std::int64_t file = 0;
  for (const auto& [name, lengths] : golden["files"].items())
    write_token_files(dir / name, lengths.get<Ids>(), 1000 * file++);
  std::string hex;
  for (const char c : testing::slurp(dir / "a.idx"))
    for (const int digit : {(c >> 4) & 15, c & 15}) hex += "0123456789abcdef"[digit];
  CHECK(hex == golden["a.idx"].get<std::string>());

  REQUIRE(golden["cases"].size() >= 10);
  for (const Json& one : golden["cases"]) {
    CAPTURE(one["paths"].dump());
    MegatronOptions options;
    const Json paths = one["paths"].is_string() ? Json::array({one["paths"]}) : one["paths"];
    for (const Json& path : paths) {
      const std::string text = path;
      options.paths.push_back(text[0] >= '0' && text[0] <= '9' ? text : (dir / text).string());
    }
    const std::string split = one.value("splits_to_build", "train");
    options.split = split == "train"        ? MegatronSplit::train
                    : split == "validation" ? MegatronSplit::validation
                                            : MegatronSplit::test;
    options.shares = one["split"];
    options.seq_length = one["seq_length"];
    if (one.contains("samples")) options.samples = one["samples"].get<std::int64_t>();
    options.seed = one.value("seed", 1234U);
    const auto data = make_megatron_dataset(options);
    REQUIRE(data->size() == static_cast<std::int64_t>(one["rows"].size()));
    for (std::int64_t i = 0; i < data->size(); ++i) {
      CHECK(ids_of(data->sample(i)) == one["rows"][static_cast<std::size_t>(i)].get<Ids>());
      CHECK(data->content_length(i) == options.seq_length);
    }
  }
}

TEST_CASE("megatron: a loader goes on with the rows that were next") {
  const TestDir dir;
  write_token_files(dir / "a", {5, 3, 7, 2, 6});
  write_token_files(dir / "b", {30, 20}, 1000);
  MegatronOptions options;
  options.paths = {"2", (dir / "a").string(), "1", (dir / "b.bin").string()};
  options.shares = "1";
  options.seq_length = 4;
  options.samples = 24;
  LoaderOptions batches;
  batches.batch_size = 3;
  Loader whole(make_megatron_dataset(options), batches);
  for (int i = 0; i < 4; ++i) whole.next();
  Loader resumed(make_megatron_dataset(options), batches);
  resumed.restore(whole.state());
  while (!whole.epoch_done())
    CHECK(resumed.next().input_ids.to_vector() == whole.next().input_ids.to_vector());
  CHECK(resumed.epoch_done());
}

TEST_CASE("megatron: a JSON file, with a list for each split or one for all") {
  const TestDir dir;
  write_token_files(dir / "a", {9, 9});
  write_token_files(dir / "b", {9, 9}, 1000);
  const std::string a = (dir / "a").string(), b = (dir / "b").string();
  spit(dir / "splits.json", dump_json({{"train", a}, {"valid", {b}}}));
  spit(dir / "all.json", dump_json({1, a, 3, b}));
  MegatronOptions options;
  options.paths = {(dir / "splits.json").string()};
  options.seq_length = 17;
  CHECK(make_megatron_dataset(options)->sample(0).input_ids[0] % 1000 < 60);
  options.split = MegatronSplit::validation;
  CHECK(make_megatron_dataset(options)->sample(0).input_ids[0] >= 1000);
  options.split = MegatronSplit::test;
  CHECK_THROWS_WITH_AS(make_megatron_dataset(options), doctest::Contains("has no list for the split test"),
                       Error);
  const NamedBlend all = read_blend({(dir / "all.json").string()}, MegatronSplit::test);
  CHECK(all.blend.prefixes == std::vector<std::string>{a, b});
  CHECK(all.blend.weights == std::vector<double>{0.25, 0.75});
  CHECK(read_blend({(dir / "*.idx").string()}, MegatronSplit::train).blend.prefixes ==
        std::vector<std::string>{a, b});
  // Other files beside them are no token files.
  CHECK(read_blend({(dir / "*").string()}, MegatronSplit::train).blend.prefixes ==
        std::vector<std::string>{a, b});
  CHECK_THROWS_WITH_AS(read_blend({(dir / "*.jso?").string()}, MegatronSplit::train),
                       doctest::Contains("got no name of this pattern that ends in .bin or .idx"), Error);
}

TEST_CASE("megatron: weights are added up as numpy does") {
  // numpy.sum(numpy.array([1 / (k + 3) for k in range(n)])).hex(), numpy 2.4; those above 7 differ from a
  // plain sum.
  const std::map<std::size_t, double> sums{{0, 0.0},
                                           {5, 0x1.17c57c57c57c5p+0},
                                           {7, 0x1.5437437437437p+0},
                                           {8, 0x1.6dd0dd0dd0dd0p+0},
                                           {10, 0x1.9a6c03d783499p+0},
                                           {16, 0x1.febf672bd6ad0p+0},
                                           {100, 0x1.da81ad52b9b72p+1},
                                           {128, 0x1.f96b70e38f84dp+1},
                                           {129, 0x1.fa65941081d6fp+1},
                                           {130, 0x1.fb5dd22005b7ep+1},
                                           {300, 0x1.3283d93b7feebp+2}};
  for (const auto& [n, sum] : sums) {
    CAPTURE(n);
    std::vector<double> numbers;
    for (std::size_t k = 0; k < n; ++k) numbers.push_back(1 / static_cast<double>(k + 3));
    CHECK(numpy_sum(numbers) == sum);
  }
  const TestDir dir;
  MegatronOptions options{.shares = "1", .seq_length = 2, .samples = 1000};
  for (int i = 0; i < 10; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    write_token_files(dir / name, {45}, 1000 * i);
    options.paths.insert(options.paths.end(), {"0.1", (dir / name).string()});
  }
  const auto data = make_megatron_dataset(options);
  CHECK(data->size() == 1000);
  std::map<std::int64_t, int> taken;
  for (std::int64_t i = 0; i < data->size(); ++i) ++taken[data->sample(i).input_ids[0] / 1000];
  for (const auto& [file, samples] : taken) CHECK(samples == 100);
  CHECK(taken.size() == 10);
}

TEST_CASE("megatron: numbers of samples that no run can take are refused") {
  const TestDir dir;
  write_token_files(dir / "a", {5, 3});
  MegatronOptions options{.paths = {(dir / "a").string()}, .shares = "1", .seq_length = 2};
  for (const std::int64_t wanted : {std::int64_t{1'000'000'000'000'000'000}, std::int64_t{0}}) {
    options.samples = wanted;
    CHECK_THROWS_WITH_AS(make_megatron_dataset(options),
                         cat("number of samples: want 1 to 1099511627776, got ", wanted).c_str(), Error);
  }
  const GptRange range{.last = 2, .seq_length = 4, .samples = std::int64_t{1} << 61};
  CHECK_THROWS_WITH_AS(gpt_index(IndexedTokens((dir / "a").string()), range),
                       doctest::Contains("samples of 4 tokens: want at most 1152921504606846976 samples"),
                       Error);
}

TEST_CASE("megatron: an index that memory cannot hold is refused before any of it is filled") {
  const TestDir dir;
  write_token_files(dir / "a", {3, 4, 5});
  write_token_files(dir / "many", std::vector<std::int64_t>(3000, 1));
  const auto complaint = [&](std::vector<std::string> paths, std::int64_t samples) {
    return testing::message_of([&] {
      make_megatron_dataset({.paths = std::move(paths), .shares = "1", .seq_length = 8, .samples = samples});
    });
  };
  const std::string a = (dir / "a").string(), many = (dir / "many").string();
  const std::int64_t most = MegatronOptions::max_samples;
  CHECK(complaint({a}, most).starts_with(a + ": the index of the samples takes 3"));
  CHECK(complaint({a}, most).find("want fewer samples: num_train_samples and the like, or max_steps") !=
        std::string::npos);
  CHECK(complaint({many}, most).find("the index of the samples takes ") != std::string::npos);
  CHECK(complaint({"1", a, "1e-9", many}, most).find("the index of the samples takes ") != std::string::npos);
}

TEST_CASE("megatron: what cannot be is refused") {
  const TestDir dir;
  write_token_files(dir / "a", {5, 3});
  const auto says = [&](const std::vector<std::string>& paths, const std::string& shares,
                        std::int64_t seq_length) -> std::string {
    MegatronOptions options;
    options.paths = paths;
    options.shares = shares;
    options.seq_length = seq_length;
    options.id_limit = 52;
    try {
      const auto data = make_megatron_dataset(options);
      for (std::int64_t i = 0; i < data->size(); ++i) data->sample(i);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const std::string a = (dir / "a").string();
  contains(says({a}, "1", 8), "8 tokens in sequences 0 to 2 give no sample of 8 + 1 tokens");
  contains(says({a}, "0,1", 2), "the part train of 2 sequences is empty");
  contains(says({a}, "x", 2), "want the shares of train, validation and test");
  contains(says({a}, "1,2,3,4", 2), "want up to three numbers");
  contains(says({a}, "1", 7), "sequence 1 holds id 52 at position 2; want ids from 0 to below 52");
  contains(says({"1", a, "2", a}, "1", 2), "paths with weights want a number of samples");
  contains(says({"1", a, a, a}, "1", 2), "want weights and prefixes by turns");
  contains(says({"0", a, "1", a}, "1", 2), "want weights above 0, got 0");
  contains(says({a + "?.idx"}, "1", 2), "no file has a name of this pattern");
  contains(says({"1e308", a, "1e308", a}, "1", 2),
           "paths: want weights with a finite sum above 0, got 1e+308, 1e+308 with the sum inf");
  contains(says({a}, "1e308,1e308", 2), "split '1e308,1e308': want weights with a finite sum above 0");
  spit(dir / "both.json", dump_json({{"valid", a}, {"validation", a}}));
  CHECK_THROWS_WITH_AS(
      read_blend({(dir / "both.json").string()}, MegatronSplit::validation),
      doctest::Contains("want one list for the split validation, got 'valid' and 'validation'"), Error);
}

TEST_CASE("megatron: an index that is damaged is refused") {
  const TestDir dir;
  write_token_files<std::uint16_t>(dir / "a", {5, 3}, 65530 - 50, 8);
  const std::string prefix = (dir / "a").string(), good = testing::slurp(dir / "a.idx");
  Ids ids;
  IndexedTokens(prefix).read(1, 1, 2, 1 << 20, ids);
  CHECK(ids == Ids{65531, 65532});
  const auto says = [&](const std::string& text) -> std::string {
    spit(dir / "a.idx", text);
    try {
      const IndexedTokens tokens(prefix);
    } catch (const Error& error) {
      return std::string(error.what()).substr((dir / "a.idx").string().size());
    }
    return "";
  };
  const auto with = [&](std::size_t at, char byte) {
    std::string text = good;
    text[at] = byte;
    return says(text);
  };
  CHECK(says(good) == "");
  CHECK(says("short").starts_with(": want an index of Megatron's with 34 bytes or more"));
  CHECK(with(0, 'X').starts_with(": want an index of Megatron's, which begins with MMIDIDX"));
  CHECK(with(9, 2) == ": want version 1, got 2");
  CHECK(with(17, 6).starts_with(": want ids of an integer type"));
  CHECK(with(18, 3).starts_with(": 3 sequences and 3 document indices do not make a file of"));
  CHECK(with(25, 127).find("do not make a file of") != std::string::npos);
  CHECK(says(good.substr(0, good.size() - 1)).find("do not make a file of") != std::string::npos);
  CHECK(with(38, 4).starts_with(": sequence 1 has 4 ids of 2 bytes from byte 10 on, and "));
  CHECK(with(37, -1).starts_with(": sequence 0 has -"));
  CHECK(with(50, 16).starts_with(": sequence 1 has 3 ids of 2 bytes from byte 16 on, and "));
  CHECK(with(58, 1).starts_with(": document index 0 is 1; want numbers from 0 to 2"));
  CHECK(with(66, 3).starts_with(": document index 1 is 3; "));
  CHECK(with(74, 1) == ": the document indices end at 1; want 2, the number of sequences");
}

TEST_CASE("megatron: the example of Megatron's index, and of its blend") {
  const TestDir dir;
  write_token_files(dir / "a", {5, 3, 7, 2, 6});
  const GptIndex index = gpt_index(IndexedTokens((dir / "a").string()),
                                   {.first = 0, .last = 5, .seq_length = 4, .samples = {}, .seed = 1234});
  CHECK(index.documents == std::vector<std::int32_t>{4, 0, 1, 2, 3});
  std::vector<std::pair<std::int64_t, std::int64_t>> places;
  for (const GptIndex::SampleStart& place : index.samples) places.emplace_back(place.document, place.offset);
  CHECK(places ==
        std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {0, 4}, {1, 2}, {2, 1}, {3, 2}, {3, 6}});
  CHECK(index.shuffle == Ids{3, 2, 1, 0, 4});
  Ids parts;
  for (const BlendSample& place : blend_samples(std::vector{0.7, 0.3}, 10)) parts.push_back(place.part);
  CHECK(parts == Ids{0, 1, 0, 0, 1, 0, 0, 1, 0, 0});
}

}  // namespace
