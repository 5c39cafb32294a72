#include "data/chat/jinja/scopes.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/quote.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/names.h"
#include "data/chat/jinja/value_tests.h"

namespace nemocube::jinja {

namespace {

/// The variables of one scope while the compiler learns about them (Jinja's idtracking.Symbols).
class Symbols {
 public:
  explicit Symbols(const Symbols* parent) : parent_(parent) {}

  void load(const std::string& name) {
    if (!find(name)) define(name, {name, Variable::Begin::context, {}});
  }

  void store(const std::string& name) {
    const bool known = variables_.contains(name);
    note(name);
    stored_.insert(name);
    if (!known) define_from_outside(name, Variable::Begin::nothing);
  }

  std::uint32_t declare_parameter(const std::string& name) {
    note(name);
    stored_.insert(name);
    define(name, {name, Variable::Begin::parameter, {}});
    return slots_.at(name);
  }

  /// The place of a name, seen from this scope.
  std::optional<FrameSlot> find(const std::string& name) const {
    if (variables_.contains(name)) return FrameSlot{0, slots_.at(name)};
    const auto outer = parent_ ? parent_->find(name) : std::nullopt;
    return outer ? std::optional(further(*outer)) : std::nullopt;
  }

  Scope scope() const {
    Scope scope;
    scope.variables.resize(slots_.size());
    for (const auto& [name, slot] : slots_) scope.variables[slot] = variables_.at(name);
    return scope;
  }

  struct Known {
    std::optional<Variable> variable;
    bool stored = false;
  };
  using Branch = std::map<std::string, Known>;  // the names that a branch is about

  /// What `collect` learns, which is forgotten again. Takes time in proportion to it.
  template <class Collect>
  Branch branch(Collect&& collect) {
    const std::size_t begin = changes_.size();
    collect();
    Branch learnt;
    for (; changes_.size() > begin; changes_.pop_back()) {
      const auto& [name, before] = changes_.back();
      learnt.try_emplace(name, known(name));
      if (before.variable)
        variables_[name] = *before.variable;
      else
        variables_.erase(name);
      if (!before.stored) stored_.erase(name);
    }
    return learnt;
  }

  /// After the branches of an if: what one branch stores begins with the value from outside in all.
  void join(const std::vector<Branch>& branches) {
    std::set<std::string> stored;
    for (const Branch& branch : branches)
      for (const auto& [name, learnt] : branch)
        if (learnt.stored && !stored_.contains(name)) stored.insert(name);
    for (const Branch& branch : branches)
      for (const auto& [name, learnt] : branch) {
        note(name);
        if (learnt.variable) define(name, *learnt.variable);
        if (learnt.stored) stored_.insert(name);
      }
    for (const std::string& name : stored) define_from_outside(name, Variable::Begin::context);
  }

 private:
  static FrameSlot further(FrameSlot place) { return {place.up + 1, place.slot}; }

  Known known(const std::string& name) const {
    const auto found = variables_.find(name);
    return {found == variables_.end() ? std::nullopt : std::optional(found->second), stored_.contains(name)};
  }

  void note(const std::string& name) { changes_.emplace_back(name, known(name)); }

  void define(const std::string& name, Variable variable) {
    note(name);
    slots_.try_emplace(name, static_cast<std::uint32_t>(slots_.size()));
    variables_[name] = std::move(variable);
  }

  void define_from_outside(const std::string& name, Variable::Begin otherwise) {
    if (const auto outer = parent_ ? parent_->find(name) : std::nullopt)
      define(name, {name, Variable::Begin::outer, further(*outer)});
    else
      define(name, {name, otherwise, {}});
  }

  const Symbols* parent_;
  std::map<std::string, Variable> variables_;
  std::set<std::string> stored_;
  std::map<std::string, std::uint32_t> slots_;
  std::vector<std::pair<std::string, Known>> changes_;
};

/// What a scope's own statements say about its variables, without inner scopes.
class Collector {
 public:
  explicit Collector(Symbols& symbols) : symbols_(symbols) {}

  void collect(const Body& body) {
    for (const auto& statement : body) collect(*statement);
  }

  void loads(const Expression* expression) {
    visit_names(expression, NameUse::load,
                [this](const std::string& name, NameUse, std::size_t) { symbols_.load(name); });
  }

