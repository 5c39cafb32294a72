#include "train/model_io/adapter_io.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/host_wait.h"
#include "data/json/json.h"
#include "train/recipe/names.h"

namespace nemocube {
namespace {

Tensor host_empty(const Shape& shape, DType dtype) {
  return Tensor::empty(shape, dtype, Device::cpu);  // files are read and written in host memory
}

/// Calls fn(begin, end) for what is left of [begin, end) without the ascending ranges `gaps`.
template <class Fn>
void for_rest(std::int64_t begin, std::int64_t end, std::span<const Range> gaps, Fn&& fn) {
  for (const Range& gap : gaps) {
    if (gap.end <= begin || gap.begin >= end) continue;
    if (begin < gap.begin) fn(begin, gap.begin);
    begin = gap.end;
  }
  if (begin < end) fn(begin, end);
}

/// Copies the elements of `t` that this rank writes to their places in the whole tensor.
void put_own(std::byte* whole, const NamedTensor& t) {
  if (t.value.is_meta() || !t.counts) return;
  const Tensor elements = t.value.to(Device::cpu).reshape({-1});  // files are written from host memory
  const auto size = static_cast<std::size_t>(size_of(elements.dtype()));
  const auto* from = static_cast<const std::byte*>(elements.address());
  t.shard.value_or(Shard(t.value.shape()))
      .for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
        for_rest(local, local + count, t.counted_elsewhere, [&](std::int64_t begin, std::int64_t end) {
          std::memcpy(whole + static_cast<std::size_t>(global + begin - local) * size,
                      from + static_cast<std::size_t>(begin) * size,
                      static_cast<std::size_t>(end - begin) * size);
        });
      });
}

/// Ranks that have nothing of a tensor do not know its dtype.
DType common_dtype(const NamedTensor& t, Communicator* ranks) {
  const std::int64_t own = t.value.is_meta() ? -1 : static_cast<std::int64_t>(t.value.dtype());
  return static_cast<DType>(ranks ? ranks->host_all_reduce(own, Reduction::max) : own);
}

}  // namespace

void read_adapters(const PeftDirectory& directory, std::span<const NamedTensor> into) {
  for (const NamedTensor& t : into) {
    if (t.value.is_meta() || t.value.numel() == 0) continue;
    const Tensor whole = directory.tensor(t.name).to(t.value.dtype()).reshape({-1}),
                 own = host_empty({t.value.numel()}, t.value.dtype());
    t.shard.value_or(Shard(t.value.shape()))
        .for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
          own.narrow(0, local, count).copy_from(whole.narrow(0, global, count));
        });
    t.value.reshape({-1}).copy_from(own);
  }
}

std::vector<NamedTensor> gather_adapters(std::span<const NamedTensor> own, Communicator* ranks) {
  const HostWaitName name("snapshot");
  std::vector<NamedTensor> all;
  for (const NamedTensor& t : own) {
    const Shape& shape = t.global_shape();
    const DType dtype = common_dtype(t, ranks);
    // Sums of words with zeros keep every bit.
    const Tensor words = host_empty({(shape.numel() * size_of(dtype) + 7) / 8}, DType::i64);
    words.zero();
    put_own(static_cast<std::byte*>(words.address()), t);
    if (ranks) ranks->all_reduce(words);
    if (ranks && ranks->rank() > 0) {
      all.push_back({t.name, Tensor::meta(shape, dtype)});
      continue;
    }
    const Tensor whole = host_empty(shape, dtype);
    std::memcpy(whole.address(), words.address(), static_cast<std::size_t>(whole.bytes()));
    all.push_back({t.name, whole});
  }
  return all;
}

std::string automodel_peft_config(const PeftSection& peft) {
  const Json json{{"target_modules", peft.target_modules},
                  {"exclude_modules", peft.exclude_modules},
                  {"match_all_linear", peft.match_all_linear},
                  {"use_dora", false},
                  {"dropout", peft.dropout},
                  {"dropout_position", recipe::name_of_choice(peft.dropout_position)},
                  {"lora_A_init", recipe::name_of_choice(peft.initialisation)},
                  {"lora_dtype", peft.lora_dtype ? Json(std::string(name_of(*peft.lora_dtype))) : Json()},
                  {"moe_rank_scaling", peft.moe_rank_scaling && !peft.adapter_path}};
  return dump_json(json) + "\n";
}

}  // namespace nemocube
