#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "ops/adamw/adamw.h"
#include "ops/sgd/sgd.h"
#include "ops/update_gate.h"
#include "train/recipe/choices.h"

namespace nemocube {

/// The operation that an optimizer runs: "adamw" or "sgd".
std::string_view operation_of(OptimizerKind kind);

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  ///< adamw, adam
  double momentum = 0;                            ///< sgd
  bool nesterov = false;                          ///< sgd
};

/// Factors on the scheduled learning rate and weight decay of one parameter.
struct GroupFactors {
  double lr = 1, weight_decay = 1;
};
using GroupRule = std::function<GroupFactors(const Parameter&)>;

/// A named piece of training state, in the order of the parameters.
struct StateTensor {
  std::string name;  ///< "exp_avg.<parameter>", "exp_avg_sq.<parameter>", "momentum.<parameter>",
                     ///< "master.<parameter>"
  Tensor value;
  Shard shard;  ///< of the state of the global parameter
};

/// Updates this process's own part of every trainable parameter from its accumulated gradient.
/// Moments and masters are f32 (f64 for f64 models). A parameter stored in bf16 has an f32
/// master; any other parameter is its own master.
class Optimizer {
 public:
  /// Allocates the state; masters start as copies of the parameters, so load the weights first.
  Optimizer(ParameterStore& store, const OptimizerOptions& options, const GroupRule& rule = {});

  /// Brings the numbers of the next step to the device: the scheduled `lr` and `weight_decay`, and factors
  /// that follow from the number of steps.
  void prepare(double lr, double weight_decay);
  /// One step as it was prepared, behind `gate`. Its `finite` has one element for each parameter of the whole
  /// model, which becomes 0 where a new weight, master or moment of the parameter is not finite. A parameter
  /// that got no gradient has gradient zero. The caller, who learns later whether the gate was open, then
  /// counts the step with count_step().
  void step(const UpdateGate& gate);
  void count_step() { ++steps_; }

  /// The masters become copies of the weights, as in a new optimizer.
  void take_weights();

  std::vector<Tensor> gradients() const;  ///< Parameter::gradient() of the trainable parameters
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  std::vector<StateTensor> state() const;  ///< shares memory with the optimizer: write into it to load

 private:
  struct Slot {
    Parameter* parameter;
    GroupFactors factors;
    Tensor master;         // Parameter::own itself unless it is bf16
    Tensor first, second;  // exp_avg and exp_avg_sq, or the momentum buffer alone
  };
  static Tensor copy_of(const Slot& slot);  // in bf16, undefined where the master is the parameter
  SgdOptions sgd_options() const;
  AdamWOptions adamw_options() const;
  void step_sgd(const UpdateGate& gate);
  void step_adamw(const UpdateGate& gate);

  OptimizerOptions options_;
  std::vector<Slot> slots_;
  Tensor schedule_;  // of the operation: the numbers of the step
  std::int64_t steps_ = 0;
};

}  // namespace nemocube
