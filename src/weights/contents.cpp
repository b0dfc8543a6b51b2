// SPDX-License-Identifier: BSD-3-Clause
#include "weights/contents.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <set>
#include <utility>

#include "core/error.h"
#include "weights/formats/bytes.h"
#include "weights/formats/libtorch_error.h"
#include "weights/module_tensors.h"
#include "weights/packed_weights.h"

namespace heed::detail {

namespace {

using Names = std::vector<std::string>;

void check_options(const LoadOptions& options) {
  if (options.dtype()) {
    HEED_CHECK(at::isFloatingType(*options.dtype()),
               "load_weights: dtype ({}) must be floating-point", c10::toString(*options.dtype()));
  }
  if (!options.device()) return;
  try {
    at::empty({0}, *options.device());
  } catch (const c10::Error& error) {
    HEED_CHECK(false, "load_weights: device ({}) must be usable; {}", options.device()->str(),
               first_sentence(error.what_without_backtrace()));
  }
}

/// Checks the options, then returns the module's tensors.
std::vector<HeldTensor> checked_tensors(const torch::nn::Module& module,
                                        const LoadOptions& options) {
  check_options(options);
  return held_tensors("load_weights", module, options.shards());
}

FileEntries with_tensors(FileEntries file, bool may_be_empty) {
  HEED_CHECK(!file.tensors.empty() || !file.unheld.empty() || may_be_empty,
             "load_weights: {} must hold parameters or buffers", source_of(file));
  return file;
}

/// The entries whose names begin with `prefix`, under the rest of their names.
template <typename Value>
std::map<std::string, Value> below(const std::string& prefix,
                                   const std::map<std::string, Value>& file) {
  std::map<std::string, Value> entries;
  for (auto item = file.lower_bound(prefix); item != file.end(); ++item) {
    if (!begins_with(item->first, prefix)) break;
    entries.emplace(item->first.substr(prefix.size()), item->second);
  }
  return entries;
}

std::set<std::string> below(const std::string& prefix, const std::set<std::string>& file) {
  std::set<std::string> names;
  for (const auto& name : file) {
    if (begins_with(name, prefix)) names.insert(name.substr(prefix.size()));
  }
  return names;
}

FileEntries below(const std::string& prefix, FileEntries file) {
  if (prefix.empty()) return file;
  FileEntries found{
      below(prefix, file.tensors),   below(prefix, file.others), file.files,
      below(prefix, file.constants), below(prefix, file.unheld), below(prefix, file.packed)};
  Names some;
  for (auto item = file.tensors.begin(); item != file.tensors.end() && some.size() < 3; ++item) {
    some.push_back(item->first);
  }
  HEED_CHECK(!found.tensors.empty() || !found.unheld.empty(),
             "load_weights: prefix ({}) must begin a name in {}, which holds {}{}", prefix,
             source_of(file), c10::Join(", ", some),
             some.size() < file.tensors.size() ? ", ..." : "");
  return found;
}

}  // namespace

Translation translated(const torch::nn::Module& module, const std::vector<HeldTensor>& ours,
                       const FileEntries& theirs, const LoadOptions& options) {
  const auto shapes = whole_shapes(ours);
  const auto translate = [&](const NamedTensors& tensors) {
    return detail::translate(options.name_map(), tensors, shapes);
  };
  const auto with_unheld = [&] {
    auto tensors = theirs.tensors;
    for (const auto& name : theirs.unheld) tensors.emplace(name, at::Tensor());
    return tensors;
  };
  auto all = theirs.unheld.empty() ? translate(theirs.tensors) : translate(with_unheld());
  for (const auto& name : computed_buffers(module)) all.tensors.erase(name);
  return all;
}

Contents::Contents(const torch::nn::Module& module, const LoadOptions& options,
                   const std::function<FileEntries()>& read)
    : ours(checked_tensors(module, options)),
      theirs(below(options.prefix(), with_packed(with_tensors(read(), ours.empty())))) {}

}  // namespace heed::detail
