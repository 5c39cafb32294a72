#include "data/safetensors/quantized.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "data/hf/with_scales.h"
#include "data/json/test_dir.h"
#include "data/safetensors/low_precision.h"
#include "data/safetensors/test_quantized.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::filesystem::path goldens = source_dir() / "tests/goldens/quantized";

SafetensorsTensors open(const std::filesystem::path& path) {
  SafetensorsTensors all;
  const auto file = std::make_shared<SafetensorsFile>(path);
  for (const StoredTensor& t : file->tensors()) all.emplace(t.name, StoredIn{file, &t});
  return with_scales(std::move(all));
}

StoredBlob floats(const std::string& name, std::vector<std::int64_t> shape,
                  const std::vector<float>& values) {
  StoredBlob blob{name, "F32", std::move(shape), std::vector<std::byte>(values.size() * sizeof(float))};
  std::memcpy(blob.bytes.data(), values.data(), blob.bytes.size());
  return blob;
}
StoredBlob codes(const std::string& name, const char* dtype, std::vector<std::int64_t> shape,
                 int code = 0x38) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return {name, dtype, std::move(shape), std::vector<std::byte>(count, static_cast<std::byte>(code))};
}

}  // namespace

TEST_CASE("low precision: every code has the value that its format defines") {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double size =
        exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1 + fraction / 8.0, exponent - 7);
    const float got = e4m3_values[static_cast<std::size_t>(code)];
    CHECK(std::signbit(got) == (code >= 128));
    if ((code & 127) == 127)
      CHECK(std::isnan(got));
    else
      CHECK(std::abs(got) == size);
  }
  CHECK(e4m3_values[0x7E] == 448);
  CHECK(e4m3_values[1] == std::ldexp(1.0F, -9));
  for (int code = 0; code < 16; ++code) {
    CAPTURE(code);
    const int exponent = code >> 1 & 3, fraction = code & 1;
    const double size = exponent == 0 ? fraction / 2.0 : std::ldexp(1 + fraction / 2.0, exponent - 1);
    CHECK(std::abs(e2m1_values[static_cast<std::size_t>(code)]) == size);
    CHECK(std::signbit(e2m1_values[static_cast<std::size_t>(code)]) == (code >= 8));
  }
}

TEST_CASE("quantized: the values of PyTorch, whole and in ranges, in every dtype") {
  const SafetensorsTensors stored = open(goldens / "codes.safetensors");
  const SafetensorsFile values(goldens / "values.safetensors");
  REQUIRE(stored.size() == values.tensors().size());
  for (const auto& [name, at] : stored) {
    CAPTURE(name);
    const Tensor want = values.tensor(name);
    CHECK(at.shape() == values.at(name).shape);
    CHECK(at.value_dtype() == "BF16");
    CHECK_BITS(at.value(), want);
    for (const DType dtype : {DType::bf16, DType::f64}) {
      const Tensor got = Tensor::empty(want.shape(), dtype, Device::cpu);
      at.read(0, got);
      CHECK_BITS(got, want.to(dtype));
    }
    // Ranges that begin and end at odd codes, inside blocks and across rows.
    const std::int64_t count = want.numel();
    for (std::int64_t first = 0; first < count; first += 97)
      for (const std::int64_t length : {1, 2, 17, 333}) {
        const std::int64_t size = std::min(length, count - first);
        const Tensor got = Tensor::empty({size}, DType::f32, Device::cpu);
        at.read(first, got);
        CHECK_BITS(got, want.reshape({-1}).narrow(0, first, size).clone());
      }
  }
}

TEST_CASE("quantized: only the bytes of a range and of its scales are read") {
  const SafetensorsTensors stored = open(goldens / "codes.safetensors");
  const auto bytes = [&](const char* name, Range elements) {
    return bytes_of(stored.at(name).pieces(elements));
  };
  CHECK(bytes("tensor.weight", {0, 100}) == 100 + 4);
  CHECK(bytes("rows.weight", {0, 24}) == 24 + 4);
  CHECK(bytes("rows.weight", {23, 49}) == 26 + 12);          // of three rows
  CHECK(bytes("blocks.weight", {100, 140}) == 40 + 8);       // across an edge of blocks
  CHECK(bytes("blocks.weight", {130, 139}) == 9 + 4);        // inside one
  CHECK(bytes("blocks_inv.weight", {100, 260}) == 160 + 8);  // of two rows of blocks' first row
  CHECK(bytes("nvfp4.weight", {0, 64}) == 32 + 4 + 4);
  CHECK(bytes("nvfp4.weight", {15, 17}) == 2 + 2 + 4);  // half of each byte
  CHECK(bytes("nvfp4_partial.weight", {32, 38}) == 3 + 1 + 4);
}

