// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace heed::detail {

/// Modules that an adapter_config.json names: by a regular expression for whole names, or by the
/// last parts of names.
struct ModuleNames {
  std::optional<std::regex> expression;
  std::vector<std::string> ends;

  bool empty() const { return !expression && ends.empty(); }
  bool has(const std::string& name) const;
};

/// Numbers of modules whose names end as a regular expression says; the first that fits counts.
using NumberPatterns = std::vector<std::pair<std::regex, double>>;

/// The adapter that an adapter_config.json of PEFT describes.
struct AdapterConfig {
  int64_t rank = 8;
  double alpha = 8.0, dropout = 0.0;
  NumberPatterns ranks, alphas;
  bool rank_stabilized = false, dora = false;
  bool all_linear = false;  // in place of targets
  ModuleNames targets, excluded;
  std::optional<std::vector<int64_t>> layers;  // by their numbers; none: all
  std::vector<std::regex> layers_patterns;     // of the names in which these stand
  std::vector<std::string> modules_to_save;
  std::string bias = "none";  // or "all", "lora_only"

  /// Whether the module `name` gets an adapter if it is a Linear.
  bool is_target(const std::string& name) const;
  /// Whether the tensor or module `name` is, or is in, one of modules_to_save.
  bool is_saved(const std::string& name) const;
  int64_t rank_of(const std::string& name) const;
  double alpha_of(const std::string& name) const;
};

/// Reads an adapter_config.json. Throws c10::ValueError that names its path, the field and its
/// value where one is not understood or not supported.
AdapterConfig read_adapter_config(const std::string& path);

}  // namespace heed::detail
