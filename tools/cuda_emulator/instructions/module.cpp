#include "instructions/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "instructions/decode.h"
#include "ptx/parser.h"

namespace emulator {
namespace {

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text ? text : name;
  std::free(text);
  return result;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment) {
  alignment = std::max<std::uint64_t>(alignment, 1);
  return (value + alignment - 1) / alignment * alignment;
}

/// Calls f(name) for each symbol that an operand names.
template <class F>
void for_symbols(const ptx::Statement& statement, F&& f) {
  const auto scalar = [&](const ptx::Scalar& s) {
    if (const auto* use = std::get_if<ptx::SymbolUse>(&s)) f(use->name);
  };
  for (const ptx::Operand& operand : statement.operands) {
    if (const auto* s = std::get_if<ptx::Scalar>(&operand)) scalar(*s);
    if (const auto* a = std::get_if<ptx::Address>(&operand)) scalar(a->base);
    if (const auto* v = std::get_if<ptx::Vector>(&operand))
      for (const ptx::Scalar& element : v->elements) scalar(element);
  }
}

bool uses_special(const ptx::Statement& statement, std::string_view prefix) {
  for (const ptx::Operand& operand : statement.operands)
    if (const auto* s = std::get_if<ptx::Scalar>(&operand))
      if (const auto* use = std::get_if<ptx::SpecialUse>(s))
        if (use->name.starts_with(prefix)) return true;
  return false;
}

/// Functions whose address some program takes, by token; one list for the process.
struct Tokens {
  std::mutex mutex;
  std::deque<std::pair<const Function*, std::function<const Function*()>>> functions;
};
Tokens& tokens() {
  static Tokens& all = *new Tokens;  // never destroyed: kernels run until the process ends
  return all;
}

}  // namespace

struct Module::State {
  struct Unit {
    std::string text;
    ptx::Module source;
    std::map<std::string, const ptx::Function*, std::less<>> functions;  ///< definitions
    std::map<std::string, const ptx::Variable*, std::less<>>
        variables;  ///< .global, .const, .shared; declarations too
  };
  std::recursive_mutex mutex;
  int device = 0;
  std::vector<std::unique_ptr<Unit>> units;
  std::map<const ptx::Variable*, Allocation*> allocations;
  std::map<const ptx::Function*, std::unique_ptr<Function>> functions;
  std::set<const ptx::Function*> decoded;
  std::map<const ptx::Function*, std::uint64_t> function_token;
  std::map<const ptx::Function*, Unit*> unit_of;
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
  /// Places of shared variables. A gap follows each, so that an overrun is seen. Gaps are multiples of 128 bytes: banks
  /// and alignment are those of the layout without gaps.
  struct SharedLayout {
    std::map<const ptx::Variable*, std::uint32_t> offsets;
    std::uint32_t end = 0, gaps = 0;  ///< of the variables without gaps; bytes of gaps

    void align_next(std::uint32_t alignment) {
      constexpr std::uint32_t gap = 128;
      end = static_cast<std::uint32_t>(round_up(end, alignment));
      if (!offsets.empty()) gaps = static_cast<std::uint32_t>(round_up(gaps + gap, std::max(gap, alignment)));
    }
    void add(const ptx::Variable& v) {
      align_next(v.alignment);
      offsets.emplace(&v, end + gaps);
      end += static_cast<std::uint32_t>(v.bytes);
    }
  };
  SharedLayout common_shared;  ///< variables that functions other than kernels use