  void stores(const Expression& target, bool as_parameter) {
    if (target.kind == Expression::Kind::attribute_target) return symbols_.load(target.name);
    if (target.kind == Expression::Kind::name) {
      if (as_parameter)
        symbols_.declare_parameter(target.name);
      else
        symbols_.store(target.name);
    }
    for (const auto& part : target.parts) stores(*part, as_parameter);
  }

 private:
  void collect(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::output:
      case Statement::Kind::with:
        for (const auto& value : statement.values) loads(value.get());
        break;
      case Statement::Kind::branches:
        collect_branches(statement);
        break;
      case Statement::Kind::assign:
      case Statement::Kind::assign_block:
        loads(statement.value.get());
        stores(*statement.target, false);
        break;
      case Statement::Kind::macro:
        symbols_.store(statement.macro->name);
        break;
      default:
        loads(statement.value.get());
        loads(statement.filter.get());
    }
  }

  void collect_branches(const Statement& statement) {
    loads(statement.branches.front().condition.get());
    std::vector<Symbols::Branch> branches;
    branches.push_back(symbols_.branch([&] { collect(statement.branches.front().body); }));
    branches.push_back(symbols_.branch([&] {  // Jinja nests what belongs to an elif in the if before
      for (std::size_t i = 1; i < statement.branches.size(); ++i) {
        loads(statement.branches[i].condition.get());
        symbols_.join({symbols_.branch([&] { collect(statement.branches[i].body); })});
      }
    }));
    branches.push_back(symbols_.branch([&] { collect(statement.otherwise); }));
    symbols_.join(branches);
  }

  Symbols& symbols_;
};

/// Where a statement stands.
struct Surroundings {
  const Symbols& symbols;
  bool in_loop = false;  ///< break and continue are allowed
  bool soft = false;     ///< inside if, where names of filters and tests are not checked
};

class Resolver {
 public:
  explicit Resolver(const Source& source) : source_(source) {}

  void resolve(Tree& tree) {
    Symbols symbols(nullptr);
    Collector(symbols).collect(tree.body);
    resolve(tree.body, {symbols});
    tree.scope = symbols.scope();
  }

 private:
  using Kind = Expression::Kind;

  void resolve(Body& body, const Surroundings& around) {
    for (auto& statement : body) resolve(*statement, around);
  }

  void resolve(Statement& statement, const Surroundings& around) {
    switch (statement.kind) {
      case Statement::Kind::output:
        for (auto& value : statement.values) resolve(value.get(), around);
        break;
      case Statement::Kind::loop:
        resolve_loop(statement, around);
        break;
      case Statement::Kind::branches:
        resolve_branches(statement, around);
        break;
      case Statement::Kind::assign:
        resolve(statement.target.get(), around);
        resolve(statement.value.get(), around);
        break;
      case Statement::Kind::macro:
        resolve_macro(*statement.macro, statement.offset, around);
        statement.place = *around.symbols.find(statement.macro->name);
        break;
      case Statement::Kind::call_block:
      case Statement::Kind::generation:
        resolve_macro(*statement.macro, statement.offset, around);
        resolve(statement.value.get(), around);
        break;
      case Statement::Kind::assign_block:
      case Statement::Kind::filter_block:
        resolve(statement.target.get(), around);
        resolve_block(statement, around);
        break;
      case Statement::Kind::with:
        resolve_with(statement, around);
        break;
      case Statement::Kind::leave:
      case Statement::Kind::next:
        if (!around.in_loop)
          source_.fail(statement.offset, statement.kind == Statement::Kind::leave ? "break" : "continue",
                       " stands outside of a loop");
    }
  }

  void resolve_branches(Statement& statement, Surroundings around) {
    around.soft = true;
    for (Branch& branch : statement.branches) {
      resolve(branch.condition.get(), around);
      resolve(branch.body, around);
    }
    resolve(statement.otherwise, around);
  }

  void resolve_block(Statement& statement, const Surroundings& around) {
    Symbols symbols(&around.symbols);
    Collector collector(symbols);
    collector.collect(statement.body);
    collector.loads(statement.filter.get());
    const Surroundings inside{symbols, around.in_loop};
    resolve(statement.body, inside);
    resolve(statement.filter.get(), inside);
    statement.scope = symbols.scope();
  }

  void resolve_with(Statement& statement, const Surroundings& around) {
    for (auto& value : statement.values) resolve(value.get(), around);
    Symbols symbols(&around.symbols);
    Collector collector(symbols);
    for (auto& target : statement.targets) collector.stores(*target, true);
    collector.collect(statement.body);
    const Surroundings inside{symbols, around.in_loop};
    for (auto& target : statement.targets) resolve(target.get(), inside);
    resolve(statement.body, inside);
    statement.scope = symbols.scope();
  }

