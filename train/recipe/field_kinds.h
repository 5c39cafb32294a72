#pragma once
#include <concepts>
#include <type_traits>

#include "train/recipe/types.h"

/// The common part of the declarations of keys in fields.h and distributed_fields.h.
namespace nemocube::recipe {

/// A section, to be written or only to be looked at.
template <class S, class Section>
concept Like = std::same_as<std::remove_const_t<S>, Section>;

/// The contents of a section whose keys have no effect: inert_keys() lists them.
inline constexpr auto nothing = [](auto&) {};

/// A switch with more words than true and false.
template <class Word>
void switch_field(auto& io, const char* key, auto& out, const char* meaning) {
  Word word = out ? Word::on : Word::off;
  io.field(key, word, meaning, or_default);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(out)>>) out = word == Word::on;
}

}  // namespace nemocube::recipe
