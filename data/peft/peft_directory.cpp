#include "data/peft/peft_directory.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "data/peft/stack_layout.h"

namespace nemocube {
namespace {

std::shared_ptr<const SafetensorsFile> open_tensors(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory / peft_tensors_name, error)) {
    const std::filesystem::path pickle = directory / "adapter_model.bin";
    require(
        !std::filesystem::exists(pickle, error), pickle.string(), ": want ", peft_tensors_name,
        " instead: reading a pickle file runs code from it. PEFT's save_pretrained() writes the other form");
  }
  return std::make_shared<const SafetensorsFile>(directory / peft_tensors_name);
}

/// Of an adapter with a pair for each expert, or two, of the halves of its rows.
Tensor stacked(const SafetensorsFile& file, const StoredAdapter& adapter, char factor) {
  const auto entry = [&](std::size_t i) -> const StoredTensor& {
    return factor == 'A' ? *adapter.pairs[i].a : *adapter.pairs[i].b;
  };
  const std::size_t of_each = adapter.pairs.size() / static_cast<std::size_t>(adapter.weight.experts);
  const bool halves = of_each == 2 && factor == 'B';
  const Tensor first = file.meta(entry(0));
  const std::int64_t rows = first.dim(0);
  const Tensor all = Tensor::empty({adapter.weight.experts, halves ? 2 * rows : rows, first.dim(1)},
                                   first.dtype(), Device::cpu);  // of the file
  for (std::size_t i = 0; i < adapter.pairs.size(); ++i) {
    const Tensor of_expert = all.select(static_cast<std::int64_t>(i / of_each));
    const auto half = static_cast<std::int64_t>(i % of_each);
    if (halves) {
      file.read(entry(i), 0, of_expert.narrow(0, half * rows, rows));
    } else if (half == 0) {
      file.read(entry(i), 0, of_expert);
    } else {
      const Tensor of_other = file.tensor(entry(i));
      require(std::memcmp(of_expert.address(), of_other.address(),
                          static_cast<std::size_t>(of_other.numel() * size_of(of_other.dtype()))) == 0,
              file.path().string(), ": ", entry(i - 1).name, " and ", entry(i).name,
              " differ; want the same, because both layers are one weight here");
    }
  }
  return all;
}

/// Of a stack of experts in one pair.
Tensor unstacked(const SafetensorsFile& file, const StoredAdapter& adapter, char factor) {
  const StoredPair& pair = adapter.pairs.front();
  if (adapter.layout == StackLayout::each) return file.tensor(factor == 'A' ? *pair.a : *pair.b);
  const std::int64_t experts = adapter.weight.experts;
  if (adapter.layout == StackLayout::current)
    return factor == 'A' ? split_rows(file.tensor(*pair.a), experts)
                         : split_columns(file.tensor(*pair.b), experts);
  // (B A)^T = A^T B^T
  return transpose_each(factor == 'A' ? split_columns(file.tensor(*pair.b), experts)
                                      : split_rows(file.tensor(*pair.a), experts));
}

Tensor read_factor(const SafetensorsFile& file, const StoredAdapter& adapter, char factor) {
  if (adapter.layout) return unstacked(file, adapter, factor);
  if (adapter.weight.experts > 0) return stacked(file, adapter, factor);
  const StoredPair& pair = adapter.pairs.front();
  return file.tensor(factor == 'A' ? *pair.a : *pair.b);
}
}  // namespace

PeftDirectory::PeftDirectory(const std::filesystem::path& directory, const ModelSetup& setup) {
  std::error_code error;
  require(std::filesystem::is_directory(directory, error), directory.string(),
          ": want a directory with an adapter (", peft_config_name, ", ", peft_tensors_name, ")");
  const PeftConfig peft = read_peft_config(directory);
  file_ = open_tensors(directory);
  stored_ = find_adapters(*file_, peft, setup);
  base_model_ = peft.base_model_name_or_path;
  adapters_.dropout = peft.dropout;
  adapters_.dropout_position = peft.dropout_position;
  adapters_.initialisation = peft.initialisation;
  for (const auto& [name, adapter] : stored_) {
    adapters_.modules.emplace(setup.config.names.find(name).value(), adapter.module);
    for (const StoredPair& pair : adapter.pairs)
      if (pair.a->dtype != "BF16" || pair.b->dtype != "BF16") adapters_.f32 = true;
  }
}

const LoraModule* PeftDirectory::find(std::string_view module) const {
  const auto found = stored_.find(module);
  return found == stored_.end() ? nullptr : &found->second.module;
}

std::vector<std::string> PeftDirectory::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [module, adapter] : stored_)
    for (const char factor : {'A', 'B'}) names.push_back(factor_name(module, factor));
  return names;
}

Tensor PeftDirectory::tensor(std::string_view name) const {
  const auto key = parse_peft_key(name);
  const auto found = key ? stored_.find(key->path) : stored_.end();
  expect(found != stored_.end(), file_->path().string(), ": no adapter tensor '", name, "'");
  return read_factor(*file_, found->second, key->factor);
}

}  // namespace nemocube
