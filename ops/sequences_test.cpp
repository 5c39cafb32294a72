#include "ops/sequences.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

using Offsets = std::vector<std::int64_t>;

TEST_CASE("sequences: from counts and lengths") {
  CHECK(Sequences::uniform(3, 4).offsets() == Offsets{0, 4, 8, 12});
  CHECK(Sequences::uniform(0, 4).offsets() == Offsets{0});
  CHECK(Sequences::of_lengths(Offsets{2, 0, 3}).offsets() == Offsets{0, 2, 2, 5});
  CHECK(Sequences::of_lengths(Offsets{2, 0, 3}).longest() == 3);
  const Sequences packed = Sequences::of_lengths(Offsets{3, 1});
  CHECK(packed.count() == 2);
  CHECK(packed.tokens() == 4);
  CHECK(packed.begin(1) == 3);
  CHECK(packed.length(0) == 3);
}

TEST_CASE("sequences: offsets that do not ascend to the number of tokens are refused") {
  CHECK_NOTHROW(Sequences::uniform(2, 3).check("x", 6));
  CHECK_THROWS_WITH_AS(Sequences::uniform(2, 3).check("x", 7), doctest::Contains("x: "), Error);
  CHECK_THROWS_AS(Sequences({0, 3, 2, 4}).check("x", 4), Error);
  CHECK_THROWS_AS(Sequences({1, 4}).check("x", 4), Error);
  CHECK_THROWS_AS(Sequences(Offsets()).check("x", 0), Error);
}

TEST_CASE("sequences: positions of rows, of pieces and where sequences continue") {
  CHECK(Sequences::of_lengths(Offsets{2, 0, 3}).positions() == Offsets{0, 1, 0, 1, 2});
  CHECK(Sequences::of_lengths(Offsets{1, 0, 2}, Offsets{7, 5, 0}).positions() == Offsets{7, 0, 1});
  CHECK(Sequences({0, 2, 3}, {4, 9, 1}).positions() == Offsets{4, 9, 1});
  CHECK(Sequences().positions().empty());
}

TEST_CASE("sequences: a capacity gives batches of different lengths tables of the same sizes" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    CAPTURE(device);
    const Sequences some = Sequences::of_lengths(Offsets{2, 3}).with_capacity(8, 4);
    CHECK(some.offsets() == Offsets{0, 2, 5, 5, 5, 8});
    CHECK(some.positions() == Offsets{0, 1, 0, 1, 2, 0, 1, 2});
    CHECK(some.tokens() == 8);
    CHECK(some.has_spare_rows());
    CHECK(some.token_rows_on(device).device() == device);
    CHECK(some.token_rows_on(device).to_vector() == std::vector<double>{0, 5});
    const Sequences full = Sequences::of_lengths(Offsets{1, 0, 3, 4}).with_capacity(8, 4);
    CHECK(full.on(device).offsets.shape() == some.on(device).offsets.shape());
    CHECK(full.token_rows_on(device).to_vector() == std::vector<double>{0, 8});
    CHECK(Sequences().with_capacity(3, 1).token_rows_on(device).to_vector() == std::vector<double>{0, 0});
    CHECK_FALSE(Sequences::uniform(2, 4).token_rows_on(device).defined());
  }
  CHECK(Sequences::of_lengths(Offsets{2}, Offsets{7}).with_capacity(4, 1).positions() == Offsets{7, 8, 0, 1});
  const Sequences two = Sequences::uniform(2, 3);
  CHECK_FALSE(two.has_spare_rows());
  CHECK_THROWS_WITH_AS(two.with_capacity(5, 2), doctest::Contains("2 sequences of 6 rows"), Error);
  CHECK_THROWS_AS(two.with_capacity(6, 1), Error);
  CHECK_THROWS_AS(two.with_capacity(6, 2).with_capacity(7, 4), Error);
}

TEST_CASE("sequences: tables on every device, made once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    CAPTURE(device);
    const Sequences sequences = Sequences::of_lengths(Offsets{2, 0, 3}), copy = sequences;
    CHECK(sequences.on(device).offsets.device() == device);
    CHECK(sequences.on(device).offsets.to_vector() == std::vector<double>{0, 2, 2, 5});
    CHECK(sequences.positions_on(device).to_vector() == std::vector<double>{0, 1, 0, 1, 2});
    CHECK(&copy.on(device) == &sequences.on(device));
    int made = 0;
    const auto longest = [&](std::int64_t at_least) {
      return sequences.derived<std::int64_t>(device, {at_least}, [&] {
        ++made;
        return std::max(at_least, sequences.longest());
      });
    };
    CHECK(longest(1) == 3);
    CHECK(longest(9) == 9);
    CHECK(longest(1) == 3);
    CHECK(made == 2);
  }
  const Sequences none = Sequences::uniform(0, 4);
  CHECK(none.on(Device::cpu).count() == 0);
  CHECK(&none.on(Device::cpu) != &Sequences::uniform(0, 4).on(Device::cpu));
}

