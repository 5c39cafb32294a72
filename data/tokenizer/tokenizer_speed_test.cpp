// Long lines: the ids must equal those of the tokenizers library, and the time must grow about linearly from
// a quarter of the line to the whole line.
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <thread>

#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

constexpr std::size_t long_line_bytes = std::size_t{1} << 20;

// As in make_tokenizer_torture.py.
const std::map<std::string, std::string> units = {
    {"words", "The model reads a page of text, and the next word is 42; "},
    {"spaces", " "},
    {"letters", "abcde"},
    {"caps", "A"},
    {"dashes", "-"}};

std::string line_of(const std::string& unit, std::size_t size) {
  std::string out;
  while (out.size() < size) out += unit;
  out.resize(size);
  return out;
}

std::string fnv1a(const std::vector<std::int64_t>& ids) {
  std::uint64_t state = 0xCBF29CE484222325u;
  for (const std::int64_t id : ids) state = (state ^ static_cast<std::uint64_t>(id)) * 0x100000001B3u;
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, state);
  return text;
}

/// Of this thread's processor time, so that other work on the machine does not count.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double best_seconds(const Tokenizer& tokenizer, const std::string& text) {
  double best = 1e9;
  for (int round = 0; round < 2; ++round) {
    const double start = thread_seconds();
    tokenizer.encode(text, false);
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

TEST_CASE("tokenizer on a 1 MiB line: ids against hashes of the tokenizers library, time near linear") {
  for (const std::string model : {"split", "legacy"}) {
    const Tokenizer tokenizer = Tokenizer::load(tok_test::golden(model));
    const auto expected = tok_test::read_golden(model + "/expected.json")["long"];
    for (const auto& [kind, unit] : units) {
      CAPTURE(model);
      CAPTURE(kind);
      const std::string text = line_of(unit, long_line_bytes);
      CHECK(fnv1a(tokenizer.encode(text, false)) == expected[kind].get<std::string>());
      if (model == "legacy" && kind != "letters") continue;  // one more for pieces of a megabyte
      const double whole = best_seconds(tokenizer, text);
      const double quarter = best_seconds(tokenizer, text.substr(0, long_line_bytes / 4));
      CHECK(whole < 12 * quarter + 0.05);  // 4 when linear, 16 when quadratic
    }
  }
}

TEST_CASE("tokenizer shared by threads: the same ids as alone") {
  const Tokenizer tokenizer = Tokenizer::load(tok_test::golden("flags"));
  const auto texts = tok_test::read_golden("texts.json").get<std::vector<std::string>>();
  std::vector<std::vector<std::int64_t>> alone;
  for (const std::string& text : texts) alone.push_back(tokenizer.encode(text, true));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) count += tokenizer.encode(texts[i], true) != alone[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) CHECK(count == 0);
}

}  // namespace
