#pragma once
#include "core/kernel.h"
#include "ops/cross_entropy/cross_entropy.h"

/// Kernels of cross-entropy, for cross_entropy and linear_cross_entropy: arguments checked by the caller.
/// Labels are i64, one for each row of logits; column v of the logits is token begin + v.
namespace nemocube {

/// LogitOptions of the columns here, for kernels, which read logits z and work on z'.
struct LogitShape {
  Tensor bias;               ///< [columns], contiguous, in the accumulation dtype; undefined: none
  double soft_cap = 0;       ///< 0: none
  double z_loss_weight = 0;  ///< 0: none
  bool plain() const { return !bias && soft_cap == 0; }  ///< z' is z
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(bias);
  }
};
LogitShape logit_shape(const LogitOptions& options);

/// The scale with these factors of rows, which are undefined where they are 1.
GradScale with_weights(GradScale scale, const Tensor& weights);

/// What loss and gradient of each row need of its logits z over the whole vocabulary, in their accumulation
/// dtype. Zeros in rows without label.
struct RowStatistics {
  Tensor max;   ///< [rows]: the largest logit m
  Tensor sums;  ///< [rows, 2]: sum_v e^(z[v] - m), and z[label]
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(max);
    fn(sums);
  }
};
/// Sets `losses` [rows] f64 to the loss of each row of logits [rows, tokens of `part`], times its factor in
/// `scale` (GradScale::rows), and `dlogits`, where it is defined, to their gradient; zeros in rows without
/// label. `dlogits` may be `logits`, or bf16 for f32 logits. A cut vocabulary costs two messages, one for
/// each member of RowStatistics, and a third one for the gradient of a z loss; none when there are no rows.
/// `without_z`, where it is defined, gets the losses without the z loss and without factors.
void form_losses(const Tensor& losses, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                 const GradScale& scale, const VocabularyPart& part, const LogitShape& shape,
                 const Tensor& without_z = {});

namespace cpu {
/// logits = z'. The shape is not plain.
void shape_logits(const Tensor& logits, const LogitShape& shape);

/// The statistics of the columns here, whose sums are relative to their own maximum.
void column_statistics(const RowStatistics& statistics, const Tensor& logits, const Tensor& labels,
                       std::int64_t begin, const LogitShape& shape);
/// Makes sums that are relative to `own_max` relative to the maximum of the statistics.
void rescale_sums(const RowStatistics& statistics, const Tensor& own_max);

/// Sets `losses` [rows] f64 to the loss of each row, 0 for rows without label.
void row_losses(const Tensor& losses, const RowStatistics& statistics, const Tensor& labels);
/// losses [rows] f64 *= weights [rows] f64.
void weigh_losses(const Tensor& losses, const Tensor& weights);
/// loss [] = the sum of losses [rows] f64, added in f64 and rounded to the dtype of `loss`. Added in their
/// order; on CUDA as the sums of 512 interleaved sets of rows.
void sum_losses(const Tensor& loss, const Tensor& losses);

/// dlogits = scale (softmax - onehot), times the slope of the soft cap; rows without label are set to zero.
/// `dlogits` may be `logits`, or bf16 for f32 logits.
void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const RowStatistics& statistics,
                      const Tensor& labels, std::int64_t begin, const GradScale& scale,
                      const LogitShape& shape);

/// Losses and gradient at once, for rows that fit the cache of a CPU, over the whole vocabulary; zeros in
/// rows without label. `dlogits` may be `logits`, or bf16 for f32 logits.
void softmax_losses_and_gradient(const Tensor& dlogits, const Tensor& losses, const Tensor& logits,
                                 const Tensor& labels, const GradScale& scale, const LogitShape& shape);

/// first [rows] f64 = minus the first token of the columns here whose z' is the maximum of the statistics, so
/// that the first one of all ranks is the largest; -inf where there is none and in rows without label.
void first_of_max(const Tensor& first, const Tensor& logits, const RowStatistics& statistics,
                  const Tensor& labels, std::int64_t begin, const LogitShape& shape);
/// Adds w m^2 to the loss of each row with label. Where `dlogits` and `first` are defined, sets the gradient
/// of token -first, if it is a column here, to that of softmax_gradient() with 2 w m added to dz'.
void add_z_loss(const Tensor& losses, const Tensor& dlogits, const RowStatistics& statistics,
                const Tensor& first, const Tensor& labels, std::int64_t begin, const GradScale& scale,
                const LogitShape& shape);

/// dlogits *= dloss, of one element in their accumulation dtype. 1, which is usual, costs no pass over them.
void scale_gradient(const Tensor& dlogits, const Tensor& dloss);

/// `rows` ascend, and end with entries that are the number of rows of the batch, in places that are left.
/// to[i] = from[rows[i]]; the other rows of `to` are set to zero.
void gather_labelled(const Tensor& to, const Tensor& from, const Tensor& rows);
/// to[rows[i]] = from[i]; the other rows of `to` are set to zero.
void scatter_labelled(const Tensor& to, const Tensor& from, const Tensor& rows);
/// The number of rows that products over these gathered rows should have.
std::int64_t product_rows(const Tensor& rows);
}  // namespace cpu

inline const Kernel<cpu::shape_logits> shape_logits_kernel("cross_entropy/shape");
inline const Kernel<cpu::column_statistics> column_statistics("cross_entropy/statistics");
inline const Kernel<cpu::rescale_sums> rescale_sums("cross_entropy/rescale");
inline const Kernel<cpu::row_losses> row_losses("cross_entropy/losses");
inline const Kernel<cpu::weigh_losses> weigh_losses("cross_entropy/weigh");
inline const Kernel<cpu::sum_losses> sum_losses("cross_entropy/sum");
inline const Kernel<cpu::softmax_gradient> softmax_gradient("cross_entropy/gradient");
inline const Kernel<cpu::softmax_losses_and_gradient> softmax_losses_and_gradient(
    "cross_entropy/losses_and_gradient");
inline const Kernel<cpu::first_of_max> first_of_max("cross_entropy/first_of_max");
inline const Kernel<cpu::add_z_loss> add_z_loss("cross_entropy/add_z_loss");
inline const Kernel<cpu::scale_gradient> scale_gradient("cross_entropy/scale_gradient");
inline const Kernel<cpu::gather_labelled> gather_labelled("cross_entropy/fused/gather");
inline const Kernel<cpu::scatter_labelled> scatter_labelled("cross_entropy/fused/scatter");
inline const Kernel<cpu::product_rows> product_rows("cross_entropy/fused/product_rows");

}  // namespace nemocube