  void resolve_loop(Statement& statement, const Surroundings& around) {
    visit_names(statement, [this](const std::string& name, NameUse use, std::size_t offset) {
      if (use == NameUse::store && name == "loop")
        source_.fail(offset, "want another name than loop to assign to in a loop");
    });
    resolve(statement.value.get(), around);
    if (statement.condition) resolve_condition(statement, around);
    Symbols symbols(&around.symbols);
    Collector collector(symbols);
    if (statement.recursive || uses_undeclared(statement.body, "loop"))
      statement.loop_slot = symbols.declare_parameter("loop");
    collector.stores(*statement.target, true);
    collector.collect(statement.body);
    resolve(statement.target.get(), {symbols});
    resolve(statement.body, {symbols, true});
    statement.scope = symbols.scope();

    Symbols otherwise(&around.symbols);
    Collector(otherwise).collect(statement.otherwise);
    resolve(statement.otherwise, {otherwise, around.in_loop && !statement.recursive});
    statement.otherwise_scope = otherwise.scope();
  }

  void resolve_condition(Statement& statement, const Surroundings& around) {
    Symbols symbols(&around.symbols);
    Collector collector(symbols);
    collector.stores(*statement.condition_target, true);
    collector.loads(statement.condition.get());
    resolve(statement.condition_target.get(), {symbols});
    resolve(statement.condition.get(), {symbols});
    statement.condition_scope = symbols.scope();
  }

  void resolve_macro(Macro& macro, std::size_t offset, const Surroundings& around) {
    Symbols symbols(&around.symbols);
    Collector collector(symbols);
    for (Parameter& parameter : macro.parameters) parameter.slot = symbols.declare_parameter(parameter.name);
    for (const Parameter& parameter : macro.parameters) collector.loads(parameter.otherwise.get());
    collector.collect(macro.body);
    declare_special(macro, offset, symbols);
    const Surroundings inside{symbols};
    for (Parameter& parameter : macro.parameters) resolve(parameter.otherwise.get(), inside);
    resolve(macro.body, inside);
    macro.scope = symbols.scope();
  }

  void declare_special(Macro& macro, std::size_t offset, Symbols& symbols) {
    const auto is_parameter = [&](std::string_view name) {
      return std::ranges::any_of(macro.parameters, [&](const Parameter& p) { return p.name == name; });
    };
    if (uses_undeclared(macro.body, "caller")) {
      if (!is_parameter("caller")) {
        macro.caller = symbols.declare_parameter("caller");
      } else if (!std::ranges::all_of(macro.parameters,
                                      [](const Parameter& p) { return p.name != "caller" || p.otherwise; })) {
        source_.fail(offset, "the parameter 'caller' wants a default, or to be left out");
      }
    }
    if (uses_undeclared(macro.body, "kwargs") && !is_parameter("kwargs"))
      macro.kwargs = symbols.declare_parameter("kwargs");
    if (uses_undeclared(macro.body, "varargs") && !is_parameter("varargs"))
      macro.varargs = symbols.declare_parameter("varargs");
  }

  void resolve(Expression* expression, Surroundings around) {
    if (!expression) return;
    if (expression->kind == Kind::name || expression->kind == Kind::attribute_target) {
      const auto place = around.symbols.find(expression->name);
      expect(place.has_value(), "the name ", expression->name, " was collected");
      expression->place = *place;
    }
    if (expression->kind == Kind::filter && !around.soft && !find_filter(expression->name))
      source_.fail(expression->offset, missing_filter(expression->name));
    if (expression->kind == Kind::test && !around.soft && !find_test(expression->name))
      source_.fail(expression->offset, missing_test(expression->name));
    around.soft |= expression->kind == Kind::conditional;
    for (auto& part : expression->parts) resolve(part.get(), around);
    CallArguments& arguments = expression->arguments;
    for (auto& value : arguments.positional) resolve(value.get(), around);
    for (auto& [name, value] : arguments.named) resolve(value.get(), around);
    resolve(arguments.star.get(), around);
    resolve(arguments.double_star.get(), around);
  }

  const Source& source_;
};

}  // namespace

void resolve_names(Tree& tree, const Source& source) { Resolver(source).resolve(tree); }

}  // namespace nemocube::jinja
