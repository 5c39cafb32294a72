#include "data/safetensors/writer.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "core/host_wait.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "data/safetensors/reader.h"
#include "tests/support/compare.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
std::vector<TensorSource> worked_example() {
  return {source_of("b", Tensor::from<float>({1, -2}, {1, 2}), DType::bf16),
          source_of("a", Tensor::from<float>({1, -2}, {2}), DType::f32)};
}
}  // namespace

TEST_CASE("safetensors: the worked example, written and read") {
  const TestDir dir;
  write_safetensors(dir / "x.safetensors", worked_example(), {});
  const std::string text = slurp(dir / "x.safetensors");
  REQUIRE(text.size() == 132);
  const std::string head =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}} )";
  CHECK(text.substr(0, 8) == std::string("\x70\0\0\0\0\0\0\0", 8));
  CHECK(text.substr(8, 112) == head);
  CHECK(text.substr(120) == std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f\x00\xc0", 12));
  const SafetensorsFile file(dir / "x.safetensors");
  CHECK_BITS(file.tensor("a"), Tensor::from<float>({1, -2}, {2}));
  CHECK_BITS(file.tensor("b"), Tensor::from<bf16>({bf16(1), bf16(-2)}, {1, 2}));
  CHECK(file.find("c") == nullptr);
  CHECK_THROWS_WITH_AS(file.tensor("c"), doctest::Contains("x.safetensors: no tensor 'c' among its 2"),
                       Error);
}

TEST_CASE("safetensors: every dtype, scalars, empty tensors and strided views survive") {
  const TestDir dir;
  const Tensor wide = random_tensor({5, 8}, DType::f32, 1);
  const std::vector<std::pair<std::string, Tensor>> all{
      {"f32", random_tensor({3, 5}, DType::f32, 2)},
      {"f64", random_tensor({2, 2, 2}, DType::f64, 3)},
      {"bf16", random_tensor({7}, DType::bf16, 4)},
      {"i32", Tensor::from<std::int32_t>({1, -2, 3}, {3})},
      {"i64", Tensor::from<std::int64_t>({1LL << 40}, {1})},
      {"u8", Tensor::from<std::uint8_t>({1, 2, 255}, {3})},
      {"scalar", Tensor::scalar(2.5, DType::f32, Device::cpu)},
      {"empty", Tensor::empty({3, 0}, DType::f32, Device::cpu)},
      {"columns", wide.narrow(1, 2, 3)},
      {"rows", wide.narrow(0, 1, 2)},
      {"strided_empty", wide.narrow(1, 2, 0)}};
  std::vector<TensorSource> sources;
  for (const auto& [name, value] : all) sources.push_back(source_of(name, value, value.dtype()));
  sources.push_back(source_of("columns_bf16", wide.narrow(1, 2, 3), DType::bf16));
  sources.push_back(source_of("scalar_f64", Tensor::scalar(2.5, DType::f32, Device::cpu), DType::f64));
  sources.push_back(source_of("empty_bf16", Tensor::empty({3, 0}, DType::f32, Device::cpu), DType::bf16));
  const Tensor large = random_tensor({3000, 700}, DType::f32, 9);  // converted in more than one piece
  sources.push_back(source_of("large", large, DType::bf16));
  write_safetensors(dir / "x", sources);
  const auto file = std::make_shared<SafetensorsFile>(dir / "x");
  CHECK(file->metadata() == pytorch_metadata);
  for (const auto& [name, value] : all) {
    CAPTURE(name);
    CHECK_BITS(file->tensor(name), value.clone());
  }
  CHECK_BITS(file->tensor("columns_bf16"), wide.narrow(1, 2, 3).to(DType::bf16));
  CHECK_BITS(file->tensor("scalar_f64"), Tensor::scalar(2.5, DType::f64, Device::cpu));
  CHECK(file->tensor("empty_bf16").shape() == Shape{3, 0});
  CHECK_BITS(file->tensor("large"), large.to(DType::bf16));
  // The order is by element size, then by name.
  std::vector<std::string> names;
  for (const StoredTensor& t : file->tensors()) names.push_back(t.name);
  CHECK(names == std::vector<std::string>{"f64", "i64", "scalar_f64", "columns", "empty", "f32", "i32",
                                          "rows", "scalar", "strided_empty", "bf16", "columns_bf16",
                                          "empty_bf16", "large", "u8"});
  // Elements from anywhere, converted or not, in more than one piece.
  for (const std::int64_t first : {0, 1, 700}) {
    const Tensor got = Tensor::empty({3000 * 700 - first}, DType::f32, Device::cpu);
    file->read(file->at("large"), first, got);
    CHECK_BITS(got, large.to(DType::bf16).to(DType::f32).reshape({-1}).narrow(0, first, got.numel()).clone());
  }
  const Tensor two = Tensor::empty({2}, DType::i64, Device::cpu);
  CHECK_THROWS_AS(file->read(file->at("scalar_f64"), 0, two), std::logic_error);
}

