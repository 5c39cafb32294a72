#include "data/peft/stored_adapters.h"

#include <algorithm>
#include <span>

#include "core/log.h"
#include "core/quote.h"
#include "data/hf/hf_weights.h"
#include "data/hf/name_list.h"

namespace nemocube {
namespace {

bool is_of_prediction(std::string_view path) { return path.starts_with("mtp."); }

bool is_float_tensor(const StoredTensor& tensor) {
  return tensor.dtype == "F32" || tensor.dtype == "BF16" || tensor.dtype == "F16" || tensor.dtype == "F64";
}

bool is_empty(const StoredTensor& tensor) { return std::ranges::find(tensor.shape, 0) != tensor.shape.end(); }

/// Whether A is [experts, r, in] and B [experts, out, r], with a rank of at least 1.
bool fits_each(const StoredPair& pair, const AdaptableWeight& stack) {
  const auto &a = pair.a->shape, &b = pair.b->shape;
  return a.size() == 3 && b.size() == 3 && a[0] == stack.experts && b[0] == stack.experts && a[1] > 0 &&
         b[2] == a[1] && a[2] == stack.in && b[1] == stack.out;
}

/// Whether A or B are one factor of all experts, [1, ...], where the other is of each.
bool shares_factor(const StoredPair& pair, const AdaptableWeight& stack) {
  const auto &a = pair.a->shape, &b = pair.b->shape;
  return stack.experts > 1 && a.size() == 3 && b.size() == 3 && (a[0] == 1 || b[0] == 1);
}

/// Whether A is [rows, a_width] and B [b_width, rows], with whole ranks of at least 1 for each expert.
bool fits(const StoredPair& pair, std::int64_t experts, std::int64_t a_width, std::int64_t b_width) {
  const auto &a = pair.a->shape, &b = pair.b->shape;
  return a.size() == 2 && b.size() == 2 && a[0] > 0 && a[0] % experts == 0 && a[1] == a_width &&
         b[0] == b_width && b[1] == a[0];
}

bool fits(const StoredPair& pair, const AdaptableWeight& stack, StackLayout layout) {
  return layout == StackLayout::current ? fits(pair, stack.experts, stack.in, stack.out)
                                        : fits(pair, stack.experts, stack.out, stack.in);
}

std::string describe(const StoredPair& pair) {
  return cat("lora_A is ", describe(*pair.a), ", lora_B ", describe(*pair.b));
}

/// Refuses tensors of kinds that LoraAdapters cannot say. `path`: without "base_model.model.".
void refuse_other_kinds(std::string_view path, const PeftConfig& peft, const std::string& file) {
  const auto refuse = [&](const char* why) {
    fail(file, ": tensor ", quote(path), ": ", why, "; want lora_A.weight and lora_B.weight alone");
  };
  const auto has = [&](std::string_view part) { return path.find(part) != path.npos; };
  if (has(".lora_magnitude_vector")) refuse("a magnitude of DoRA, which is not supported");
  if (has(".lora_embedding_")) refuse("an adapter of an embedding, which is not supported");
  if (path.ends_with(".lora_A.bias") || path.ends_with(".lora_B.bias"))
    refuse("a bias of an adapter (lora_bias), which is not supported");
  for (const std::string& saved : peft.modules_to_save)
    if (path.starts_with(cat(saved, '.')) || has(cat('.', saved, '.')))
      refuse("a trained copy of a module (modules_to_save), which is not supported");
  if (path.ends_with(".bias")) refuse("a trained bias, which is not supported");
}

class Finder {
 public:
  Finder(const SafetensorsFile& file, const PeftConfig& peft, const ModelSetup& setup)
      : file_(file),
        name_(file.path().string()),
        peft_(peft),
        names_(setup.config.names),
        weights_(adaptable_weights(setup)) {}

