#include "data/chat/jinja/template.h"

#include "data/chat/jinja/parser.h"
#include "data/chat/jinja/scopes.h"

namespace nemocube::jinja {

struct Template::Parsed {
  Parsed(std::string name, std::string_view text) : source(std::move(name), text), tree(parse(source)) {
    resolve_names(tree, source);
  }
  Source source;
  Tree tree;
};

Template::Template(std::string name, std::string_view source)
    : parsed_(std::make_shared<const Parsed>(std::move(name), source)) {}

bool Template::has_generation() const { return parsed_->tree.has_generation; }

Output Template::render(Interpreter::Context context, const Limits& limits, Interpreter::Time now) const {
  Budget budget(limits);
  return Interpreter(parsed_->tree, parsed_->source, budget, std::move(context), now).run();
}

}  // namespace nemocube::jinja
