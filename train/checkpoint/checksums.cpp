#include "train/checkpoint/checksums.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "data/files/regular_file.h"
#include "data/json/crc_text.h"
#include "data/json/json.h"
#include "train/checkpoint/verify_files.h"

namespace nemocube {

void write_checksums(const std::filesystem::path& checkpoint, const FileSums& sums) {
  Json files = Json::object();
  for (const auto& [name, sum] : sums) files[name] = {{"bytes", sum.bytes}, {"crc32c", crc_text(sum.crc32c)}};
  write_file_atomically(checkpoint / checksums_file, dump_json({{"crc32c", files}}) + "\n");
}

FileSums parse_checksums(std::string_view text, const std::filesystem::path& file) {
  const Json json = parse_json(text, file.string());
  const JsonView files = JsonView(json, file.string()).at("crc32c");
  if (!files.value().is_object()) files.refuse("an object");
  FileSums sums;
  for (const auto& item : files.value().items()) {
    const JsonView entry(item.value(), file.string(), "crc32c." + item.key());
    sums[item.key()] = {entry.at("bytes").integer(), parse_crc(entry.at("crc32c"))};
  }
  return sums;
}

std::optional<FileSums> read_checksums(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / checksums_file;
  if (!std::filesystem::exists(file)) return std::nullopt;
  return parse_checksums(read_text_file(file, JsonLimits{}.max_bytes), file);
}

std::string wrong_length(const std::filesystem::path& file, std::int64_t bytes, const FileSum& want) {
  return cat(file.string(), ": damaged: has ", bytes, " bytes, was written with ", want.bytes);
}

std::string wrong_crc(const std::filesystem::path& file, std::uint32_t crc32c, const FileSum& want) {
  return cat(file.string(), ": damaged: its CRC-32C is ", crc_text(crc32c), ", was written as ",
             crc_text(want.crc32c));
}

void check_sums(const std::filesystem::path& checkpoint, const FileSums& sums) {
  const std::vector<std::string> damage = find_damage(checkpoint, sums);
  require(damage.empty(), damage.empty() ? "" : damage[0]);
}

void add_file(const std::filesystem::path& checkpoint, const std::string& name, std::string_view text) {
  std::optional<FileSums> sums = read_checksums(checkpoint);
  if (std::error_code none; std::filesystem::exists(checkpoint / name, none)) {
    const bool summed = !sums || (sums->contains(name) && sums->at(name) == sum_of(text));
    if (summed && sum_of_file(checkpoint / name) == sum_of(text)) return;
  }
  if (sums && sums->erase(name) > 0) write_checksums(checkpoint, *sums);
  const FileSum sum = write_file_atomically(checkpoint / name, text);
  if (!sums) return;  // the checkpoint of a program that wrote none
  (*sums)[name] = sum;
  write_checksums(checkpoint, *sums);
}

}  // namespace nemocube