  StoredAdapters run() {
    for (const StoredTensor& tensor : file_.tensors()) take(tensor);
    for (const auto& [path, pair] : pairs_) {
      if (pair.a && pair.b)
        place(path, pair);
      else if (is_of_prediction(path))
        ++ignored_mtp_;
      else
        half_.add(excerpt(pair.a ? pair.a->name : pair.b->name));
    }
    for (const auto& [path, wrapped] : wrapped_) place_stacks(path, wrapped);
    for (const auto& [stack, parts] : experts_) join_experts(stack, parts);
    if (wrong_.text().empty() && half_.text().empty() && empty_.text().empty()) check_targets();
    for (const StoredTensor* copy : base_copies_) check_base_copy(*copy);
    const std::string trouble =
        tinker_.text() + unknown_.text() + half_.text() + wrong_.text() + empty_.text() + missing_.text();
    require(trouble.empty(), name_, ": the tensors are not those of an adapter of this model:", trouble);
    require(!found_.empty(), name_, ": want tensors of an adapter of this model, got none");
    warn();
    return std::move(found_);
  }

 private:
  struct Wrapped {
    const StoredPair *inner = nullptr, *outer = nullptr;  // of PATH.base_layer, of PATH
  };
  struct Part {
    std::string path;
    const StoredPair* pair;
  };
  using Experts = std::map<TensorPart, Part>;

  /// Copies of what an adapted layer has, which PEFT saves of lm_head.
  static constexpr std::string_view base_weight = ".base_layer.weight", base_bias = ".base_layer.bias";

  std::string canonical(std::string_view path) const { return canonical_module(path, names_); }

  void take(const StoredTensor& tensor) {
    if (auto key = parse_peft_key(tensor.name)) {
      const StoredTensor*& factor = pairs_[key->path].factor(key->factor);
      require(!factor, name_, ": tensors ", quote(factor ? factor->name : ""), " and ", quote(tensor.name),
              " are the same one under two names");
      factor = &tensor;
      return;
    }
    const std::string path = without_peft_prefix(tensor.name);
    if (is_of_prediction(path)) {
      ++ignored_mtp_;
      return;
    }
    if (path.ends_with(base_weight) || path.ends_with(base_bias)) {
      base_copies_.push_back(&tensor);
      return;
    }
    refuse_other_kinds(path, peft_, name_);
    unknown_.add(excerpt(tensor.name));
  }

  void place(const std::string& path, const StoredPair& pair) {
    const std::string module = canonical(path);
    if (is_empty(*pair.a) && is_empty(*pair.b)) return place_empty(path, pair);
    if (const auto weight = weights_.find(module); weight != weights_.end())
      return weight->second.experts == 0 ? add_linear(*weight, path, pair) : add_stack(*weight, path, pair);
    const CanonicalTensor slice = canonical_tensor(module + ".weight", names_.table());
    if (slice.part.expert >= 0 && weights_.contains(slice.name)) {
      const auto [same, added] = experts_[slice.name].emplace(slice.part, Part{path, &pair});
      if (!added) refuse_twice(same->second.pair->a->name, pair.a->name);
      return;
    }
    if (!stacks_of(module).empty()) {
      wrapped_[path].outer = &pair;
      return;
    }
    if (path.ends_with(wrapped_stack)) {
      std::string inside = path.substr(0, path.size() - wrapped_stack.size());
      if (!stacks_of(canonical(inside)).empty()) {
        wrapped_[std::move(inside)].inner = &pair;
        return;
      }
    }
    if (is_of_prediction(module)) {
      ignored_mtp_ += 2;
      return;
    }
    if (is_of_tinker(module)) return tinker_.add(cat(excerpt(path), ": ", describe(pair)));
    unknown_.add(excerpt(pair.a->name));
    unknown_.add(excerpt(pair.b->name));
  }

  /// Whether a module has a name by which Thinking Machines' Tinker knows a part of this model
  /// (weights/_merge_nemotron.py of tinker-cookbook): w1 and w2 for the stacks of experts, two parts of
  /// Mamba's in_proj, the head.
  bool is_of_tinker(const std::string& module) const {
    const std::size_t dot = module.rfind('.');
    const std::string last = module.substr(dot + 1), parent = dot == module.npos ? "" : module.substr(0, dot);
    if (last == "w1" || last == "w2" || last == "w3") return !stacks_of(parent).empty();
    if (last == "gate_proj" || last == "x_proj") return weights_.contains(parent + ".in_proj");
    return last == "unembed_tokens";
  }