  /// The definition of a variable as a unit sees it: its own, else another unit's.
  const ptx::Variable* find_variable(const Unit& unit, std::string_view name) const {
    const ptx::Variable* declared = nullptr;
    if (const auto own = unit.variables.find(name); own != unit.variables.end()) {
      declared = own->second;
      if (!declared->external || declared->space == ptx::Space::shared) return declared;
    }
    for (const auto& other : units)
      if (const auto found = other->variables.find(name);
          found != other->variables.end() && !found->second->external)
        return found->second;
    return declared;
  }
  const ptx::Function* find_function(const Unit& unit, std::string_view name) const {
    if (const auto own = unit.functions.find(name); own != unit.functions.end()) return own->second;
    for (const auto& other : units)
      if (const auto found = other->functions.find(name);
          found != other->functions.end() && (found->second->visible || found->second->weak))
        return found->second;
    return nullptr;
  }
  Function& declared(const ptx::Function& source) {
    std::unique_ptr<Function>& function = functions[&source];
    if (!function) {
      function = std::make_unique<Function>();
      declare_function(*function, source, unit_of.at(&source)->source);
    }
    return *function;
  }
  std::uint64_t token(const ptx::Function& source) {
    std::uint64_t& value = function_token[&source];
    if (!value) {
      Tokens& all = tokens();
      const std::lock_guard lock(all.mutex);
      all.functions.emplace_back(nullptr, [this, s = &source] { return &decode_all(*s); });
      value = function_tokens + 16 * all.functions.size();
    }
    return value;
  }

  /// Names as one function of a unit sees them; remembers which functions it calls.
  struct View : Names {
    State& state;
    Unit& unit;
    const ptx::Function& function_of_view;
    std::vector<const ptx::Function*> called;
    View(State& s, Unit& u, const ptx::Function& f) : state(s), unit(u), function_of_view(f) {}

    Symbol symbol(std::string_view name) override {
      if (const ptx::Variable* v = state.find_variable(unit, name)) {
        if (v->space == ptx::Space::shared) return shared(*v);
        const auto found = state.allocations.find(v);
        if (found == state.allocations.end())
          throw std::runtime_error("no unit defines the variable " + std::string(name));
        return {Symbol::Kind::address, found->second->begin};
      }
      if (const ptx::Function* f = state.find_function(unit, name))
        return {Symbol::Kind::address, state.token(*f)};
      throw std::runtime_error("nothing has the name " + std::string(name));
    }
    Symbol shared_variable(std::string_view name) override {
      for (const ptx::Variable& v : function_of_view.variables)
        if (v.name == name) return shared(v);
      throw std::runtime_error("no shared variable " + std::string(name));
    }
    Symbol shared(const ptx::Variable& v) {
      if (v.external) return {Symbol::Kind::dynamic_shared, 0};
      return {Symbol::Kind::address, reserved_shared + state.shared_offset(v, function_of_view)};
    }
    const Function* function(std::string_view name) override {
      const ptx::Function* f = state.find_function(unit, name);
      if (!f) return nullptr;
      called.push_back(f);
      return &state.declared(*f);
    }
  };

  // Shared memory. Variables that device functions use have one place for all kernels of the module; those of one kernel
  // follow, or begin at 0 when the kernel reaches no such function.
  std::map<const ptx::Function*, SharedLayout> kernel_shared;

  std::uint32_t shared_offset(const ptx::Variable& v, const ptx::Function& user) {
    if (const auto common = common_shared.offsets.find(&v); common != common_shared.offsets.end())
      return common->second;
    return kernel_shared.at(&user).offsets.at(&v);
  }

  void collect(const ptx::Function& f, std::set<const ptx::Function*>& reached) const {
    if (!reached.insert(&f).second) return;
    const Unit& unit = *unit_of.at(&f);
    for (const ptx::Statement& s : f.statements)
      for_symbols(s, [&](const std::string& name) {
        if (const ptx::Function* g = find_function(unit, name)) collect(*g, reached);
      });
  }

  std::vector<const ptx::Variable*> shared_variables_of(const ptx::Function& f) const {
    std::vector<const ptx::Variable*> found;
    const auto add = [&](const ptx::Variable* v) {
      if (v && v->space == ptx::Space::shared && std::find(found.begin(), found.end(), v) == found.end())
        found.push_back(v);
    };
    std::set<std::string_view> own;
    for (const ptx::Variable& v : f.variables) {
      own.insert(v.name);
      add(&v);
    }
    const Unit& unit = *unit_of.at(&f);
    for (const ptx::Statement& s : f.statements)
      for_symbols(s, [&](const std::string& name) {
        if (!own.contains(name)) add(find_variable(unit, name));
      });
    return found;
  }