TEST_CASE("safetensors: tensors of a device are written as those of the host") {
  const TestDir dir;
  const Tensor wide = random_tensor({5, 8}, DType::f32, 1), large = random_tensor({3, 700001}, DType::f32, 2);
  const auto written = [&](Device device) {
    std::vector<TensorSource> sources;
    for (const DType stored : {DType::f32, DType::bf16}) {
      sources.push_back(source_of(cat("columns ", stored), wide.to(device).narrow(1, 2, 3), stored));
      sources.push_back(source_of(cat("large ", stored), large.to(device), stored));
      sources.push_back(source_of(cat("empty ", stored), wide.to(device).narrow(1, 2, 0), stored));
    }
    reset_host_waits();
    write_safetensors(dir / "x.safetensors", std::move(sources), {});
    for (const auto& [name, waits] : host_waits()) CHECK(name == "saving");
    return slurp(dir / "x.safetensors");
  };
  CHECK(written(Device::guard) == written(Device::cpu));
}

TEST_CASE("safetensors: a file that is cut off while it is open is an error that names it") {
  const TestDir dir;
  write_safetensors(dir / "x", worked_example());
  const SafetensorsFile file(dir / "x");
  std::filesystem::resize_file(dir / "x", std::filesystem::file_size(dir / "x") - 1);
  CHECK_THROWS_WITH_AS(file.tensor("b"), doctest::Contains("/x: has no bytes from "), Error);
  CHECK_BITS(file.tensor("a"), Tensor::from<float>({1, -2}, {2}));
}

TEST_CASE("safetensors: values outlive the file object and its name") {
  const TestDir dir;
  Tensor value;
  {
    write_safetensors(dir / "x", worked_example());
    const SafetensorsFile file(dir / "x");
    value = file.tensor("a");
    write_safetensors(dir / "x", {source_of("a", Tensor::from<float>({5, 6}, {2}), DType::f32)});
  }
  std::filesystem::remove(dir / "x");
  CHECK_BITS(value, Tensor::from<float>({1, -2}, {2}));
}

TEST_CASE("safetensors: unaligned data is read") {
  const TestDir dir;
  std::string head =
      R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  for (int shift = 0; shift < 4; ++shift, head += ' ') {
    const std::uint64_t n = head.size();
    std::string text(8, '\0');
    std::memcpy(text.data(), &n, 8);
    const float values[2] = {1.5f, -3};
    text += head + "u";
    text.append(reinterpret_cast<const char*>(values), 8);
    spit(dir / "x", text);
    CHECK_BITS(SafetensorsFile(dir / "x").tensor("f"), Tensor::from<float>({1.5f, -3}, {2}));
  }
}

TEST_CASE("safetensors: f16 is read exactly") {
  const std::vector<std::pair<std::uint16_t, float>> known{{0x0000, 0.0f},
                                                           {0x8000, -0.0f},
                                                           {0x3c00, 1.0f},
                                                           {0xc000, -2.0f},
                                                           {0x7bff, 65504.0f},
                                                           {0x0400, 6.103515625e-05f},
                                                           {0x0001, 5.9604644775390625e-08f},
                                                           {0x83ff, -6.09755516e-05f},
                                                           {0x7c00, INFINITY},
                                                           {0xfc00, -INFINITY},
                                                           {0x3555, 0.333251953125f}};
  const TestDir dir;
  const auto count = static_cast<std::int64_t>(known.size());
  const auto write = [&](const ByteSink& sink) {
    for (const auto& pair : known) sink(std::as_bytes(std::span(&pair.first, 1)));
  };
  std::vector<float> want;
  for (const auto& pair : known) want.push_back(pair.second);
  write_safetensors(dir / "x", {{"h", "F16", {count}, {{0, count, write}}}});
  const SafetensorsFile file(dir / "x");
  CHECK_BITS(file.tensor("h"), Tensor::from(want, {count}));
}