  /// A pair without elements stands for a matrix that the model does not have, such as the gate of its
  /// experts. Of one that the model has, the elements are missing.
  void place_empty(const std::string& path, const StoredPair& pair) {
    const std::string module = canonical(path);
    const CanonicalTensor slice = canonical_tensor(module + ".weight", names_.table());
    const bool of_model =
        weights_.contains(module) || weights_.contains(slice.name) || !stacks_of(module).empty();
    if (of_model)
      empty_.add(cat(path, ": ", describe(pair)));
    else
      ignored_empty_.add(excerpt(path));
  }

  [[noreturn]] void refuse_twice(const std::string& one, const std::string& other) const {
    fail(name_, ": tensors ", quote(one), " and ", quote(other), " are of the same adapter");
  }

  /// The names of the stacks in a module with experts.
  std::vector<std::string> stacks_of(const std::string& module) const {
    std::vector<std::string> names;
    for (const std::string_view stack : expert_stacks)
      if (const auto weight = weights_.find(cat(module, '.', stack));
          weight != weights_.end() && weight->second.experts > 0)
        names.push_back(weight->first);
    return names;
  }

  /// `path`: for rank_pattern and alpha_pattern.
  LoraModule module_of(const std::string& path, std::int64_t rank, const AdaptableWeight& weight,
                       const StoredPair& pair) {
    const std::int64_t want = peft_.rank_of(path);
    const bool scaled = weight.experts > 0 && peft_.moe_rank_scaling && rank == want / weight.top_k;
    if (rank != want && !scaled)
      wrong_.add(cat(path, ": rank ", rank, ", want ", want, " by ", peft_config_name));
    for (const StoredTensor* tensor : {pair.a, pair.b})
      if (!is_float_tensor(*tensor))
        wrong_.add(cat(tensor->name, " is ", nemocube::describe(*tensor), ", want F32, BF16, F16 or F64"));
    return {rank, peft_.alpha_of(path), peft_.rank_stabilised};
  }

  void add(const std::string& name, StoredAdapter adapter) {
    const StoredPair pair = adapter.pairs.front();
    const auto [same, added] = found_.emplace(name, std::move(adapter));
    if (!added) refuse_twice(same->second.pairs.front().a->name, pair.a->name);
  }

  /// Whether a pair is that of a matrix [out, in].
  bool check_pair(const std::string& path, const StoredPair& pair, const AdaptableWeight& weight) {
    if (fits(pair, 1, weight.in, weight.out)) return true;
    wrong_.add(cat(path, ": ", describe(pair), ", want [r, ", weight.in, "] and [", weight.out, ", r]"));
    return false;
  }

  void add_linear(const AdaptableWeights::value_type& weight, const std::string& path,
                  const StoredPair& pair) {
    if (!check_pair(path, pair, weight.second)) return;
    add(weight.first,
        {weight.second, module_of(path, pair.a->shape[0], weight.second, pair), std::nullopt, {pair}});
  }

  /// A pair under the name of a stack itself.
  void add_stack(const AdaptableWeights::value_type& stack, const std::string& path, const StoredPair& pair) {
    const AdaptableWeight& weight = stack.second;
    if (!fits_each(pair, weight)) {
      if (shares_factor(pair, weight))
        return tinker_.add(cat(excerpt(path), ": ", describe(pair), ": a factor that all experts share"));
      wrong_.add(cat(path, ": ", describe(pair), ", want [", weight.experts, ", r, ", weight.in, "] and [",
                     weight.experts, ", ", weight.out, ", r]"));
      return;
    }
    add(stack.first, {weight, module_of(path, pair.a->shape[1], weight, pair), StackLayout::each, {pair}});
  }

  /// A stack and a layout that a pair can be of.
  struct Choice {
    const AdaptableWeights::value_type* stack;
    StackLayout layout;
  };
  std::vector<Choice> choices(const StoredPair& pair, std::span<const std::string> stacks) const {
    std::vector<Choice> possible;
    for (const std::string& name : stacks)
      for (const StackLayout layout : {StackLayout::current, StackLayout::peft_0_18})
        if (const auto& stack = *weights_.find(name); fits(pair, stack.second, layout))
          possible.push_back({&stack, layout});
    return possible;
  }

