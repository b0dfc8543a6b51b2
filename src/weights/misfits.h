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
  std::string note = {};             // what it is, where heed cannot hold it
};

/// The differences between a module and a file.
struct Misfits {
  std::vector<std::string> missing;
  std::vector<Unexpected> unexpected;
  std::vector<std::string> misshapen;  // as LoadReport has them
  bool transposed = false;             // some of misshapen
  std::optional<std::string> dtype;    // of the module, where another is all that does not fit
};

/// One line for each difference, with one line for layers that differ only in their number, and the
/// options that may help. Empty if everything fits.
std::string describe(const Misfits& misfits);

}  // namespace heed::detail
