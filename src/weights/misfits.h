// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/weights.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights/contents.h"
#include "weights/known_names.h"

namespace heed::detail {

/// A tensor of the file for which the module has no place.
struct Unexpected {
  std::string name;                  // the name by the name map
  std::vector<std::string> in_file;  // names in the file
  std::string note = {};             // what it is, if heed cannot hold it
};

/// The differences between a module and a file.
struct Misfits {
  std::vector<std::string> missing;
  std::vector<Unexpected> unexpected;
  std::vector<std::string> misshapen;  // as LoadReport has them
  bool transposed = false;             // whether some of misshapen fit if they are transposed
  std::optional<std::string> dtype;    // the module's, if a tensor differs in its dtype only
  std::string prefix = {};             // LoadOptions::prefix, which stands before names in the file
  size_t present = 0;                  // how many names of the module the file has
  bool may_be_inside = false;          // whether all names of the file may belong to a submodule
  bool untied_head = false;            // whether the file has a head where the module ties it
  std::optional<KnownNames> known = {};       // names that a map of name_maps.h reads
  std::optional<std::string> folder = {};     // of the file, if load_pretrained may read it
  std::optional<std::string> quantized = {};  // the program that has quantized the weights
};

/// Describes each difference in one line, in one line for all layers that differ only in their
/// number, and adds the options that may help. Empty if everything fits.
std::string describe(const Misfits& misfits);

/// Compares a module with a file. Errors and reports show the names that the file has.
class Comparison {
 public:
  /// `translation` has the file's tensors under the module's names.
  Comparison(const Contents& contents, const Translation& translation, const LoadOptions& options);

  const LoadReport& report() const { return report_; }
  /// Lists what does not fit; empty when everything does. `can_untie`: whether the caller may give
  /// a Decoder a head of its own.
  std::string misfits(bool can_untie) const;

 private:
  void compare(const HeldTensor& held);
  void add_unexpected(const std::string& name);
  void add_misshapen(const HeldTensor& held, const std::string& theirs);
  void note_help(const at::Tensor& ours, const at::Tensor& theirs);
  bool has_untied_head() const;
  std::optional<std::string> pretrained_folder() const;
  /// Describes a tensor as it is in the file, and as the options change it.
  std::string describe_in_file(const HeldTensor& held, const at::Tensor& theirs) const;
  /// The file's names of the tensor that the name map calls `name`.
  std::vector<std::string> in_file(const std::string& name) const;
  /// The file's names of this tensor, as a note in errors; empty if they are `name` itself.
  std::string origin_note(const std::string& name) const;
  /// Describes a tensor of the file that heed cannot hold; empty if it can.
  std::string unheld(const std::string& name) const;

  const std::vector<HeldTensor>& module_;
  const FileEntries& file_;
  const Translation& translation_;
  const LoadOptions& options_;
  LoadReport report_;
  Misfits misfits_;
};

/// Returns what load_weights' error would say about a name map or tensors that do not fit; empty if
/// all fit. The module's values may be missing. Throws c10::ValueError where load_weights would
/// refuse the options, or the file whatever the module.
std::string misfits(const torch::nn::Module& module, const FileEntries& file,
                    const LoadOptions& options);

/// Whether the file has different values for tensors that are one tensor of the module. False if
/// the name map does not fit.
bool has_unequal_ties(const torch::nn::Module& module, const FileEntries& file,
                      const LoadOptions& options);

}  // namespace heed::detail