  /// Which of `stacks`, those of the module `path`, a pair adapts.
  void place_stack(const std::string& path, const StoredPair& pair, std::span<const std::string> stacks) {
    std::vector<Choice> possible = choices(pair, stacks);
    if (possible.empty()) {
      const AdaptableWeight& weight = weights_.at(stacks.front());
      wrong_.add(cat(pair.a->name, ": ", describe(pair), ", want the matrices of ", weight.experts,
                     " experts [", weight.out, ", ", weight.in, "]"));
      return;
    }
    const auto differs = [&](const Choice& c) { return c.layout != possible.front().layout; };
    if (std::ranges::any_of(possible, differs)) {
      require(peft_.layout.has_value(), name_, ": ", quote(pair.a->name), ": the shapes of lora_A ",
              nemocube::describe(*pair.a),
              " are those of PEFT 0.18 and of later releases, which lay experts out in "
              "different ways; want the release as 'peft_version' in ",
              peft_config_name);
      std::erase_if(possible, [&](const Choice& c) { return c.layout != *peft_.layout; });
    }
    require(possible.size() == 1, name_, ": ", quote(pair.a->name), ": ", describe(pair),
            ": cannot tell which stack of experts these adapt; want its name in 'target_parameters' of ",
            peft_config_name);
    const auto& [name, weight] = *possible.front().stack;
    const std::string full = cat(path, name.substr(name.rfind('.')));
    add(name, {weight,
               module_of(full, pair.a->shape[0] / weight.experts, weight, pair),
               possible.front().layout,
               {pair}});
  }

  void place_stacks(const std::string& path, const Wrapped& wrapped) {
    const std::vector<std::string> stacks = stacks_of(canonical(path));
    if (!wrapped.outer) {
      half_.add(cat(wrapped.inner->a->name, " (without those of ", path, ")"));
      return;
    }
    if (wrapped.inner) {
      expect(stacks.size() == 2, name_, ": stacks of experts of ", path);
      place_stack(path, *wrapped.inner, std::span(stacks).first(1));
      place_stack(path, *wrapped.outer, std::span(stacks).last(1));
      return;
    }
    place_stack(path, *wrapped.outer, named_targets(path, stacks));
  }

  /// Of the stacks in the module `path`, those that target_parameters names; all where it names none.
  std::vector<std::string> named_targets(const std::string& path, std::vector<std::string> stacks) const {
    if (peft_.target_parameters.empty()) return stacks;
    std::erase_if(stacks, [&](const std::string& stack) {
      const std::string full = cat('.', path, stack.substr(stack.rfind('.')));
      return std::ranges::none_of(peft_.target_parameters,
                                  [&](const std::string& t) { return full.ends_with(cat('.', t)); });
    });
    require(!stacks.empty(), name_, ": ", quote(path), " has tensors, but 'target_parameters' of ",
            peft_config_name, " names none of its stacks of experts");
    require(stacks.size() == 1, name_, ": ", quote(path), ": 'target_parameters' of ", peft_config_name,
            " names ", stacks.size(), " stacks of experts, but there are tensors of one");
    return stacks;
  }

