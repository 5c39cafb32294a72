#include "checks/word_clocks.h"

namespace emulator {
namespace {

std::uint64_t next_identity() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// Pages that this host thread has used; pages live as long as their object.
struct KnownPage {
  std::uint64_t identity = 0, number = 0;
  void* page = nullptr;
};
thread_local std::array<KnownPage, 64> known_pages;

}  // namespace

WordClocks::WordClocks(GridClocks& clocks) : clocks_(clocks), identity_(next_identity()) {}

WordClocks::Place* WordClocks::find(std::uint64_t word, bool make) {
  const std::uint64_t number = word / page_words;
  KnownPage& known = known_pages[number % known_pages.size()];
  if (known.identity != identity_ || known.number != number) {
    Shard& shard = shards_[number % shards_.size()];
    std::lock_guard lock(shard.mutex);
    const auto found = shard.pages.find(number);
    Page* page = found == shard.pages.end() ? nullptr : found->second.get();
    if (!page && !make) return nullptr;
    if (!page) page = (shard.pages[number] = std::make_unique<Page>()).get();
    known = {identity_, number, page};
  }
  return &(*static_cast<Page*>(known.page))[word % page_words];
}

void WordClocks::release(std::uint64_t word, GridClocks::Clock clock) {
  GridClocks::Clock included = nullptr;
  exchange(word, clock, included);
}

void WordClocks::exchange(std::uint64_t word, GridClocks::Clock& clock, GridClocks::Clock& included) {
  Place& place = *find(word, true);
  GridClocks::Clock there = place.load(std::memory_order_acquire);
  do {
    if (there != included) clock = clocks_.join(clock, there);
    included = there;
  } while (clock != there &&
           !place.compare_exchange_weak(there, clock, std::memory_order_acq_rel, std::memory_order_acquire));
}

GridClocks::Clock WordClocks::acquire(std::uint64_t word) {
  const Place* const place = find(word, false);
  return place ? place->load(std::memory_order_acquire) : nullptr;
}

}  // namespace emulator
