#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heed::detail {

/// A tensor of the file for which the module has no place.
struct Unexpected {
  std::string name;                  // by the name map
  std::vector<std::string> in_file;  // names in the file
};

/// What a module and a file disagree on.
struct Misfits {
  std::vector<std::string> missing;
  std::vector<Unexpected> unexpected;
  std::vector<std::string> misshapen;  // as LoadReport has them
  bool transposed = false;             // some of misshapen
  std::optional<std::string> dtype;    // of the module, where another is all that does not fit
};

/// A line for each, layers that differ in their number alone in one, and what options may help.
/// Empty where everything fits.
std::string describe(const Misfits& misfits);

}  // namespace heed::detail