  void join_experts(const std::string& stack, const Experts& parts) {
    const AdaptableWeight& weight = weights_.at(stack);
    StoredAdapter adapter{weight, {}, std::nullopt, {}};
    const bool halves = parts.begin()->first.half >= 0;
    for (std::int64_t e = 0; e < weight.experts; ++e) {
      const std::vector<std::string> paths =
          expert_paths(names_.table().class_name(stack), std::to_string(e));
      for (std::size_t i = 0; i < paths.size(); ++i)
        if (!parts.contains({e, halves ? static_cast<int>(i) : -1})) missing_.add(paths[i]);
    }
    AdaptableWeight layer = weight;
    if (halves) layer.out /= 2;
    for (const auto& [place, part] : parts) {
      if (place.expert >= weight.experts) {
        unknown_.add(part.pair->a->name);
        continue;
      }
      if (!check_pair(part.path, *part.pair, layer)) return;
      const LoraModule module = module_of(part.path, part.pair->a->shape[0], weight, *part.pair);
      if (adapter.pairs.empty()) adapter.module = module;
      const StoredPair& first = adapter.pairs.empty() ? *part.pair : adapter.pairs.front();
      if (module != adapter.module || part.pair->a->dtype != first.a->dtype ||
          part.pair->b->dtype != first.b->dtype)
        wrong_.add(cat(part.path, ": another rank, alpha or dtype than ", parts.begin()->second.path,
                       ", which is not supported"));
      adapter.pairs.push_back(*part.pair);
    }
    if (!adapter.pairs.empty()) add(stack, std::move(adapter));
  }

  /// Modules that the config names by their whole paths have tensors; a file of other modules would be read
  /// without a word.
  void check_targets() {
    for (const std::string& target : peft_.target_modules) {
      const std::string module = canonical(target);
      const CanonicalTensor place = canonical_tensor(module + ".weight", names_.table());
      const std::string& name = place.part.expert >= 0 ? place.name : module;
      if (place.part.expert < 0 && weights_.contains(name) && weights_.at(name).experts > 0) continue;
      if (weights_.contains(name) && !found_.contains(name)) missing_.add(target);
    }
    for (const std::string& target : peft_.target_parameters)
      if (const std::string name = canonical(target); weights_.contains(name) && !found_.contains(name))
        missing_.add(target);
  }

  void check_base_copy(const StoredTensor& copy) {
    const std::string path = without_peft_prefix(copy.name);
    const bool bias = path.ends_with(base_bias);
    const std::size_t ending = (bias ? base_bias : base_weight).size();
    const auto found = found_.find(canonical(path.substr(0, path.size() - ending)));
    if (found == found_.end()) {
      unknown_.add(excerpt(copy.name));
      return;
    }
    const AdaptableWeight& weight = found->second.weight;
    const std::vector want = bias ? std::vector{weight.out} : std::vector{weight.out, weight.in};
    if (copy.shape != want)
      wrong_.add(cat(copy.name, " is ", nemocube::describe(copy), ", want [", weight.out,
                     bias ? "" : cat(", ", weight.in), "]"));
  }

  void warn() const {
    if (ignored_mtp_ > 0)
      log_warning(name_, ": ", counted(ignored_mtp_, "tensor"),
                  " of multi-token prediction (mtp.) not read: it is not in use here");
    if (const std::string empty = ignored_empty_.text(); !empty.empty())
      log_warning(name_, ": pairs of lora_A and lora_B not read:", empty);
    if (!base_copies_.empty())
      log_warning(name_, ": ", counted(std::ssize(base_copies_), "copy", "copies"),
                  " of base weights not read (", base_copies_.front()->name, "): the model's own count");
  }

  const SafetensorsFile& file_;
  const std::string name_;
  const PeftConfig& peft_;
  const ModelNames& names_;
  const AdaptableWeights weights_;
  std::map<std::string, StoredPair> pairs_;  // by path
  std::map<std::string, Wrapped> wrapped_;
  std::map<std::string, Experts> experts_;  // by stack
  std::vector<const StoredTensor*> base_copies_;
  std::int64_t ignored_mtp_ = 0;
  StoredAdapters found_;
  NameList tinker_{
      "in the form of Tinker, which has other names and factors that experts share; "
      "tinker_cookbook.weights.build_lora_adapter() makes PEFT's form of them, which is read"};
  NameList unknown_{"that fit no module of the model"}, half_{"without the other of lora_A and lora_B"},
      wrong_{"of another shape, rank or dtype"}, missing_{"without tensors"},
      empty_{"without elements (was the adapter saved while its parts lay on several ranks?)"},
      ignored_empty_{"without elements that fit no module of the model"};
};
}  // namespace

StoredAdapters find_adapters(const SafetensorsFile& file, const PeftConfig& peft, const ModelSetup& setup) {
  return Finder(file, peft, setup).run();
}

}  // namespace nemocube
