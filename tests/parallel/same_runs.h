#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <iterator>

#include "tests/training/run_support.h"

namespace nemocube::testing {

/// Checks that the logs of `got` say from step `first` on what those of `want` do, within this relative
/// tolerance.
inline void check_same_runs(const std::filesystem::path& got, const std::filesystem::path& want,
                            double tolerance, std::int64_t first = 0) {
  for (const char* log : {"training.jsonl", "validation.jsonl"}) {
    const auto a = read_jsonl(got / log);
    auto b = read_jsonl(want / log);
    std::erase_if(b, [&](const Json& line) { return line["step"].get<std::int64_t>() < first; });
    REQUIRE(a.size() == b.size());
    REQUIRE(!a.empty());
    for (std::size_t i = 0; i < a.size(); ++i)
      for (const char* key : {"step", "loss", "grad_norm", "val_loss", "aux_loss", "lr",
                              "num_tokens_per_step", "num_label_tokens"}) {
        if (!b[i].contains(key)) continue;
        CAPTURE(log);
        CAPTURE(key);
        CAPTURE(i);
        const double x = a[i][key].get<double>(), y = b[i][key].get<double>();
        CHECK(std::abs(x - y) <= tolerance * std::abs(y));
      }
  }
}

}  // namespace nemocube::testing
