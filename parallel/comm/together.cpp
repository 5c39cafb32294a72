#include "parallel/comm/together.h"

#include <algorithm>
#include <exception>
#include <span>

#include "core/error.h"
#include "core/quote.h"
#include "core/rng.h"

namespace nemocube {
namespace {

bool alone(const Communicator* group) { return !group || group->size() == 1; }

// An exception as text, behind one character for its kind, so that other ranks can throw the like.
constexpr char user_mistake = 'E', broken_promise = 'L';

struct Attempt {
  std::exception_ptr exception;
  std::string text;  // empty: nothing was thrown
};

Attempt attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::logic_error& e) {
    return {std::current_exception(), broken_promise + std::string(e.what())};
  } catch (const std::exception& e) {
    return {std::current_exception(), user_mistake + std::string(e.what())};
  }
}

[[noreturn]] void throw_like(const std::string& text, const std::string& where) {
  const std::string message = where + text.substr(1);
  if (text[0] == broken_promise) throw std::logic_error(message);
  throw Error(message);
}

/// The first line in which two texts differ, of both.
std::string difference(const std::string& here, const std::string& there) {
  const auto a = lines_of(here), b = lines_of(there);
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? quote(lines[i]) : std::string("nothing");
  };
  return cat(line(a), " against ", line(b));
}

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> differing_texts(Communicator* group, const std::string& text) {
  if (alone(group)) return {};
  const std::vector<std::uint64_t> hashes = group->host_all_gather(hash_name(text));
  const bool same = std::ranges::all_of(hashes, [&](std::uint64_t hash) { return hash == hashes[0]; });
  return same ? std::vector<std::string>{} : gather_texts(group, text);
}

void want_same_text(Communicator* group, const std::string& what, const std::string& text) {
  const std::vector<std::string> texts = differing_texts(group, text);
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0])
      fail(what, " of rank ", rank, " is not that of rank 0: ", difference(texts[rank], texts[0]));
}

std::vector<std::string> gather_texts(Communicator* group, std::string_view text) {
  if (alone(group)) return {std::string(text)};
  const std::vector<std::int64_t> counts = group->host_all_gather(std::ssize(text));
  std::vector<std::string> texts(counts.size());
  if (std::ranges::all_of(counts, [](std::int64_t count) { return count == 0; })) return texts;
  const std::vector<char> all = group->host_all_gather_v(std::span<const char>(text), counts);
  auto at = all.begin();
  for (std::size_t r = 0; r < counts.size(); at += counts[r++]) texts[r].assign(at, at + counts[r]);
  return texts;
}

std::string broadcast_text(Communicator* group, std::string_view text) {
  if (alone(group)) return std::string(text);
  std::int64_t size = std::ssize(text);
  group->host_broadcast(std::span(&size, 1), 0);
  std::string all = group->rank() == 0 ? std::string(text) : std::string(static_cast<std::size_t>(size), ' ');
  if (size > 0) group->host_broadcast(std::span(all), 0);
  return all;
}

std::int64_t largest(Communicator* group, std::int64_t value) {
  return alone(group) ? value : group->host_all_reduce(value, Reduction::max);
}

void together(Communicator* group, const std::function<void()>& work) {
  if (alone(group)) return work();
  const Attempt own = attempt(work);
  const std::vector<std::string> failures = gather_texts(group, own.text);
  if (own.exception) std::rethrow_exception(own.exception);
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  if (first != failures.end()) throw_like(*first, cat("rank ", first - failures.begin(), ": "));
}

std::string text_of_rank_0(Communicator* group, const std::function<std::string()>& work) {
  if (alone(group)) return work();
  constexpr char success = ' ';
  Attempt own;
  if (group->rank() == 0) {
    std::string result;
    own = attempt([&] { result = work(); });
    if (!own.exception) own.text = success + result;
  }
  const std::string text = broadcast_text(group, own.text);
  if (own.exception) std::rethrow_exception(own.exception);
  if (text[0] != success) throw_like(text, "");
  return text.substr(1);
}

void on_rank_0(Communicator* group, const std::function<void()>& work) {
  text_of_rank_0(group, [&] {
    work();
    return std::string();
  });
}

}  // namespace nemocube
