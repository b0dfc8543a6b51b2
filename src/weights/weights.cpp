#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <heed/weights.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/checks.h"
#include "weights/formats/libtorch_error.h"
#include "weights/formats/weight_file.h"
#include "weights/module_tensors.h"
#include "weights/named.h"

namespace heed {
namespace {

using detail::FileEntries;
using detail::ModuleTensors;
using Names = std::vector<std::string>;

FileEntries read_file(const std::string& path, const LoadOptions& options, bool may_be_empty) {
  auto file =
      detail::named("load_weights", [&] { return detail::read_weight_file(path, options.key()); });
  HEED_CHECK(!file.tensors.empty() || may_be_empty,
             "load_weights: path ({}) must hold parameters or buffers; a frozen module "
             "(torch.jit.freeze) has none",
             path);
  return file;
}

std::string describe(at::ScalarType dtype, const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(dtype), detail::shape(tensor));
}

/// The entries whose names begin with `prefix`, without it.
template <typename Value>
std::map<std::string, Value> below(const std::string& prefix,
                                   const std::map<std::string, Value>& file) {
  std::map<std::string, Value> entries;
  for (auto item = file.lower_bound(prefix); item != file.end(); ++item) {
    if (item->first.compare(0, prefix.size(), prefix) != 0) break;
    entries.emplace(item->first.substr(prefix.size()), item->second);
  }
  return entries;
}

FileEntries below(const std::string& prefix, const FileEntries& file, const std::string& path) {
  FileEntries found{below(prefix, file.tensors), below(prefix, file.others)};
  Names some;
  for (auto item = file.tensors.begin(); item != file.tensors.end() && some.size() < 3; ++item) {
    some.push_back(item->first);
  }
  HEED_CHECK(prefix.empty() || !found.tensors.empty(),
             "load_weights: prefix ({}) must begin a name in path ({}), which holds {}{}", prefix,
             path, c10::Join(", ", some), some.size() < file.tensors.size() ? ", ..." : "");
  return found;
}

/// What a tensor of the file becomes before it is compared.
at::ScalarType converted(const at::Tensor& tensor, const LoadOptions& options) {
  const auto dtype = tensor.scalar_type();
  return at::isFloatingType(dtype) ? options.dtype().value_or(dtype) : dtype;
}

LoadReport compare(const ModuleTensors& module, const FileEntries& file,
                   const LoadOptions& options) {
  LoadReport report;
  const auto misshapen = [&](const auto& item, const std::string& theirs) {
    const auto ours = describe(item.value().scalar_type(), item.value());
    report.misshapen.push_back(
        fmt::format("{} ({} in the module, {} in the file)", item.key(), ours, theirs));
  };
  for (const auto& item : module) {
    const auto& ours = item.value();
    const auto found = file.tensors.find(item.key());
    if (found != file.tensors.end()) {
      const auto& theirs = found->second;
      const auto dtype = converted(theirs, options);
      if (ours.sizes() == theirs.sizes() && ours.scalar_type() == dtype) {
        report.loaded.push_back(item.key());
      } else {
        misshapen(item, describe(dtype, theirs));
      }
    } else if (const auto other = file.others.find(item.key()); other != file.others.end()) {
      misshapen(item, other->second);
    } else {
      report.missing.push_back(item.key());
    }
  }
  for (const auto& [name, tensor] : file.tensors) {
    if (!module.contains(name)) report.unexpected.push_back(name);
  }
  for (const auto& [name, what] : file.others) {
    if (!module.contains(name)) report.passed_over.push_back(name);
  }
  return report;
}

/// Levenshtein's distance: how many characters to insert, delete or replace.
size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);  // distances from a prefix of `from` to each of `to`'s
  std::iota(row.begin(), row.end(), size_t{0});
  for (const char c : from) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (c != to[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// Missing names, each with the unexpected name that was perhaps meant to be it.
Names with_nearest(const Names& missing, const Names& unexpected) {
  // Some 50 ms for names of 50 characters; a list longer than that shows its pattern by itself.
  constexpr size_t kMaxPairs = 10'000;
  if (unexpected.empty() || missing.size() * unexpected.size() > kMaxPairs) return missing;
  Names result;
  for (const auto& name : missing) {
    const auto distance = [&](const std::string& other) { return edit_distance(name, other); };
    const auto nearest =
        *std::min_element(unexpected.begin(), unexpected.end(),
                          [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    const bool similar = distance(nearest) <= name.size() / 2;
    result.push_back(similar ? fmt::format("{} (nearest in the file: {})", name, nearest) : name);
  }
  return result;
}

/// Lists what does not fit; empty when everything does.
std::string misfits(const LoadReport& report) {
  std::string text;
  const auto add = [&](const char* kind, const Names& names) {
    if (!names.empty()) text += fmt::format("; {}: {}", kind, c10::Join(", ", names));
  };
  add("missing", with_nearest(report.missing, report.unexpected));
  add("unexpected", report.unexpected);
  add("misshapen", report.misshapen);
  return text;
}

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
               detail::first_sentence(error.what_without_backtrace()));
  }
}

/// What copying into a tensor asks of it.
void check_destinations(const Names& names, const ModuleTensors& module) {
  for (const auto& name : names) {
    const auto& tensor = module[name];
    detail::check_holds_values("load_weights", name, tensor);
    HEED_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
               "load_weights: {} {} must not repeat elements; its strides are {}", name,
               detail::shape(tensor), c10::str(tensor.strides()));
    HEED_CHECK(!tensor.is_inference() || c10::InferenceMode::is_enabled(),
               "load_weights: {} must not be an inference tensor outside of c10::InferenceMode",
               name);
  }
}

/// Converts to the module's dtype on the way: compare() has seen that it is the one asked for.
void copy(const Names& names, const NamedTensors& from, const ModuleTensors& to) {
  const at::NoGradGuard no_grad;
  for (const auto& name : names) detail::copy_values(from.at(name), to[name]);
}

}  // namespace

LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                        const LoadOptions& options) {
  check_options(options);
  const auto ours = detail::weights_of(module);
  auto theirs = below(options.prefix(), read_file(path, options, ours.is_empty()), path);
  detail::named("load_weights",
                [&] { theirs.tensors = options.name_map().apply(theirs.tensors, module); });
  for (const auto& name : detail::computed_buffers(module)) theirs.tensors.erase(name);
  const auto report = compare(ours, theirs, options);
  if (options.strict()) {
    const auto problems = misfits(report);
    HEED_CHECK(problems.empty(), "load_weights: path ({}) must fit the module{}", path, problems);
  }
  check_destinations(report.loaded, ours);
  if (options.device()) module.to(*options.device());
  detail::named("load_weights", [&] { copy(report.loaded, theirs.tensors, ours); });
  return report;
}

}  // namespace heed
