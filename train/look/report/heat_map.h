#pragma once
#include <string>
#include <vector>

namespace nemocube::run_report {

/// Values of rows and columns as shades, light to strong.
struct HeatMap {
  std::string id, title, about;
  std::string row_word, column_word;        ///< "layer", "step"
  std::vector<std::string> rows, columns;   ///< names; of columns only the first and the last are written
  std::vector<std::vector<double>> values;  ///< of each row
  double lightest = 0;  ///< the value of the lightest shade; the highest value has the strongest
  bool wide = true;
};

/// Each cell has its exact value as data-value, and its names and value as a tooltip. pre: a row and a column
std::string heat_map_html(const HeatMap& map);

}  // namespace nemocube::run_report
