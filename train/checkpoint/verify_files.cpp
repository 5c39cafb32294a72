#include "train/checkpoint/verify_files.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>

#include "core/parallel_for.h"
#include "core/range.h"
#include "data/files/crc32c.h"
#include "data/files/regular_file.h"
#include "data/json/json.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/checksums.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t taken_bytes = std::int64_t{16} << 20;  // by a thread at once
constexpr std::int64_t read_bytes = std::int64_t{1} << 20;    // still in the cache when the CRC is formed

struct SummedFile {
  fs::path path;
  FileSum want;
};

struct FilePiece {
  std::size_t file;
  std::int64_t begin, bytes;
  std::uint32_t crc32c = 0;
  std::string fault = {};  // why it could not be read
};

/// By number of the file.
using Faults = std::map<std::size_t, std::string>;

// Files that need not be read, as rank 0 sees their lengths, so that all ranks divide the same bytes.
Faults wrong_lengths(const std::vector<SummedFile>& files, Communicator* ranks) {
  const std::string text = text_of_rank_0(ranks, [&] {
    Json list = Json::array();
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto& [path, want] = files[i];
      try {
        const std::int64_t bytes = RegularFile(path).size();
        if (bytes != want.bytes) list.push_back({i, wrong_length(path, bytes, want)});
      } catch (const Error& e) {
        list.push_back({i, e.what()});
      }
    }
    return dump_json(list, -1);
  });
  Faults faults;
  for (const Json& entry : parse_json(text, "lengths of files")) faults.emplace(entry[0], entry[1]);
  return faults;
}

std::vector<FilePiece> pieces_of_rank(const std::vector<SummedFile>& files, const Faults& left_out, int rank,
                                      int ranks) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) total += left_out.contains(i) ? 0 : files[i].want.bytes;
  const auto [first, last] = even_part({0, total}, ranks, rank);
  std::vector<FilePiece> pieces;
  std::int64_t before = 0;  // bytes of earlier files
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (left_out.contains(i)) continue;
    const std::int64_t bytes = files[i].want.bytes, end = std::min(bytes, last - before);
    for (std::int64_t at = std::max<std::int64_t>(0, first - before); at < end; at += taken_bytes)
      pieces.push_back({i, at, std::min(taken_bytes, end - at)});
    before += bytes;
  }
  return pieces;
}

void sum_piece(FilePiece& piece, const fs::path& path, std::vector<std::byte>& buffer) {
  try {
    const RegularFile file(path);
    for (std::int64_t done = 0; done < piece.bytes; done += read_bytes) {
      const auto part =
          std::span(buffer).first(static_cast<std::size_t>(std::min(read_bytes, piece.bytes - done)));
      file.read_at(piece.begin + done, part);
      piece.crc32c = crc32c(part, piece.crc32c);
    }
  } catch (const Error& e) {
    piece.fault = e.what();
  }
}

void sum_pieces(std::vector<FilePiece>& pieces, const std::vector<SummedFile>& files,
                const OnBytes& on_bytes) {
  std::int64_t total = 0, done = 0;
  for (const FilePiece& piece : pieces) total += piece.bytes;
  std::atomic<std::size_t> next = 0;
  std::mutex reporting;
  const auto work = [&](std::int64_t, std::int64_t) {
    std::vector<std::byte> buffer(static_cast<std::size_t>(read_bytes));
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      sum_piece(pieces[i], files[pieces[i].file].path, buffer);
      const std::lock_guard lock(reporting);
      done += pieces[i].bytes;
      on_bytes(done, total);
    }
  };
  parallel_for(std::min<std::int64_t>(std::ssize(pieces), omp_get_max_threads()), 1, work);
}

// Of each file the sum of this rank's bytes: [number, bytes, CRC, fault].
std::string sums_text(const std::vector<FilePiece>& pieces) {
  Json list = Json::array();
  for (std::size_t i = 0; i < pieces.size();) {
    const std::size_t file = pieces[i].file;
    FileSum sum;
    std::string fault;
    for (; i < pieces.size() && pieces[i].file == file; ++i) {
      sum.crc32c = crc32c_combine(sum.crc32c, pieces[i].crc32c, static_cast<std::uint64_t>(pieces[i].bytes));
      sum.bytes += pieces[i].bytes;
      if (fault.empty()) fault = pieces[i].fault;
    }
    list.push_back({file, sum.bytes, sum.crc32c, fault});
  }
  return dump_json(list, -1);
}

}  // namespace

std::vector<std::string> find_damage(const fs::path& directory, const FileSums& sums, Communicator* ranks,
                                     const OnBytes& on_bytes) {
  std::vector<SummedFile> files;
  for (const auto& [name, sum] : sums) files.push_back({directory / name, sum});
  Faults faults = wrong_lengths(files, ranks);
  const Faults unread = faults;
  std::string own;
  const int size = ranks ? ranks->size() : 1;
  // Ranks have equal parts.
  const OnBytes of_all_ranks = [&](std::int64_t done, std::int64_t total) {
    if (on_bytes) on_bytes(done * size, total * size);
  };
  together(ranks, [&] {
    auto pieces = pieces_of_rank(files, unread, ranks ? ranks->rank() : 0, size);
    sum_pieces(pieces, files, of_all_ranks);
    own = sums_text(pieces);
  });
  std::vector<std::uint32_t> crcs(files.size(), 0);
  for (const std::string& text : gather_texts(ranks, own))
    for (const Json& part : parse_json(text, "sums of a rank")) {
      std::uint32_t& crc = crcs[part[0]];
      crc = crc32c_combine(crc, part[2], part[1]);
      if (const std::string fault = part[3]; !fault.empty()) faults.emplace(part[0], fault);
    }
  for (std::size_t i = 0; i < files.size(); ++i)
    if (crcs[i] != files[i].want.crc32c) faults.emplace(i, wrong_crc(files[i].path, crcs[i], files[i].want));
  std::vector<std::string> texts;
  for (auto& fault : faults) texts.push_back(std::move(fault.second));
  return texts;
}

}  // namespace nemocube
