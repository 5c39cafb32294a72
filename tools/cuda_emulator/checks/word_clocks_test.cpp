#include "checks/word_clocks.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

using namespace emulator;

TEST_CASE("clocks of words hand over what was released there") {
  GridClocks clocks(100);
  WordClocks words(clocks);
  const GridClocks::Clock a = clocks.with(nullptr, 3, {1, 1}), b = clocks.with(nullptr, 77, {2, 0});
  CHECK(words.acquire(1000) == nullptr);
  words.release(1000, a);
  CHECK(words.acquire(1000) == a);
  CHECK(words.acquire(1002) == nullptr);
  CHECK(words.acquire(1000 + (1 << 20)) == nullptr);
  words.release(1001, a);
  GridClocks::Clock mine = b, included = nullptr;
  words.exchange(1000, mine, included);
  CHECK(mine == clocks.join(a, b));
  CHECK(words.acquire(1000) == mine);
  words.exchange(1001, mine, included);
  CHECK(mine == clocks.join(a, b));
  CHECK(words.acquire(1001) == mine);
  // Another launch at the same words knows nothing.
  GridClocks other_clocks(100);
  WordClocks other(other_clocks);
  CHECK(other.acquire(1000) == nullptr);
}

TEST_CASE("clocks of words keep all handovers of threads that meet at them") {
  constexpr std::uint32_t threads = 4, rounds = 2000;
  GridClocks clocks(threads);
  WordClocks words(clocks);
  std::vector<std::thread> running;
  for (std::uint32_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      for (std::uint16_t epoch = 1; epoch <= rounds; ++epoch) {
        GridClocks::Clock mine = clocks.with(nullptr, t, {epoch, epoch}), included = nullptr;
        if (epoch % 2)
          words.exchange(epoch % 7, mine, included);
        else
          words.release(epoch % 7, mine);
      }
    });
  for (std::thread& thread : running) thread.join();
  for (std::uint64_t word = 0; word < 7; ++word) {
    // The last epoch of each thread at the word.
    std::uint16_t last = rounds;
    while (last % 7 != word) --last;
    for (std::uint32_t t = 0; t < threads; ++t) CHECK(clocks.known(words.acquire(word), t).any == last);
  }
}