  void lay_out_common_shared() {
    for (const auto& unit : units)
      for (const auto& [name, f] : unit->functions) {
        if (f->entry) continue;
        for (const ptx::Variable* v : shared_variables_of(*f)) {
          if (!v->external && !common_shared.offsets.contains(v)) common_shared.add(*v);
        }
      }
  }

  void lay_out_shared(const ptx::Function& entry, const std::set<const ptx::Function*>& reached,
                      Kernel& kernel) {
    bool common = false;
    std::uint32_t dynamic_alignment = 16;
    for (const ptx::Function* f : reached)
      for (const ptx::Variable* v : shared_variables_of(*f)) {
        common = common || common_shared.offsets.contains(v);
        if (v->external) dynamic_alignment = std::max(dynamic_alignment, v->alignment);
      }
    SharedLayout& own = kernel_shared[&entry];
    if (common) own = common_shared;
    for (const ptx::Variable* v : shared_variables_of(entry))
      if (!v->external && !own.offsets.contains(v)) own.add(*v);
    kernel.static_shared = own.end;
    own.align_next(dynamic_alignment);
    kernel.dynamic_shared_offset = own.end + own.gaps;
    kernel.shared_gap_bytes = own.gaps;
    for (const auto& [v, offset] : own.offsets) {
      const std::uint32_t begin = offset + static_cast<std::uint32_t>(v->bytes);
      std::uint32_t end = kernel.dynamic_shared_offset;
      for (const auto& [other, at] : own.offsets)
        if (at >= begin) end = std::min(end, at);
      kernel.shared_gaps.push_back({reserved_shared + begin, reserved_shared + end, demangled(v->name),
                                    static_cast<std::uint32_t>(v->bytes)});
    }
  }

  /// Decodes a function and all it can call.
  const Function& decode_all(const ptx::Function& first) {
    const std::lock_guard lock(mutex);
    std::vector<const ptx::Function*> queue{&first};
    while (!queue.empty()) {
      const ptx::Function* source = queue.back();
      queue.pop_back();
      if (!decoded.insert(source).second) continue;
      View view(*this, *unit_of.at(source), *source);
      decode_function(declared(*source), view);
      queue.insert(queue.end(), view.called.begin(), view.called.end());
    }
    return declared(first);
  }

  Allocation* placed(std::string_view name) const {
    for (const auto& unit : units)
      if (const auto found = unit->variables.find(name); found != unit->variables.end())
        if (const auto at = allocations.find(found->second); at != allocations.end()) return at->second;
    return nullptr;
  }

  void place_variables(Module* other) {
    AddressSpace& space = AddressSpace::instance();
    for (const auto& unit : units)
      for (const ptx::Variable& v : unit->source.variables) {
        if (v.space == ptx::Space::shared || v.external) continue;
        if (v.managed && other) {
          allocations.emplace(&v, other->state_->placed(v.name));
          continue;
        }
        const AllocationKind kind = v.managed ? AllocationKind::managed : AllocationKind::variable;
        Allocation* allocation = space.allocate(kind, device, std::max<std::uint64_t>(v.bytes, 1),
                                                "variable " + demangled(v.name));
        if (!allocation) throw std::runtime_error("no device memory for the variable " + v.name);
        allocation->read_only = v.space == ptx::Space::constant;
        allocations.emplace(&v, allocation);
        std::byte* host = space.translate(allocation->begin, allocation->bytes).host;
        std::memset(host, 0, allocation->bytes);
        if (!v.initial.empty())
          std::memcpy(host, v.initial.data(), std::min<std::size_t>(v.initial.size(), v.bytes));
        space.mark_initialised(allocation->begin, allocation->bytes);
      }
    const ptx::Function no_function;
    for (const auto& unit : units)
      for (const ptx::Variable& v : unit->source.variables)
        for (const ptx::AddressSlot& slot : v.addresses) {
          if (v.space == ptx::Space::shared || v.external || (v.managed && other)) continue;
          View view(*this, *unit, no_function);
          const std::uint64_t value =
              (view.symbol(slot.symbol).value + static_cast<std::uint64_t>(slot.addend)) >> slot.shift;
          std::memcpy(space.translate(allocations.at(&v)->begin + slot.offset, slot.bytes).host, &value,
                      slot.bytes);
        }
  }
};

