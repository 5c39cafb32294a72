#include "data/safetensors/writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/host_wait.h"
#include "data/files/crc32c.h"
#include "data/json/json.h"
#include "data/safetensors/reader.h"
#include "parallel/comm/together.h"

namespace nemocube {

std::int64_t TensorSource::bytes() const {
  std::int64_t bits = stored_bits(dtype);
  expect(bits > 0, "tensor '", name, "' to be written as ", dtype);
  for (std::int64_t dim : shape) bits *= dim;
  return bits / 8;
}

std::int64_t TensorSource::piece_bytes() const {
  std::int64_t elements = 0;
  for (const TensorPiece& piece : pieces) elements += piece.count;
  return elements * stored_bits(dtype) / 8;
}

namespace {
/// Tells how far all ranks have come, from what this one has written of its share.
class WriteProgress {
 public:
  explicit WriteProgress(const OnBytes& on_bytes) : on_bytes_(on_bytes) {}
  void expects(std::span<const TensorSource> tensors) {
    for (const TensorSource& t : tensors) {
      total_ += t.bytes();
      share_ += t.piece_bytes();
    }
  }
  void wrote(std::int64_t bytes) {
    written_ += bytes;
    if (on_bytes_ && share_ > 0)
      on_bytes_(static_cast<std::int64_t>(static_cast<double>(total_) * static_cast<double>(written_) /
                                          static_cast<double>(share_)),
                total_);
  }

 private:
  const OnBytes& on_bytes_;
  std::int64_t total_ = 0, share_ = 0, written_ = 0;
};

/// Elements at once, where they are copied before they are written.
constexpr std::int64_t elements_at_once = 1 << 20;

/// Calls run(part) for parts of at most `elements_at_once`, or a row where rows are longer.
template <class Run>
void for_parts(const Tensor& value, Run&& run) {
  // Elements where they are neighbours, else rows.
  const Tensor entries =
      value.contiguous() ? value.reshape({-1}) : value.reshape({value.rows(), value.cols()});
  const std::int64_t step =
      std::max<std::int64_t>(1, elements_at_once / (value.contiguous() ? 1 : value.cols()));
  for (std::int64_t i = 0; i < entries.dim(0); i += step)
    run(entries.narrow(0, i, std::min(step, entries.dim(0) - i)));
}

void write_rows(const Tensor& value, const ByteSink& sink) {
  if (value.numel() == 0) return;
  if (!value.device().is_host()) {
    const HostWaitName name("saving");
    return for_parts(value, [&](const Tensor& part) { write_rows(part.to(Device::cpu), sink); });  // a file
  }
  const std::byte* data = value.host_bytes();
  const std::int64_t row = value.cols() * size_of(value.dtype());
  if (value.contiguous()) return sink({data, static_cast<std::size_t>(value.bytes())});
  for (std::int64_t r = 0; r < value.rows(); ++r)
    sink({data + r * value.row_stride() * size_of(value.dtype()), static_cast<std::size_t>(row)});
}

void write_converted(const Tensor& value, DType stored, const ByteSink& sink) {
  if (value.numel() == 0) return;
  for_parts(value, [&](const Tensor& part) { write_rows(part.to(stored), sink); });
}
}  // namespace

TensorPiece piece_of(const Tensor& value, DType stored, std::int64_t first) {
  return {first, value.numel(), [value, stored](const ByteSink& sink) {
            if (value.dtype() == stored)
              write_rows(value, sink);
            else
              write_converted(value, stored, sink);
          }};
}

TensorSource source_of(std::string name, const Tensor& value, DType stored) {
  expect(value.defined(), "undefined tensor '", name, "' to be written");
  const auto dims = value.shape().dims();
  return {std::move(name),
          std::string(stored_name(stored)),
          {dims.begin(), dims.end()},
          {piece_of(value, stored)}};
}

namespace {
std::vector<StoredTensor> lay_out(const std::vector<TensorSource>& tensors, const std::string& file) {
  std::vector<StoredTensor> entries;
  std::vector<std::string_view> names;
  std::int64_t next = 0;
  for (const TensorSource& t : tensors) {
    entries.push_back({t.name, t.dtype, t.shape, next, next + t.bytes()});
    names.push_back(t.name);
    next = entries.back().end;
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  require(twice == names.end(), file, ": two tensors with the name '", twice == names.end() ? "" : *twice,
          "'");
  return entries;
}

// Writes the pieces that this rank has of one tensor, whose bytes begin at `begin` of the file.
void write_pieces(FilePart& file, const TensorSource& tensor, std::int64_t begin, const std::string& path,
                  WriteProgress& progress) {
  const int bits = stored_bits(tensor.dtype);
  for (const TensorPiece& piece : tensor.pieces) {
    file.seek(begin + piece.first * bits / 8);
    piece.write([&](std::span<const std::byte> bytes) {
      file.write(bytes);
      progress.wrote(std::ssize(bytes));
    });
    expect(file.position() == begin + (piece.first + piece.count) * bits / 8, path, ": tensor '", tensor.name,
           "': the piece of elements [", piece.first, ", ", piece.first + piece.count,
           ") wrote another number of bytes");
  }
}

// What each rank has written, after the header that each has computed: rows of begin, bytes and CRC.
using Segments = std::vector<std::vector<FilePart::Segment>>;
Segments gather_segments(Communicator* group, const FileSum& header, const FilePart& file) {
  std::vector<FilePart::Segment> own{{0, header}};
  own.insert(own.end(), file.segments().begin(), file.segments().end());
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof own[0]);
  Segments all;
  for (const std::string& text : gather_texts(group, bytes)) {
    auto& segments = all.emplace_back(text.size() / sizeof own[0]);
    std::memcpy(segments.data(), text.data(), text.size());
  }
  return all;
}

// The sum of the whole file, which the segments must tile.
FileSum combine(const Segments& of_ranks, const std::vector<StoredTensor>& entries, const std::string& path) {
  const FileSum header = of_ranks[0][0].sum;
  std::vector<FilePart::Segment> segments;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    expect(of_ranks[r][0].sum == header, path, ": rank ", r, " writes other tensors than rank 0");
    segments.insert(segments.end(), of_ranks[r].begin() + 1, of_ranks[r].end());
  }
  std::ranges::sort(segments, {}, &FilePart::Segment::begin);
  const std::int64_t end = header.bytes + (entries.empty() ? 0 : entries.back().end);
  const auto wrong = [&](std::int64_t at, const char* what) {
    const auto in =
        std::ranges::find_if(entries, [&](const StoredTensor& t) { return at - header.bytes < t.end; });
    expect(in != entries.end(), path, ": bytes from ", at, " on are behind the last tensor");
    expect(false, path, ": tensor '", in->name, "': element ",
           (at - header.bytes - in->begin) * 8 / stored_bits(in->dtype), " is written by ", what);
  };
  FileSum sum = header;
  for (const FilePart::Segment& s : segments) {
    if (s.begin > sum.bytes) wrong(sum.bytes, "no rank");
    if (s.begin < sum.bytes) wrong(s.begin, "two ranks");
    sum.crc32c = crc32c_combine(sum.crc32c, s.sum.crc32c, static_cast<std::uint64_t>(s.sum.bytes));
    sum.bytes += s.sum.bytes;
  }
  if (sum.bytes != end) wrong(std::min(sum.bytes, end), "no rank");
  return sum;
}

FileSum write_file(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                   const SafetensorsMetadata& metadata, Communicator* group, WriteProgress& progress) {
  std::ranges::sort(tensors, {},
                    [](const TensorSource& t) { return std::pair(-stored_bits(t.dtype), t.name); });
  const std::vector<StoredTensor> entries = lay_out(tensors, path.string());
  const std::string header = format_safetensors_header(entries, metadata);
  const FileSum header_sum = sum_of(header);

  std::optional<AtomicFile> file;  // on rank 0
  const std::string temporary = text_of_rank_0(group, [&] {
    file.emplace(path);
    file->write(header);
    return file->temporary().string();
  });
  std::optional<FilePart> part;
  together(group, [&] {
    part.emplace(temporary, path);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      write_pieces(*part, tensors[i], header_sum.bytes + entries[i].begin, path.string(), progress);
      tensors[i].pieces.clear();  // releases the tensors that the callbacks hold
    }
    part->sync();
  });
  const FileSum sum = combine(gather_segments(group, header_sum, *part), entries, path.string());
  on_rank_0(group, [&] { file->commit(); });
  return sum;
}
}  // namespace

