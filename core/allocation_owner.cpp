#include "core/allocation_owner.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/memory_limit.h"
#include "core/profile.h"

namespace nemocube {
namespace {

constexpr std::size_t most_listed = 6;
thread_local const char* current_owner = nullptr;

}  // namespace

AllocationOwner::AllocationOwner(const char* name)
    : outer_(std::exchange(current_owner, name ? name : current_owner)) {}
AllocationOwner::~AllocationOwner() { current_owner = outer_; }
const char* AllocationOwner::current() { return current_owner ? current_owner : current_zone(); }

const char* AllocationOwner::named() { return current_owner; }

const char* kept_name(std::string_view text) {
  static std::mutex mutex;
  static auto* names = new std::set<std::string, std::less<>>;  // never destroyed: blocks refer to them
  const std::lock_guard lock(mutex);
  return names->emplace(text).first->c_str();
}

std::string OwnedBytes::largest() const {
  std::map<std::string_view, std::int64_t> by_name;  // two literals may have one text
  std::int64_t others = 0;
  for (const auto& [owner, bytes] : bytes_) {
    if (owner == nullptr || std::string_view(owner) == "none")
      others += bytes;
    else
      by_name[owner] += bytes;
  }
  std::vector<std::pair<std::int64_t, std::string_view>> sorted;
  for (const auto& [name, bytes] : by_name)
    if (bytes > 0) sorted.emplace_back(bytes, name);
  std::ranges::sort(sorted, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::string text;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i >= most_listed)
      others += sorted[i].first;
    else
      text += cat(text.empty() ? "" : ", ", sorted[i].second, " ", bytes_text(sorted[i].first));
  }
  if (others > 0) text += cat(text.empty() ? "" : ", ", "others ", bytes_text(others));
  return text.empty() ? "" : cat(" (", text, ")");
}

}  // namespace nemocube
