#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

/// Steps that the ranks of a group take together although some of them may fail, such as writing one file.
/// Every rank calls the same functions in the same order. A null group, like a group of one, is this rank
/// alone: nothing is exchanged, and exceptions pass unchanged.
namespace nemocube {

/// The texts of all ranks, by rank, on every rank.
std::vector<std::string> gather_texts(Communicator* group, std::string_view text);
/// The texts of all ranks where they differ; nothing where all are the same, which costs a few bytes.
std::vector<std::string> differing_texts(Communicator* group, const std::string& text);
/// Throws Error on every rank, naming the first rank whose text differs from rank 0's and the first differing
/// line: "WHAT of rank 2 is not that of rank 0: 'b: 2' against 'b: 1'".
void want_same_text(Communicator* group, const std::string& what, const std::string& text);
std::vector<std::string> lines_of(const std::string& text);

/// The text of rank 0, on every rank.
std::string broadcast_text(Communicator* group, std::string_view text);
/// The largest value of all ranks, on every rank.
std::int64_t largest(Communicator* group, std::int64_t value);

/// Runs `work` on every rank, and returns when all ranks are done. Once `work` has called an operation of a
/// group, it must not fail on some ranks only. Where it throws, every rank throws: a rank that failed its own
/// exception, the others an Error "rank R: TEXT" with the exception of the first rank R that failed (a
/// std::logic_error where that was one).
void together(Communicator* group, const std::function<void()>& work);

/// Runs `work` on rank 0 and returns its text on every rank. Where it throws, every rank throws: rank 0 its
/// own exception, the others an Error of the same text (a std::logic_error where that was one).
std::string text_of_rank_0(Communicator* group, const std::function<std::string()>& work);
/// The same for work without a result.
void on_rank_0(Communicator* group, const std::function<void()>& work);

}  // namespace nemocube
