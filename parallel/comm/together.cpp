#include "parallel/comm/together.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "core/error.h"

namespace nemocube {
namespace {

bool alone(const Communicator* group) { return !group || group->size() == 1; }

Tensor bytes_of(std::string_view text) {
  const Tensor bytes = Tensor::empty({static_cast<std::int64_t>(text.size())}, DType::u8, Device::cpu);
  if (!text.empty()) std::memcpy(bytes.host_bytes(), text.data(), text.size());
  return bytes;
}

std::string text_of(const Tensor& bytes) {
  const auto size = static_cast<std::size_t>(bytes.numel());
  return size == 0 ? "" : std::string(reinterpret_cast<const char*>(bytes.host_bytes()), size);
}

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

}  // namespace

std::vector<std::string> gather_texts(Communicator* group, std::string_view text) {
  if (alone(group)) return {std::string(text)};
  const Tensor size = Tensor::from<std::int64_t>({static_cast<std::int64_t>(text.size())}, {1});
  const Tensor sizes = Tensor::empty({group->size()}, DType::i64, Device::cpu);
  group->all_gather(sizes, size);
  const std::span<const std::int64_t> counts(sizes.data<std::int64_t>(),
                                             static_cast<std::size_t>(group->size()));
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<std::string> texts(counts.size());
  if (total == 0) return texts;
  const Tensor all = Tensor::empty({total}, DType::u8, Device::cpu);
  group->all_gather_v(all, bytes_of(text), counts);
  std::int64_t at = 0;
  for (std::size_t r = 0; r < counts.size(); at += counts[r++])
    texts[r] = text_of(all.narrow(0, at, counts[r]));
  return texts;
}

std::string broadcast_text(Communicator* group, std::string_view text) {
  if (alone(group)) return std::string(text);
  const Tensor size = Tensor::from<std::int64_t>({static_cast<std::int64_t>(text.size())}, {1});
  group->broadcast(size, 0);
  const Tensor bytes = group->rank() == 0
                           ? bytes_of(text)
                           : Tensor::empty({size.item<std::int64_t>()}, DType::u8, Device::cpu);
  if (bytes.numel() > 0) group->broadcast(bytes, 0);
  return text_of(bytes);
}

std::int64_t largest(Communicator* group, std::int64_t value) {
  if (alone(group)) return value;
  const Tensor t = Tensor::from<std::int64_t>({value}, {1});
  group->all_reduce(t, Reduction::max);
  return t.item<std::int64_t>();
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
