#pragma once
#include <string>
#include <vector>

/// The common part of all charts: the frame with heading, legend and a table of the numbers, and the
/// beginning of the drawing.
namespace nemocube::run_report {

/// Colours of the page's style by number, "c0" to "c7"; higher numbers begin again.
std::string colour_class(std::size_t colour);

/// How a legend shows an entry.
enum class Sign { line, dashed, dotted, box, mark };
struct LegendEntry {
  std::string name;
  std::size_t colour = 0;
  Sign sign = Sign::line;
};

/// Texts of a table, not escaped. Columns that `text_columns` counts from the left are text, the others
/// numbers.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::size_t text_columns = 0;
  std::string note = {};  ///< the omissions of the table
};
/// In a box of its own, which scrolls when the table is wider than the page.
std::string table_html(const Table& table, const std::string& caption);

struct Figure {
  std::string id;     ///< unique on the page
  std::string title;  ///< not escaped, as all texts here
  std::string about;  ///< unit, and other facts that a reader needs
  bool wide = false;  ///< takes the whole width of the page
  std::vector<LegendEntry> legend = {};
  std::string drawing = {};  ///< HTML: the SVG
  Table table = {};
};
std::string figure_html(const Figure& figure);

/// The start tag of an SVG that is `width` by `height` and scales, with title and description for screen
/// readers.
std::string svg_begin(const Figure& figure, double width, double height, const std::string& description);
std::string svg_text(double x, double y, const std::string& classes, const std::string& text);
std::string svg_line(double x1, double y1, double x2, double y2, const std::string& classes);

/// A heading and one line that says why a part of the page is absent.
std::string absence_html(const std::string& title, const std::string& why);

}  // namespace nemocube::run_report
