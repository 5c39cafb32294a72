#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/files/file_sum.h"
#include "ops/cross_entropy/cross_entropy.h"

/// Data sets: numbered rows of token ids with labels. Data sets shift the labels, and no later stage does:
/// the label at position t is the target of the logits at position t.
namespace nemocube {

/// One row. Content comes first; the padding of a fixed-length row comes last, with the label ignored_label.
struct Sample {
  std::string id;
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> labels;   ///< as many as input_ids
  std::vector<std::int64_t> lengths;  ///< of the documents in the row (a packed row has several)

  std::int64_t positions() const { return static_cast<std::int64_t>(input_ids.size()); }
  std::int64_t content_length() const;  ///< positions that are not padding: the sum of `lengths`
  std::int64_t label_tokens() const;    ///< labels that are targets
};

/// Throws std::logic_error unless the lengths fit, no label lies in padding and no document is empty.
void check_sample(const Sample& sample);

/// A file that rows are made of.
struct DataFile {
  std::filesystem::path path;
  FileSum
      sum;  ///< of the contents, formed in the pass that reads them; or sampled_sum() of Megatron's .bin file
};

/// Many threads may call const members at once.
class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  /// Row i in file order. pre: 0 <= i < size()
  virtual Sample sample(std::int64_t i) const = 0;
  /// sample(i).content_length()
  virtual std::int64_t content_length(std::int64_t i) const { return sample(i).content_length(); }
  /// Whether sample() is so slow that it is worth calling ahead of time, beside other work.
  virtual bool made_on_demand() const { return false; }
  /// The id that fills padding. Any id will do, since nothing reads padding.
  virtual std::int64_t pad_id() const { return 0; }
  /// The files of the rows, in the order in which they were read.
  virtual std::vector<DataFile> files() const { return {}; }

 protected:
  void check_index(std::int64_t i) const {
    expect(0 <= i && i < size(), "row ", i, " of a data set of ", size());
  }
};

}  // namespace nemocube
