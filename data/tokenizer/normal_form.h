#pragma once
#include "data/tokenizer/text.h"

namespace nemocube::tok {

/// The normal forms of Unicode Standard Annex 15: canonical (D) or compatible (KD) decomposition with marks
/// in canonical order, and for C and KC canonical composition.
enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// Brings `text` into a normal form. A composed character counts as made from the first of its characters, as
/// in the `tokenizers` library. The time is linear in the length of the text, but for sorting long runs of
/// marks. pre: valid UTF-8
///
/// The tables are those of the installed utf8proc (Unicode 15 for utf8proc 2.8). The `tokenizers` library has
/// tables of Unicode 9. Forms of a character never change once it is assigned, so the two differ only in
/// characters that Unicode 10 and later added: 73 of them up to Unicode 14 have a decomposition, which is
/// applied here (U+32FF and the compatibility digits U+1FBF0.. are the usual ones), and 98 are combining
/// marks, which are put in order here.
void normalize(NormalForm form, AlignedText& text);

}  // namespace nemocube::tok