Module::Module(const std::vector<std::string>& texts, int device, Module* other)
    : state_(std::make_unique<State>()) {
  state_->device = device;
  for (const std::string& text : texts) {
    auto unit = std::make_unique<State::Unit>();
    unit->text = text;
    unit->source = ptx::parse(text);
    for (const ptx::Function& f : unit->source.functions) {
      if (!f.external) unit->functions.emplace(f.name, &f);
      state_->unit_of.emplace(&f, unit.get());
    }
    for (const ptx::Variable& v : unit->source.variables) {
      const auto [found, made] = unit->variables.emplace(v.name, &v);
      if (!made && found->second->external) found->second = &v;
    }
    state_->units.push_back(std::move(unit));
  }
  state_->place_variables(other);
  state_->lay_out_common_shared();
}

Module::~Module() {
  for (const auto& [variable, allocation] : state_->allocations)
    if (allocation->device == state_->device) AddressSpace::instance().free(*allocation);
}

const Kernel* Module::kernel(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  if (const auto found = state_->kernels.find(name); found != state_->kernels.end())
    return found->second.get();
  const ptx::Function* source = nullptr;
  for (const auto& unit : state_->units)
    if (const auto found = unit->functions.find(name); found != unit->functions.end() && found->second->entry)
      source = found->second;
  if (!source) return nullptr;
  auto kernel = std::make_unique<Kernel>();
  kernel->name = source->name;
  kernel->readable = demangled(source->name);
  kernel->unit_text = &state_->unit_of.at(source)->text;
  std::set<const ptx::Function*> reached;
  state_->collect(*source, reached);
  state_->lay_out_shared(*source, reached, *kernel);
  for (const ptx::Function* f : reached)
    for (const ptx::Statement& s : f->statements) {
      kernel->uses_grid_sync = kernel->uses_grid_sync || uses_special(s, "%envreg");
      const auto has = [&](std::string_view modifier) {
        return std::ranges::find(s.modifiers, modifier) != s.modifiers.end();
      };
      kernel->uses_async_proxy = kernel->uses_async_proxy || (s.opcode == "cp" && has("bulk"));
      kernel->launches_dependents =
          kernel->launches_dependents || (s.opcode == "griddepcontrol" && has("launch_dependents"));
    }
  const Function& function = state_->decode_all(*source);
  kernel->function = &function;
  kernel->parameters = function.parameters;
  if (!function.parameters.empty())
    kernel->parameter_bytes = function.parameters.back().offset + function.parameters.back().bytes;
  kernel->max_threads = source->max_threads;
  kernel->required_threads = source->required_threads;
  kernel->required_cluster = source->required_cluster;
  kernel->explicit_cluster = source->explicit_cluster;
  return state_->kernels.emplace(kernel->name, std::move(kernel)).first->second.get();
}

const Allocation* Module::variable(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  return state_->placed(name);
}

std::vector<std::string> Module::kernel_names() const {
  std::vector<std::string> names;
  for (const auto& unit : state_->units)
    for (const auto& [name, f] : unit->functions)
      if (f->entry) names.push_back(name);
  return names;
}

const Function* Module::function_at(std::uint64_t token) {
  Tokens& all = tokens();
  std::function<const Function*()> decode;
  const std::uint64_t index = (token - function_tokens) / 16;
  {
    const std::lock_guard lock(all.mutex);
    if ((token & window_mask) != function_tokens || token % 16 || index < 1 || index > all.functions.size())
      return nullptr;
    auto& [function, make] = all.functions[index - 1];
    if (function) return function;
    decode = make;
  }
  const Function* function = decode();
  const std::lock_guard lock(all.mutex);
  all.functions[index - 1].first = function;
  return function;
}

}  // namespace emulator
