#include "train/checkpoint/contents.h"

#include <algorithm>
#include <array>
#include <map>

#include "data/files/link.h"
#include "data/hf/hf_config.h"
#include "data/hf/hub_cache.h"
#include "data/peft/peft_directory.h"
#include "data/safetensors/reader.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/intact.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/checkpoint/part_cover.h"
#include "train/model_io/base_model.h"
#include "train/model_io/find_model.h"
#include "train/model_io/model_io.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

class ContentsReader {
 public:
  ContentsReader(const fs::path& checkpoint, bool compare) : checkpoint_(checkpoint), compare_(compare) {}

  CheckpointContents read() {
    attempt([&] { read_files(); });
    attempt([&] { read_state(); });
    attempt([&] {
      if (const fs::path file = checkpoint_ / "losses.json"; fs::exists(file))
        out_.losses = read_json_file(file);
    });
    attempt([&] { read_weights(); });
    attempt([&] { read_optimizer(); });
    return std::move(out_);
  }

 private:
  template <class Fn>
  void attempt(Fn&& work) {
    try {
      work();
    } catch (const fs::filesystem_error& e) {
      out_.faults.push_back(cat(e.path1().string(), ": cannot be read: ", e.code().message()));
    } catch (const Error& e) {
      out_.faults.emplace_back(e.what());
    }
  }

  void read_files() {
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint_))
      if (entry.is_regular_file())
        out_.files.push_back({entry.path().lexically_relative(checkpoint_).string(),
                              static_cast<std::int64_t>(entry.file_size())});
    std::ranges::sort(out_.files, {}, &CheckpointFile::name);
    out_.sums = want_checksums(checkpoint_);
  }

  void read_state() {
    const fs::path file = checkpoint_ / "state.json";
    out_.state = read_run_state(file);
    out_.origin = read_origin(file);
    out_.layout = read_rank_layout(file);
  }

  void read_weights() {
    if (fs::exists(checkpoint_ / "model" / peft_config_name)) return read_adapters();
    for (const auto& [name, stored] : open_safetensors_model(checkpoint_ / "model"))
      out_.weights.push_back({name, stored.entry->dtype, stored.entry->shape, stored.entry->bytes()});
    const OpenedModel model(checkpoint_ / "model");
    const ModelSetup setup(model.config());
    for (const auto& specs : {tensor_specs(setup), mtp_tensor_specs(setup)})
      for (const TensorSpec& spec : specs) shapes_.emplace(spec.name, spec.shape);
    check_model_files(model.weights(), setup);
    if (std::string fault = fault_of_frozen_base(checkpoint_ / "model"); !fault.empty())
      out_.faults.push_back(std::move(fault));
  }

  void read_adapters() {
    const fs::path directory = checkpoint_ / "model";
    const SafetensorsFile file(directory / peft_tensors_name);
    for (const StoredTensor& t : file.tensors())
      out_.weights.push_back({t.name, t.dtype, t.shape, t.bytes()});
    const std::optional<fs::path> named = base_of_adapter(directory);
    const fs::path base = named ? path_or_cached(*named, HubKind::model) : fs::path();
    if (base.empty() || !fs::exists(base / "config.json")) return;  // shapes follow from the model
    attempt([&] { want_base_of_adapter(directory, base); });
    ModelSetup setup = with_stored_mtp(read_hf_config(base));
    setup.choices.lora = PeftDirectory(directory, setup).adapters();
    for (const TensorSpec& spec : tensor_specs(setup)) shapes_.emplace(spec.name, spec.shape);
  }

  void read_optimizer() {
    const StoredOptimizer stored(checkpoint_ / "optim");
    for (const auto& [name, entry] : stored.tensors()) {
      const auto dims = entry.shape.dims();
      out_.optimizer.push_back({name,
                                entry.dtype,
                                {dims.begin(), dims.end()},
                                entry.shape.numel() * stored_bits(entry.dtype) / 8,
                                std::ssize(entry.parts)});
      if (!shapes_.empty()) check_weight(name, entry.shape);
    }
    for (const std::string& fault : cover_faults(stored, compare_))
      out_.faults.push_back(cat((checkpoint_ / "optim").string(), ": ", fault));
  }

  // "exp_avg.NAME" has the shape of the weight NAME.
  void check_weight(const std::string& name, const Shape& shape) {
    const auto weight = shapes_.find(name.substr(name.find('.') + 1));
    const std::string what = cat((checkpoint_ / "optim").string(), ": '", name, "' ", shape, ": ");
    if (weight == shapes_.end())
      out_.faults.push_back(what + "the model has no such weight");
    else if (weight->second != shape)
      out_.faults.push_back(cat(what, "the weight has the shape ", weight->second));
  }

  fs::path checkpoint_;
  bool compare_;
  CheckpointContents out_;
  std::map<std::string, Shape> shapes_;  // of the weights
};

bool is_part_of_checkpoint(const fs::path& directory) {
  std::error_code none;
  return std::ranges::any_of(std::array{"state.json", checksums_file, "optim", "model"},
                             [&](const char* name) { return fs::exists(directory / name, none); });
}

}  // namespace

CheckpointContents read_contents(const fs::path& checkpoint, bool compare) {
  return ContentsReader(checkpoint, compare).read();
}

fs::path find_checkpoint(fs::path named) {
  std::error_code error;
  if (!named.has_filename()) named = named.parent_path();  // DIR/
  named = through_links(named);
  const auto status = fs::status(named, error);
  require(fs::is_directory(status), named.string(), ": want the directory of a checkpoint or of a run, ",
          fs::exists(status) ? "got a file" : "there is none");
  // A run's directory may also hold a folder `model` that is no checkpoint's.
  const bool has_latest = fs::exists(fs::symlink_status(named / "LATEST", error)) &&
                          !fs::exists(named / "state.json", error) &&
                          !fs::exists(named / checksums_file, error);
  const fs::path link = is_part_of_checkpoint(named) && !has_latest ? named : named / "LATEST";
  const fs::path target = linked_name(link);
  const fs::path found = target.empty() ? link : link.parent_path() / target;
  require(is_part_of_checkpoint(found), named.string(),
          ": holds no checkpoint: there is neither state.json nor LATEST/state.json");
  return found;
}

}  // namespace nemocube