TEST_CASE("safetensors: what cannot be read as a tensor") {
  const TestDir dir;
  const auto bytes = [](std::size_t n) {
    const std::string text(n, 'x');
    const auto write = [text](const ByteSink& sink) { sink(std::as_bytes(std::span(text))); };
    return std::vector<TensorPiece>{{0, static_cast<std::int64_t>(n), write}};
  };
  write_safetensors(dir / "x",
                    {{"b", "BOOL", {2}, bytes(2)}, {"deep", "U8", {1, 1, 1, 1, 1, 1, 1}, bytes(1)}});
  const SafetensorsFile file(dir / "x");
  CHECK_THROWS_WITH_AS(file.tensor("b"),
                       doctest::Contains("'b': want F32, BF16, F16, F64, I32, I64 or U8, got BOOL"), Error);
  CHECK_THROWS_WITH_AS(file.tensor("deep"), doctest::Contains("want at most 6 dimensions, got 7"), Error);
  std::array<std::byte, 2> stored;
  file.read_bytes(file.at("b"), 0, stored);
  CHECK(stored[1] == std::byte{'x'});
  CHECK_THROWS_AS(file.read_bytes(file.at("b"), 1, stored), std::logic_error);
  CHECK_THROWS_WITH_AS(SafetensorsFile(dir / "none"), doctest::Contains("none: cannot open: No such file"),
                       Error);
  CHECK_THROWS_WITH_AS(SafetensorsFile(dir.path()), doctest::Contains("want a regular file"), Error);
  spit(dir / "zero", "");
  CHECK_THROWS_WITH_AS(SafetensorsFile(dir / "zero"), doctest::Contains("got 0 bytes"), Error);
}

TEST_CASE("safetensors writer: errors leave the old file as it was") {
  const TestDir dir;
  spit(dir / "x", "old");
  const Tensor one = Tensor::scalar(1, DType::f32, Device::cpu);
  CHECK_THROWS_WITH_AS(
      write_safetensors(dir / "x", {source_of("a", one, DType::f32), source_of("a", one, DType::f64)}),
      doctest::Contains("two tensors with the name 'a'"), Error);
  TensorSource broken{"a", "F32", {4}, {{0, 4, [](const ByteSink&) { fail("gather failed"); }}}};
  CHECK_THROWS_WITH_AS(write_safetensors(dir / "x", {broken}), doctest::Contains("gather failed"), Error);
  broken.pieces[0].write = [](const ByteSink& sink) { sink({}); };
  CHECK_THROWS_AS(write_safetensors(dir / "x", {broken}), std::logic_error);
  CHECK_THROWS_WITH_AS(write_safetensors(dir / "no/x", worked_example()), doctest::Contains("cannot create"),
                       Error);

  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    write_safetensors(dir / "x",
                      {source_of("a", Tensor::zeros({100000}, DType::f32, Device::cpu), DType::f32)});
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_MESSAGE(message.find("x: cannot write: File too large") != message.npos, message);

  CHECK(slurp(dir / "x") == "old");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"x"});
}

TEST_CASE("safetensors writer: a tensor in pieces is the whole one, and gaps and overlaps are named") {
  const TestDir dir;
  const Tensor whole = random_tensor({6, 50}, DType::f32, 11), flat = whole.reshape({-1});
  const auto cut_at = [&](std::vector<std::int64_t> borders, DType stored) {
    TensorSource source = source_of("p", whole, stored);
    source.pieces.clear();
    for (std::size_t i = 0; i + 1 < borders.size(); i += 2) {
      const std::int64_t begin = borders[i], end = borders[i + 1];
      source.pieces.push_back(piece_of(flat.narrow(0, begin, end - begin), stored, begin));
    }
    return std::vector<TensorSource>{source, source_of("q", whole, DType::f64)};
  };
  for (const DType stored : {DType::f32, DType::bf16}) {
    const FileSum want =
        write_safetensors(dir / "want", {source_of("p", whole, stored), source_of("q", whole, DType::f64)});
    const FileSum got = write_safetensors(dir / "got", cut_at({0, 7, 7, 7, 120, 300, 7, 120}, stored));
    CHECK(slurp(dir / "got") == slurp(dir / "want"));
    CHECK(got == want);
    CHECK(got == sum_of_file(dir / "got"));
    const std::vector<std::pair<std::vector<std::int64_t>, const char*>> wrong{
        {{0, 7, 8, 300}, "tensor 'p': element 7 is written by no rank"},
        {{0, 7, 6, 300}, "tensor 'p': element 6 is written by two ranks"},
        {{7, 300}, "tensor 'p': element 0 is written by no rank"},
        {{0, 299}, "tensor 'p': element 299 is written by no rank"},
        {{}, "tensor 'p': element 0 is written by no rank"}};
    for (const auto& [borders, text] : wrong) {
      CAPTURE(text);
      CHECK_THROWS_WITH_AS(write_safetensors(dir / "bad", cut_at(borders, stored)), doctest::Contains(text),
                           std::logic_error);
    }
  }
  CHECK(names_in(dir.path()) == std::vector<std::string>{"got", "want"});
}