FileSum write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                          const SafetensorsMetadata& metadata, Communicator* group, const OnBytes& on_bytes) {
  WriteProgress progress(on_bytes);
  progress.expects(tensors);
  return write_file(path, std::move(tensors), metadata, group, progress);
}

FileShards plan_shards(std::vector<TensorSource> tensors, std::int64_t most_bytes) {
  std::vector<std::vector<TensorSource>> shards(1);
  std::int64_t filled = 0;
  for (TensorSource& t : tensors) {
    const std::int64_t bytes = t.bytes();
    if (most_bytes > 0 && !shards.back().empty() && filled + bytes > most_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(t));
  }
  FileShards files;
  if (shards.size() == 1) {
    files[single_file_name] = std::move(shards[0]);
    return files;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    files[name] = std::move(shards[i]);
  }
  return files;
}

FileSums write_safetensors_model(const std::filesystem::path& directory, FileShards files,
                                 Communicator* group, const OnBytes& on_bytes) {
  WriteProgress progress(on_bytes);
  for (const auto& [file, tensors] : files) progress.expects(tensors);
  std::map<std::string, std::string> places;
  std::int64_t total = 0;
  for (const auto& [file, tensors] : files)
    for (const TensorSource& t : tensors) {
      const bool added = places.emplace(t.name, file).second;
      require(added, directory.string(), ": two tensors with the name '", t.name, "'");
      total += t.bytes();
    }
  FileSums sums;
  for (auto& [file, tensors] : files)
    sums[file] = write_file(directory / file, std::move(tensors), pytorch_metadata, group, progress);
  if (files.size() == 1 && files.begin()->first == single_file_name) return sums;
  Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  Json::object_t& map = index["weight_map"].get_ref<Json::object_t&>();
  for (const auto& [name, file] : places)
    static_cast<Json::object_t::Container&>(map).emplace_back(name, file);
  sums[index_file_name] = write_file_atomically(directory / index_file_name, dump_json(index) + "\n", group);
  return sums;
}

}  // namespace nemocube
