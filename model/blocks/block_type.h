#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/blocks/block_kind.h"
#include "model/blocks/scan_words.h"
#include "model/side_rows.h"
#include "model/tensor_spec.h"

/// All that the program knows of a kind of block, in one place: its folder in model/blocks. docs/new_block.md
/// walks through one.
namespace nemocube {

struct BlockConfig;
struct MixerSources;
class Mixer;

/// A tensor of a block, by its name below the mixer (TensorName::member).
struct BlockTensor {
  std::string_view name;
  /// Absent: a block of this config has no such tensor.
  std::optional<Shape> (*shape)(const BlockConfig&);
  InitialLaw law;
  CutRule cut = {};
  bool keep_f32 = false, buffer = false, experts = false;  ///< see TensorSpec
  bool (*keep_f32_where)(const BlockConfig&) = nullptr;    ///< in the place of keep_f32: the config decides
  bool adaptable = true;  ///< false: no linear layer, though initialised as one (routers)
};

/// The module whose style counts for the tensor, below the block: CutRule::module, or the tensor's own.
std::string_view module_of(const BlockTensor& tensor);

/// TensorSpec::keep_f32 of the tensor in a block of this config.
inline bool keeps_f32(const BlockTensor& tensor, const BlockConfig& config) {
  return tensor.keep_f32_where ? tensor.keep_f32_where(config) : tensor.keep_f32;
}

/// For BlockTensor::shape: the shape of these sizes; nothing unless `has`.
template <class... Sizes>
std::optional<Shape> shape_of(Sizes... sizes) {
  return Shape{sizes...};
}
template <class... Sizes>
std::optional<Shape> shape_if(bool has, Sizes... sizes) {
  return has ? shape_of(sizes...) : std::nullopt;
}

/// Computations of a block that need tokens besides the row's own, or other devices than the row's.
/// Parallelism replaces or completes these cores, in any kind of block.
struct BlockCores {
  /// Softmax attention: context parallelism sends keys and values.
  struct Attention {
    std::int64_t heads, kv_heads, head_dim;
  };
  /// A scan with its convolution, of Mamba-2 or Gated DeltaNet: context parallelism deals heads; norm groups
  /// may span tensor-parallel ranks.
  struct Scan {
    std::int64_t heads, head_dim;  ///< of the values that the scan reads and returns
    /// Groups of B and C, or key heads of queries and keys, each shared by the heads of a group.
    std::int64_t groups, state_size;
    bool normed;                       ///< a norm of groups follows
    std::int64_t numbers_of_head = 1;  ///< that each head reads of a token beside its values: dt, or a and b
    ScanWords words = {};
  };
  /// Routed experts: rows go to the ranks of their experts and come back.
  struct Experts {
    std::int64_t count, top_k, width;  ///< the width of the rows that are sent
  };
  std::optional<Attention> attention = {};
  std::optional<Scan> scan = {};
  std::optional<Experts> experts = {};
};

/// A size of the config that the number of tensor-parallel ranks has to divide where `module` is cut; or, for
/// heads that ranks may share, has to divide or be a multiple of.
struct Division {
  const char* key;  ///< in config.json
  std::int64_t value;
  std::string_view module;  ///< below the block: "q_proj"
  SharedHeads shared = SharedHeads::none;
};

/// How many ranks divide the sizes of a block.
struct BlockDivisors {
  std::int64_t tp = 1, expert_tp = 1, ep = 1;
};

/// A size of a config in an estimate.
inline double real(std::int64_t size) { return static_cast<double>(size); }

/// Rows of one microbatch, evenly spread over ranks.
struct BlockRows {
  double tokens = 0;     ///< of the microbatch, on all ranks
  double sequences = 1;  ///< of the microbatch, on all ranks
  double cp = 1;         ///< context-parallel ranks that share the tokens
  double all = 0;        ///< of a rank, in layers that tensor parallelism cuts: tokens / cp
  double routed = 0;     ///< rows that a rank routes to experts: all / tp
  double stream = 0;  ///< rows of the residual stream on a rank: `routed` with sequence parallelism, or `all`
  double length = 0;  ///< tokens of a sequence
};

/// Bytes of tensors, in whole blocks of the allocator; numbers are rounded up.
struct TensorBytes {
  std::int64_t stored_size, wide_size;  ///< of a number in the dtype of the model, and in f32 (f64 for f64)
  std::int64_t stored(double numbers) const;  ///< in the dtype of the model
  std::int64_t wide(double numbers) const;    ///< in f32 (f64)
};

/// Bytes on a rank for one microbatch.
struct BlockMemory {
  std::int64_t kept = 0;      ///< from forward to backward, beside the residual stream
  std::int64_t backward = 0;  ///< the most that backward adds to the kept tensors
};

/// Receives the work of a block's passes over one microbatch, on one rank, kernel by kernel.
class BlockWork {
 public:
  enum class Part : std::uint8_t { products, experts, attention, scan, convolution };