TEST_CASE("sequences: those that become others of the same capacity keep the memory of their tables" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    CAPTURE(device);
    const Sequences first = Sequences::of_lengths(Offsets{2, 3}).with_capacity(8, 3),
                    second = Sequences::of_lengths(Offsets{1, 4, 1}).with_capacity(8, 3);
    Sequences fixed = first.clone();
    CHECK_FALSE(fixed.same(first));
    const Sequences copy = fixed;
    CHECK(copy.same(fixed));
    const Tensor offsets = fixed.on(device).offsets, positions = fixed.positions_on(device),
                 token_rows = fixed.token_rows_on(device);
    CHECK(fixed.longest() == 3);
    fixed.become(second);
    CHECK(copy.offsets() == second.offsets());
    CHECK(copy.positions() == second.positions());
    CHECK(first.offsets() == Offsets{0, 2, 5, 5, 8});
    CHECK(offsets.to_vector() == std::vector<double>{0, 1, 5, 6, 8});
    CHECK(positions.to_vector() == std::vector<double>{0, 0, 1, 2, 3, 0, 0, 1});
    CHECK(token_rows.to_vector() == std::vector<double>{0, 6});
    CHECK(copy.on(device).offsets.same_storage(offsets));
    CHECK_THROWS_AS(fixed.become(first.with_capacity(8, 4)), Error);  // has spare rows already
    CHECK_THROWS_AS(fixed.become(Sequences::uniform(4, 2)), std::logic_error);
    if (device.is_host()) continue;
    const std::int64_t number = 7;
    fixed.derived<std::int64_t>(device, {}, [&] { return number; });
    CHECK_THROWS_WITH_AS(fixed.become(first), doctest::Contains("cannot be filled again"), std::logic_error);
  }
}

TEST_CASE("sequences: numbered ones give each row a number, on every device" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    CAPTURE(device);
    const Sequences plain = Sequences::of_lengths(Offsets{2, 0, 3});
    CHECK(plain.numbers().empty());
    CHECK_FALSE(plain.row_numbers_on(device).defined());
    const Sequences numbered = plain.numbered({100, 7, std::int64_t{1} << 40});
    CHECK(plain.numbers().empty());
    CHECK_FALSE(numbered.same(plain));
    CHECK(numbered.offsets() == plain.offsets());
    const Tensor rows = numbered.row_numbers_on(device);
    CHECK(rows.device() == device);
    CHECK(rows.dtype() == DType::i64);
    CHECK(rows.to_vector() == std::vector<double>{100, 101, 0x1p40, 0x1p40 + 1, 0x1p40 + 2});
    CHECK(numbered.row_numbers_on(device).same_storage(rows));  // made once
    CHECK(numbered.positions_on(device).to_vector() == std::vector<double>{0, 1, 0, 1, 2});

    // Rows of which only some are here, and sequences that continue, are counted by their positions.
    CHECK(Sequences({0, 2, 3}, {4, 9, 1}).numbered({10, 20}).row_numbers_on(device).to_vector() ==
          std::vector<double>{14, 19, 21});

    const Sequences clone = numbered.clone();
    CHECK_FALSE(clone.same(numbered));
    CHECK(clone.numbers() == numbered.numbers());
    CHECK(numbered.padded_length() == 0);
    CHECK(numbered.numbered(numbered.numbers(), 9).clone().padded_length() == 9);
    CHECK(clone.row_numbers_on(device).to_vector() == rows.to_vector());
    CHECK_FALSE(clone.row_numbers_on(device).same_storage(rows));

    const Sequences roomy = Sequences::of_lengths(Offsets{2, 1}).numbered({50, 60}, 4).with_capacity(6, 3);
    CHECK(roomy.padded_length() == 4);
    CHECK(roomy.numbers() == Offsets{50, 60, 0, 0});
    const Tensor room = roomy.row_numbers_on(device);
    CHECK(room.narrow(0, 0, 3).to_vector() == std::vector<double>{50, 51, 60});
    CHECK(room.numel() == 6);
    Sequences fixed = roomy.clone();
    const Tensor place = fixed.row_numbers_on(device);
    fixed.become(Sequences::of_lengths(Offsets{1, 3, 1}).numbered({5, 500, 50}, 7).with_capacity(6, 3));
    CHECK(fixed.numbers().front() == 5);
    CHECK(fixed.padded_length() == 7);
    CHECK(place.narrow(0, 0, 5).to_vector() == std::vector<double>{5, 500, 501, 502, 50});
    CHECK(fixed.row_numbers_on(device).same_storage(place));
    CHECK(roomy.row_numbers_on(device).narrow(0, 0, 3).to_vector() == std::vector<double>{50, 51, 60});
    CHECK_THROWS_AS(fixed.become(Sequences::of_lengths(Offsets{1, 3, 1}).with_capacity(6, 3)),
                    std::logic_error);
  }
  const Sequences two = Sequences::uniform(2, 3);
  CHECK_THROWS_WITH_AS(two.numbered({1}), "sequences: want 2 numbers, got 1", Error);
  CHECK(two.numbered({}).numbers().empty());
  CHECK(two.numbered({1, 9}).numbered({}).numbers().empty());
}
