#include "train/commands/inspect_checkpoint.h"

#include <iomanip>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/memory_limit.h"
#include "core/quote.h"
#include "data/json/json.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/contents.h"
#include "train/checkpoint/verify_files.h"
#include "train/logging/progress.h"

namespace nemocube {
namespace {

std::ostream& label(const char* text) { return std::cout << std::left << std::setw(12) << text; }

std::string shape_text(const CheckpointTensor& t) { return to_string(Shape(std::span(t.shape))); }

// "master 12 F32, 3 F64": what is in front of a name of the optimizer, and the dtypes. A weight has no kind.
std::string kinds_text(const std::vector<CheckpointTensor>& tensors, bool of_optimizer) {
  std::map<std::string, std::map<std::string, std::int64_t>> kinds;
  for (const CheckpointTensor& t : tensors)
    ++kinds[of_optimizer ? t.name.substr(0, t.name.find('.')) + " " : ""][t.dtype];
  std::string text;
  for (const auto& [kind, dtypes] : kinds)
    for (const auto& [dtype, count] : dtypes)
      text += cat(text.empty() ? "" : ", ", kind, count, " in ", dtype);
  return text;
}

void print_tensors(const char* what, const std::vector<CheckpointTensor>& tensors, bool each,
                   bool of_optimizer) {
  std::int64_t bytes = 0;
  for (const CheckpointTensor& t : tensors) bytes += t.bytes;
  label(what) << counted(std::ssize(tensors), "tensor") << ", " << bytes_text(bytes) << ": "
              << kinds_text(tensors, of_optimizer) << '\n';
  if (!each) return;
  for (const CheckpointTensor& t : tensors)
    std::cout << "  " << std::setw(72) << printable(t.name) << ' ' << std::setw(5) << t.dtype << std::setw(20)
              << shape_text(t) << ' ' << bytes_text(t.bytes)
              << (of_optimizer ? cat(", ", counted(t.parts, "part")) : "") << '\n';
}

void print_history(const CheckpointContents& c) {
  if (c.state)
    label("state") << counted(c.state->step, "step") << " done (" << c.state->skipped_steps
                   << " skipped), in epoch " << c.state->loader.epoch << "; "
                   << counted(c.state->samples, "sample") << '\n';
  if (c.state)
    label("written by") << (c.origin ? "nemocube " + printable(c.origin->program) : "an older program")
                        << ", on " << to_string(c.layout) << '\n';
  if (c.origin)
    label("serial") << c.origin->serial << ", "
                    << (c.origin->parent.empty() ? "the first of its run"
                                                 : "after " + printable(c.origin->parent))
                    << '\n';
  if (c.losses.is_object())
    for (const auto& item : c.losses.items())
      label("loss") << dump_json(item.value(), -1) << " on " << printable(item.key()) << '\n';
}

void print_files(const CheckpointContents& c) {
  std::int64_t bytes = 0;
  for (const CheckpointFile& file : c.files) bytes += file.bytes;
  label("files") << c.files.size() << ", " << bytes_text(bytes) << '\n';
  for (const CheckpointFile& file : c.files)
    std::cout << "  " << std::right << std::setw(7) << bytes_text(file.bytes) << "  " << printable(file.name)
              << (c.sums && file.name != checksums_file && !c.sums->contains(file.name) ? "  (no checksum)"
                                                                                        : "")
              << '\n';
}

Json tensors_json(const std::vector<CheckpointTensor>& tensors, bool of_optimizer) {
  Json list = Json::array();
  for (const CheckpointTensor& t : tensors) {
    list.push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}, {"bytes", t.bytes}});
    if (of_optimizer) list.back()["parts"] = t.parts;
  }
  return list;
}

Json layout_json(const RankLayout& layout) {
  const GridSizes& g = layout.grid;
  Json json{{"ranks", layout.ranks()},
            {"tp", g.tp},
            {"cp", g.cp},
            {"pp", g.pp},
            {"ep", g.ep},
            {"expt_tp", g.expt_tp},
            {"dp_shard", g.dp_shard},
            {"dp_replicate", g.dp_replicate},
            {"zero", static_cast<int>(layout.zero)}};
  if (g.first_rank > 0) json["first_rank"] = g.first_rank;
  return json;
}

void print_json(const std::filesystem::path& checkpoint, const CheckpointContents& c, bool verified,
                const std::vector<std::string>& wrong) {
  Json json{{"checkpoint", checkpoint.string()}};
  if (c.state) {
    json["steps"] = c.state->step;
    json["epoch"] = c.state->loader.epoch;
    json["samples"] = c.state->samples;
    json["skipped_steps"] = c.state->skipped_steps;
    json["layout"] = layout_json(c.layout);
  }
  if (c.origin)
    json["origin"] = {{"program", c.origin->program},
                      {"serial", c.origin->serial},
                      {"parent", c.origin->parent},
                      {"parent_steps", c.origin->parent_steps}};
  json["losses"] = c.losses.is_object() ? c.losses : Json::object();
  json["weights"] = tensors_json(c.weights, false);
  json["optimizer"] = tensors_json(c.optimizer, true);
  Json& files = json["files"] = Json::array();
  for (const CheckpointFile& file : c.files) files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  json["verified"] = verified;
  json["damage"] = wrong;
  std::cout << dump_json(json, -1) << '\n';
}

void print_text(const std::filesystem::path& checkpoint, const CheckpointContents& c, bool tensors) {
  label("checkpoint") << printable_message(checkpoint.string()) << '\n';
  print_history(c);
  print_tensors("weights", c.weights, tensors, false);
  print_tensors("optimizer", c.optimizer, tensors, true);
  print_files(c);
}

}  // namespace

void inspect_checkpoint(const CheckpointInspection& options) {
  const std::filesystem::path checkpoint = find_checkpoint(options.checkpoint);
  const CheckpointContents c = read_contents(checkpoint, options.verify);
  if (!options.json) print_text(checkpoint, c, options.tensors);
  std::cout.flush();
  const bool verified = options.verify && c.sums;
  std::vector<std::string> wrong;
  if (verified) {
    TaskProgress progress("checking files", "bytes");
    wrong = find_damage(checkpoint, *c.sums, nullptr, std::ref(progress));
  }
  const std::size_t damaged = wrong.size();
  wrong.insert(wrong.end(), c.faults.begin(), c.faults.end());
  if (options.json) {
    print_json(checkpoint, c, verified, wrong);
  } else {
    for (const std::string& text : wrong) std::cout << "wrong: " << printable_message(text) << '\n';
    if (verified && wrong.empty()) std::cout << "all " << c.sums->size() << " files intact\n";
    if (options.verify && !c.sums && wrong.empty())
      std::cout
          << "written without checksums: files cannot be checked for damage; headers and indices agree\n";
  }
  std::cout.flush();
  const std::string files =
      damaged > 0 ? cat(damaged, " of ", c.sums->size(), " files ", damaged == 1 ? "is" : "are", " damaged")
                  : cat(wrong.size(), wrong.size() == 1 ? " fault" : " faults");
  require(wrong.empty(), checkpoint.string(), ": ", files, "; the first: ", wrong.empty() ? "" : wrong[0]);
}

}  // namespace nemocube