  /// [rows, in] x [in, out] with `copies` weights of this size; backward has the two gradients.
  virtual void product(Part part, double rows, double in, double out, double copies = 1) = 0;
  /// Floating-point operations of the forward and of the backward pass.
  virtual void operations(Part part, double forward, double backward) = 0;
  /// Numbers in the dtype of the model that other kernels read or write.
  virtual void numbers(double forward, double backward) = 0;

 protected:
  ~BlockWork() = default;
};

/// A kind of block. One constant object of each derived class lives as long as the program; BlockKind refers
/// to it.
class BlockType {
 public:
  BlockType(const BlockType&) = delete;
  BlockType& operator=(const BlockType&) = delete;

  const char letter;             ///< in patterns such as "MEM*"
  const char* const name;        ///< in lists such as layers_block_type, and for people
  const char* const alias;       ///< another name in such lists, or null
  const char* const title;       ///< "a Mamba block"
  const double pipeline_weight;  ///< time relative to other kinds, where pipeline stages are cut by weight

  /// Throws Error naming the key where no block can be made from this config.
  virtual void validate(const BlockConfig& config) const = 0;
  /// In the order of files.
  virtual std::span<const BlockTensor> tensors() const = 0;
  /// `name`: of the mixer.
  virtual std::unique_ptr<Mixer> make(const MixerSources& sources, const TensorName& name) const = 0;

  /// The module that all rows of the residual stream enter. Tensor parallelism cuts the block where it cuts
  /// this module. Empty: none, each rank works on its rows of the residual stream, or routes rows of its own.
  virtual std::string_view entry(const BlockConfig& config) const = 0;
  /// The counts that the number of tensor-parallel ranks has to divide.
  virtual std::vector<Division> divisions(const BlockConfig& config) const = 0;
  virtual BlockCores cores(const BlockConfig&) const { return {}; }
  /// What block `block` of a model reads beside its rows of the residual stream.
  virtual std::vector<SideRows> side_rows(const BlockConfig&, std::int64_t /*block*/) const { return {}; }

  /// The work of a rank, where the usual plan of tensor parallelism cuts the block. Work beside the mixer is
  /// not counted.
  virtual void add_work(BlockWork& work, const BlockConfig& config, const BlockRows& rows,
                        const BlockDivisors& divisors) const = 0;
  /// The bytes that the mixer's operations keep according to their contracts (ops), in a block cut by the
  /// usual plan of tensor parallelism.
  virtual BlockMemory memory(const BlockConfig& config, const BlockRows& rows, const TensorBytes& bytes,
                             const BlockDivisors& divisors) const = 0;
  /// Bytes of the states and caches of sequences of up to `length` tokens that are generated at once.
  virtual std::int64_t decode_bytes(const BlockConfig&, const TensorBytes&, std::int64_t /*sequences*/,
                                    std::int64_t /*length*/) const {
    return 0;
  }

 protected:
  struct Facts {
    char letter;
    const char *name, *alias, *title;
    double pipeline_weight;
  };
  constexpr explicit BlockType(const Facts& f)
      : letter(f.letter), name(f.name), alias(f.alias), title(f.title), pipeline_weight(f.pipeline_weight) {}
  ~BlockType() = default;
};

/// A size that ranks divide, in an estimate: size / ranks, at least 1.
inline std::int64_t part_of_size(std::int64_t size, std::int64_t ranks) {
  return size / ranks > 0 ? size / ranks : 1;
}

}  // namespace nemocube
