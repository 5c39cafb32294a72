#pragma once
#include <string>
#include <string_view>

/// Pieces of a page. Elements are written so that the page is also well-formed XML.
namespace nemocube::run_report {

/// Text from outside as the text of an element, or as the value of an attribute in double quotes: & < > " '
/// are escaped, and characters that cannot be shown are written as in printable() (core/quote.h).
std::string escaped(std::string_view text);

/// The shortest decimal that reads back as the same number, for attributes that programs read.
std::string exact(double value);
/// Up to six significant digits, for people: "0.000123457", "1.5e-07", "1234570".
std::string readable(double value);
/// "2026-08-22 09:05:03 UTC" of a timestamp of the logs, "2026-08-22T09:05:03.007Z"; other text as it is.
std::string readable_time(const std::string& timestamp);
/// A length in the coordinates of a drawing, with at most two decimals.
std::string coordinate(double value);

}  // namespace nemocube::run_report
