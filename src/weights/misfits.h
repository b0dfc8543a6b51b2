#pragma once

#include <heed/weights.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights/contents.h"

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

/// Compares a module with a file, whose own names errors and reports show.
class Comparison {
 public:
  Comparison(const Contents& contents, const LoadOptions& options);

  const LoadReport& report() const { return report_; }
  /// Lists what does not fit; empty when everything does.
  std::string misfits() const { return describe(misfits_); }

 private:
  void compare(const HeldTensor& held);
  void add_unexpected(const std::string& name);
  void add_misshapen(const HeldTensor& held, const std::string& theirs);
  void note_help(const at::Tensor& ours, const at::Tensor& theirs);
  /// A tensor as the file has it, and what options have made of it.
  std::string describe_in_file(const std::string& name, const at::Tensor& theirs) const;
  /// The file's names of a tensor that has this one by the name map.
  std::vector<std::string> in_file(const std::string& name) const;
  /// These names, if they are others.
  std::string origin_note(const std::string& name) const;
  /// What a tensor of the file is that heed cannot hold; empty if it can.
  std::string unheld(const std::string& name) const;

  const FileEntries& file_;
  const Translation& translation_;
  const LoadOptions& options_;
  LoadReport report_;
  Misfits misfits_;
};

/// The lines of load_weights' error about what does not fit, or nothing. The module's values may be
/// missing. Throws c10::ValueError where load_weights would for the file's own content.
std::string misfits(const torch::nn::Module& module, const std::string& path,
                    const FileEntries& file, const LoadOptions& options);

}  // namespace heed::detail