TEST_CASE("safetensors: shards and their index") {
  const TestDir dir;
  const auto sources = [] {
    std::vector<TensorSource> s;
    for (int i = 0; i < 5; ++i)
      s.push_back(source_of(cat("t", i), random_tensor({10}, DType::f32, 50 + i), DType::f32));
    return s;
  };
  CHECK(plan_shards(sources(), 0).size() == 1);
  CHECK(plan_shards(sources(), 200).size() == 1);
  CHECK(plan_shards(sources(), 199).size() == 2);
  CHECK(plan_shards(sources(), 1).size() == 5);
  CHECK(plan_shards({}, 1).count("model.safetensors") == 1);
  write_safetensors_model(dir.path(), plan_shards(sources(), 80));
  CHECK(names_in(dir.path()) ==
        std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                 "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  CHECK(
      slurp(dir / index_file_name) ==
      "{\n  \"metadata\": {\n    \"total_size\": 200\n  },\n  \"weight_map\": {\n"
      "    \"t0\": \"model-00001-of-00003.safetensors\",\n    \"t1\": \"model-00001-of-00003.safetensors\",\n"
      "    \"t2\": \"model-00002-of-00003.safetensors\",\n    \"t3\": \"model-00002-of-00003.safetensors\",\n"
      "    \"t4\": \"model-00003-of-00003.safetensors\"\n  }\n}\n");
  const SafetensorsTensors all = open_safetensors_model(dir.path());
  CHECK(all.size() == 5);
  for (int i = 0; i < 5; ++i)
    CHECK_BITS(all.at(cat("t", i)).value(), random_tensor({10}, DType::f32, 50 + i));
}

TEST_CASE("safetensors: a model directory that contradicts itself is refused") {
  const TestDir dir;
  const auto refused = [&](const char* text) {
    CHECK_THROWS_WITH_AS(open_safetensors_model(dir.path()), doctest::Contains(text), Error);
  };
  const auto index = [&](const std::string& map) {
    spit(dir / index_file_name, "{\"weight_map\":" + map + "}");
  };
  CHECK_THROWS_WITH_AS(open_safetensors_model(dir / "none"), doctest::Contains("want a directory"), Error);
  refused("found neither");
  write_safetensors(dir / "1.safetensors", worked_example());
  write_safetensors(dir / "2.safetensors",
                    {source_of("c", Tensor::scalar(1, DType::f32, Device::cpu), DType::f32)});
  index(R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"})");
  CHECK(open_safetensors_model(dir.path()).size() == 3);
  index(R"({"a":"1.safetensors","b":"1.safetensors"})");
  CHECK(open_safetensors_model(dir.path()).size() == 2);  // a file that the index does not name is ignored
  index(R"({"a":"1.safetensors","c":"2.safetensors"})");
  refused("1.safetensors holds tensor 'b', which the index does not know");
  index(R"({"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"})");
  refused("tensor 'b' should be in 2.safetensors, which does not hold it");
  index(R"({"a":"1.safetensors","b":"1.safetensors","d":"2.safetensors"})");
  refused("tensor 'd' should be in 2.safetensors, which does not hold it");
  index(R"({"a":"3.safetensors"})");
  refused("3.safetensors: cannot open");
  index(R"({"a":"../1.safetensors"})");
  refused("'weight_map.a': want the name of a file in the same directory, got \"../1.safetensors\"");
  index(R"({"a":1})");
  refused("'weight_map.a': want a string, got 1");
  index("[]");
  refused("'weight_map': want an object");
  spit(dir / index_file_name, "{}");
  refused("'weight_map': want a value, got none");
  spit(dir / index_file_name, "{\"weight_map\":");
  refused("model.safetensors.index.json: not valid JSON");
  write_safetensors(dir / "2.safetensors",
                    {source_of("b", Tensor::scalar(1, DType::f32, Device::cpu), DType::f32)});
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  refused("2.safetensors: tensor 'b' is also in 1.safetensors");
  write_safetensors(dir / single_file_name, worked_example());
  refused("has both model.safetensors and model.safetensors.index.json");
}