TEST_CASE("quantized: codes and scales that do not go together are refused by name") {
  const TestDir dir;
  const auto refused = [&](const std::vector<StoredBlob>& blobs, const std::string& part) {
    write_blobs(dir / "f.safetensors", blobs);
    const std::string message = message_of([&] {
      for (const auto& [name, at] : open(dir / "f.safetensors"))
        if (at.quantized) at.value();
    });
    CAPTURE(message);
    CHECK(message.find("f.safetensors: tensor '") != message.npos);
    CHECK(message.find(part) != message.npos);
  };
  const StoredBlob fp8 = codes("x.weight", "F8_E4M3", {4, 6});
  const StoredBlob one = floats("x.weight_scale", {}, {2});
  const float nan = std::nanf("");
  refused({fp8, floats("x.weight_scale", {3}, {1, 1, 1})},
          "'x.weight_scale': want one scale, one for each row");
  refused({fp8, floats("x.weight_scale", {6, 1}, {1, 1, 1, 1, 1, 1})}, "got F32 [6, 1]");
  refused({fp8, floats("x.weight_scale_inv", {2, 1}, {1, 1})}, "'x.weight_scale_inv': want one scale");
  refused({fp8, one, floats("x.weight_scale_inv", {1, 1}, {1})}, "beside it, got both");
  refused({fp8, one, floats("x.weight_scale_2", {}, {1})}, "'x.weight_scale_2' is beside it");
  refused({fp8, codes("x.weight_scale", "U8", {})}, "want floating scales of F8_E4M3 codes, got U8 []");
  refused({fp8, floats("x.weight_scale", {}, {nan})},
          "'x.weight_scale': want finite scales, got nan as number 0");
  refused({fp8, floats("x.weight_scale", {4}, {1, 1, INFINITY, 1})}, "got inf as number 2");
  const StoredBlob fp4 = codes("x.weight", "U8", {2, 8}), blocks = codes("x.weight_scale", "F8_E4M3", {2, 1});
  const StoredBlob whole = floats("x.weight_scale_2", {}, {1});
  refused({fp4, blocks}, "U8 codes are NVFP4; want one number 'x.weight_scale_2' beside it, got none");
  refused({fp4, whole}, "want either 'x.weight_scale' or 'x.weight_scale_inv' beside it, got neither");
  refused({fp4, blocks, floats("x.weight_scale_2", {2}, {1, 1})}, "got F32 [2]");
  refused({fp4, codes("x.weight_scale", "F8_E4M3", {2, 2}), whole},
          "want a scale for each 16 columns, [2, 1]");
  refused({fp4, floats("x.weight_scale", {2, 1}, {1, 1}), whole}, "want F8_E4M3 scales of NVFP4 codes");
  refused({fp4, codes("x.weight_scale", "F8_E4M3", {2, 1}, 0x7F), whole}, "want finite scales, got nan");
  refused({fp4, blocks, floats("x.weight_scale_2", {}, {INFINITY})},
          "'x.weight_scale_2': want a finite scale, got inf");
  refused({codes("x.weight", "U8", {8}), codes("x.weight_scale", "F8_E4M3", {1}), whole},
          "want an NVFP4 matrix");
  refused({fp8, one, floats("x.pre_quant_scale", {6}, std::vector<float>(6, 1))}, "quantized as in AWQ");
  refused({codes("x.weight_packed", "U8", {2, 8})}, "quantized as in compressed-tensors");
}

TEST_CASE(
    "quantized: scales of activations and of the KV cache are left out, others without codes are kept") {
  const TestDir dir;
  write_blobs(dir / "f.safetensors", {codes("x.weight", "F8_E4M3", {2, 2}), floats("x.weight_scale", {}, {1}),
                                      floats("x.input_scale", {}, {1}), floats("k_proj.k_scale", {}, {1}),
                                      floats("v_proj.v_scale", {}, {1}), floats("y.weight", {1}, {1}),
                                      floats("y.weight_scale", {}, {1}), floats("z.weight_scale", {}, {1})});
  std::vector<std::string> names;
  for (const auto& [name, at] : open(dir / "f.safetensors")) names.push_back(name);
  CHECK(names == std::vector<std::string>{"x.weight", "y.weight", "y.weight_scale", "z.weight_scale"});
}
