// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <heed/weights.h>

#include <algorithm>
#include <functional>
#include <istream>
#include <set>

#include "core/checks.h"
#include "weights/contents.h"
#include "weights/copies.h"
#include "weights/formats/bytes.h"
#include "weights/formats/file_tensors.h"
#include "weights/formats/weight_file.h"
#include "weights/misfits.h"
#include "weights/module_tensors.h"
#include "weights/named.h"
#include "weights/packed_weights.h"
#include "weights/shards.h"

namespace heed {
namespace {

using detail::FileEntries;
using detail::HeldTensor;
using Names = std::vector<std::string>;

/// Reads from a path or a stream.
template <typename Source>
FileEntries read_from(Source& source, const LoadOptions& options) {
  return detail::named("load_weights", [&] {
    return detail::read_weight_file(detail::Bytes(source), options.key());
  });
}

/// Warns if a model is only partly loaded, in case nobody looks at the report.
void warn_of_misfits(const std::string& source, const LoadReport& report, size_t size) {
  if (report.missing.empty() && report.misshapen.empty()) return;
  TORCH_WARN("load_weights: ", source, ": loaded ", report.loaded.size(), " of the module's ", size,
             " tensors; missing: ", report.missing.size(), ", misshapen: ", report.misshapen.size(),
             "; see LoadReport");
}

/// Throws unless values can be copied into the tensor.
void check_destination(const std::string& name, const at::Tensor& tensor) {
  detail::check_holds_values("load_weights", name, tensor);
  HEED_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
             "load_weights: {} {} must not repeat elements; its strides are {}", name,
             detail::shape(tensor), c10::str(tensor.strides()));
  HEED_CHECK(!tensor.is_inference() || c10::InferenceMode::is_enabled(),
             "load_weights: {} must not be an inference tensor outside of c10::InferenceMode",
             name);
}

/// The tensors of the module with these names, each checked as a destination of a copy, without
/// those that are packed in the file.
std::vector<HeldTensor> destinations(const detail::Contents& contents, const Names& names) {
  const std::set<std::string> loaded(names.begin(), names.end());
  std::vector<HeldTensor> found;
  for (const auto& held : contents.ours) {
    if (loaded.count(held.name) == 0 || contents.theirs.packed.count(held.name) > 0) continue;
    check_destination(held.name, held.tensor);
    found.push_back(held);
  }
  return found;
}

/// Warns of tensors that heed cannot hold: read_weights has no report that could name them.
void warn_of_unheld(const FileEntries& file) {
  if (file.unheld.empty()) return;
  constexpr size_t kMost = 10;
  Names some;
  for (const auto& name : file.unheld) {
    if (some.size() == kMost) break;
    some.push_back(fmt::format("{} ({})", detail::in_quotes(name), file.others.at(name)));
  }
  TORCH_WARN("read_weights: ", source_of(file), ": left out ", file.unheld.size(),
             " tensors that heed cannot hold: ", c10::Join(", ", some),
             some.size() < file.unheld.size() ? ", ..." : "");
}

/// Returns all tensors of a path or a stream.
template <typename Source>
NamedTensors read_all_from(Source& source, const std::string& key) {
  return detail::named("read_weights", [&] {
    auto file = detail::read_weight_file(detail::Bytes(source), key);
    warn_of_unheld(file);
    for (auto& [name, tensor] : file.tensors) tensor = detail::with_values(tensor);
    return std::move(file.tensors);
  });
}

void load_one(const detail::Translation& translation, const detail::HeldTensor& to,
              const std::function<void(const std::string&)>& after) {
  detail::ValueCopies copies;
  detail::add_copies(copies, translation, to);
  copies.prepare();
  copies.run();
  after(to.name);
}

LoadReport load_contents(torch::nn::Module& module, const LoadOptions& options,
                         const std::function<FileEntries()>& read,
                         const std::function<void()>& before_change,
                         const std::function<void(const std::string&)>& after_each = {}) {
  const detail::Contents contents(module, options, read);
  const auto& [ours, theirs] = contents;
  const auto source = source_of(theirs);
  const auto translation = detail::named("load_weights", [&, &ours = ours, &theirs = theirs] {
    return detail::translated(module, ours, theirs, options);
  });
  const detail::Comparison comparison(contents, translation, options);
  auto report = comparison.report();
  if (options.strict()) {
    const auto problems = comparison.misfits(/*can_untie=*/true);
    HEED_CHECK(problems.empty(),
               "load_weights: {} must fit the module, {} of whose {} tensors do{}", source,
               report.loaded.size(), ours.size(), problems);
  }
  const auto fitting = destinations(contents, report.loaded);
  detail::PackedLoads packed(module, theirs, report.loaded, options);
  const auto loaded = detail::named("load_weights", [&, &theirs = theirs] {
    check_tied(translation, theirs.tensors, options.shards());
    return detail::each_once(fitting, translation, source, options.prefix());
  });
  detail::ValueCopies copies;
  const auto prepare = [&] {
    if (after_each) return;
    for (const auto& to : loaded) detail::add_copies(copies, translation, to);
    copies.prepare();
  };
  if (!options.device()) prepare();
  packed.read();
  before_change();
  if (options.device()) {
    module.to(*options.device());
    prepare();
  }
  detail::named("load_weights", [&] {
    copies.run();
    for (const auto& to : loaded) {
      if (after_each) load_one(translation, to, after_each);
    }
  });
  packed.install();
  for (const auto& file : theirs.files) report.bytes_read += file.bytes_read();
  warn_of_misfits(source, report, ours.size());
  return report;
}

}  // namespace

LoadReport detail::load_weights(torch::nn::Module& module, const std::string& path,
                                const LoadOptions& options,
                                const std::function<void()>& before_change) {
  return load_contents(
      module, options, [&] { return read_from(path, options); }, before_change);
}

LoadReport detail::load_weights(torch::nn::Module& module, const FileEntries& file,
                                const LoadOptions& options,
                                const std::function<void(const std::string&)>& after_each) {
  return load_contents(
      module, options, [&] { return file; }, [] {}, after_each);
}

std::set<at::ScalarType> detail::floating_dtypes(const torch::nn::Module& module,
                                                 const FileEntries& file,
                                                 const LoadOptions& options) {
  const auto ours = held_tensors("load_weights", module, options.shards());
  const auto theirs = with_packed(file);
  const auto translation = translated(module, ours, theirs, options);
  std::set<at::ScalarType> dtypes;
  for (const auto& held : ours) {
    if (held.keeps_dtype) continue;
    const auto origin = translation.origins.find(held.name);
    if (origin == translation.origins.end()) continue;
    for (const auto& name : origin->second) {
      const auto tensor = theirs.tensors.find(name);
      const bool is_floating = tensor != theirs.tensors.end() && tensor->second.is_floating_point();
      if (is_floating) dtypes.insert(tensor->second.scalar_type());
    }
  }
  return dtypes;
}

LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                        const LoadOptions& options) {
  return detail::load_weights(module, path, options, std::function<void()>([] {}));
}

LoadReport load_weights(torch::nn::Module& module, std::istream& stream,
                        const LoadOptions& options) {
  return load_contents(
      module, options, [&] { return read_from(stream, options); }, [] {});
}

NamedTensors read_weights(const std::string& path, const std::string& key) {
  return read_all_from(path, key);
}

NamedTensors read_weights(std::istream& stream, const std::string& key) {
  return read_all_from(stream, key);
}

}  // namespace heed
