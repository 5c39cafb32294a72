#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/peft/peft_config.h"
#include "data/peft/peft_names.h"
#include "data/safetensors/reader.h"

namespace nemocube {

/// The two matrices of a module in a file.
struct StoredPair {
  const StoredTensor *a = nullptr, *b = nullptr;
  const StoredTensor*& factor(char which) { return which == 'A' ? a : b; }
};

/// Where the adapter of a weight lies in a file.
struct StoredAdapter {
  AdaptableWeight weight;
  LoraModule module;
  std::optional<StackLayout> layout;  ///< of a stack of experts in one pair
  std::vector<StoredPair> pairs;      ///< one, or of each expert one or those of both halves of its rows
};
using StoredAdapters = std::map<std::string, StoredAdapter, std::less<>>;  ///< by canonical module name

/// Finds the adapter of every tensor. Warns of tensors of multi-token prediction that the model does not
/// have, and of whole base weights, which PEFT adds for lm_head: they are not read. Throws Error naming the
/// file where
///   - a tensor belongs to a method that LoraAdapters cannot express (DoRA, biases, adapted embeddings,
///     trained copies of modules),
///   - tensors fit no module of the model, or have other shapes, ranks or dtypes than the model and the
///     config ask for: one Error with the number of each kind and the first ten,
///   - the stack that a pair of tensors adapts, or the layout of the pair, is ambiguous.
StoredAdapters find_adapters(const SafetensorsFile& file, const PeftConfig& peft, const ModelSetup& setup);

}  // namespace nemocube
