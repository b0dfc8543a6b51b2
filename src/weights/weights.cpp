#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <heed/weights.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "core/checks.h"
#include "weights/copies.h"
#include "weights/formats/bytes.h"
#include "weights/formats/file_tensors.h"
#include "weights/formats/libtorch_error.h"
#include "weights/formats/weight_file.h"
#include "weights/misfits.h"
#include "weights/module_tensors.h"
#include "weights/named.h"
#include "weights/shards.h"
#include "weights/translation.h"

namespace heed {
namespace {

using detail::FileEntries;
using detail::HeldTensor;
using Names = std::vector<std::string>;

FileEntries read_file(const std::string& path, const LoadOptions& options) {
  return detail::named("load_weights",
                       [&] { return detail::read_weight_file(path, options.key()); });
}

FileEntries with_tensors(FileEntries file, bool may_be_empty, const std::string& path) {
  HEED_CHECK(!file.tensors.empty() || !file.unheld.empty() || may_be_empty,
             "load_weights: path ({}) must hold parameters or buffers", path);
  return file;
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

std::set<std::string> below(const std::string& prefix, const std::set<std::string>& file) {
  std::set<std::string> names;
  for (const auto& name : file) {
    if (name.rfind(prefix, 0) == 0) names.insert(name.substr(prefix.size()));
  }
  return names;
}

FileEntries below(const std::string& prefix, FileEntries file, const std::string& path) {
  if (prefix.empty()) return file;
  FileEntries found{below(prefix, file.tensors), below(prefix, file.others), file.files,
                    below(prefix, file.constants), below(prefix, file.unheld)};
  Names some;
  for (auto item = file.tensors.begin(); item != file.tensors.end() && some.size() < 3; ++item) {
    some.push_back(item->first);
  }
  HEED_CHECK(!found.tensors.empty() || !found.unheld.empty(),
             "load_weights: prefix ({}) must begin a name in path ({}), which holds {}{}", prefix,
             path, c10::Join(", ", some), some.size() < file.tensors.size() ? ", ..." : "");
  return found;
}

/// What a tensor of the file becomes before it is compared.
at::ScalarType converted(const at::Tensor& tensor, const LoadOptions& options) {
  const auto dtype = tensor.scalar_type();
  return at::isFloatingType(dtype) ? options.dtype().value_or(dtype) : dtype;
}

/// Compares a module with a file, whose own names errors and reports show.
class Comparison {
 public:
  Comparison(const std::vector<HeldTensor>& module, const FileEntries& file,
             const detail::Translation& translation, const LoadOptions& options)
      : file_(file), translation_(translation), options_(options) {
    std::set<std::string> ours;
    for (const auto& held : module) {
      compare(held);
      ours.insert(held.name);
    }
    for (const auto& [name, tensor] : translation_.tensors) {
      if (ours.count(name) == 0) add_unexpected(name);
    }
    for (const auto& [name, what] : file_.others) {
      if (ours.count(name) + file_.unheld.count(name) == 0) report_.passed_over.push_back(name);
    }
    std::sort(report_.passed_over.begin(), report_.passed_over.end());
    report_.missing = misfits_.missing;
    report_.misshapen = misfits_.misshapen;
    std::set<std::string> unexpected;
    for (const auto& each : misfits_.unexpected) {
      unexpected.insert(each.in_file.begin(), each.in_file.end());
    }
    report_.unexpected.assign(unexpected.begin(), unexpected.end());
  }

  const LoadReport& report() const { return report_; }
  /// Lists what does not fit; empty when everything does.
  std::string misfits() const { return detail::describe(misfits_); }

 private:
  void compare(const HeldTensor& held) {
    const auto& [name, tensor, ours, shard] = held;
    const auto found = translation_.tensors.find(name);
    if (found != translation_.tensors.end()) {
      const auto& theirs = found->second;
      if (const auto what = unheld(name); !what.empty()) {
        return add_misshapen(held, what + " in the file" + origin_note(name));
      }
      const bool same_dtype = ours.scalar_type() == converted(theirs, options_);
      if (ours.sizes() == theirs.sizes() && same_dtype) {
        report_.loaded.push_back(name);
      } else {
        add_misshapen(held, describe_in_file(name, theirs));
        note_help(ours, theirs);
      }
    } else if (const auto other = file_.others.find(name); other != file_.others.end()) {
      add_misshapen(held, other->second + " in the file");
    } else {
      misfits_.missing.push_back(name);
    }
  }

  /// A program computes with more than a module's weights.
  void add_unexpected(const std::string& name) {
    const auto& origin = translation_.origins.at(name);
    const bool is_constant = std::all_of(origin.begin(), origin.end(), [&](const auto& each) {
      return file_.constants.count(each) > 0;
    });
    if (is_constant) {
      report_.passed_over.insert(report_.passed_over.end(), origin.begin(), origin.end());
    } else {
      misfits_.unexpected.push_back({name, in_file(name), unheld(name)});
    }
  }

  void add_misshapen(const HeldTensor& held, const std::string& theirs) {
    auto ours = describe(held.tensor) + " in the module";
    if (held.shard) ours += ", a part of " + detail::shape(held.whole);
    misfits_.misshapen.push_back(fmt::format("{} ({}, {})", held.name, ours, theirs));
  }

  static std::string describe(const at::Tensor& tensor) {
    return fmt::format("{} {}", c10::toString(tensor.scalar_type()), detail::shape(tensor));
  }

  /// A tensor as the file has it, and what options have made of it.
  std::string describe_in_file(const std::string& name, const at::Tensor& theirs) const {
    const auto& origin = translation_.origins.at(name);
    Names shapes;
    for (const auto& each : origin) shapes.push_back(describe(file_.tensors.at(each)));
    auto text = c10::Join(", ", shapes) + " in the file";
    text += origin_note(name);
    const auto& first = file_.tensors.at(origin[0]);
    if (first.sizes() != theirs.sizes()) {
      text += fmt::format(", by the name map {}", detail::shape(theirs));
    }
    const auto dtype = converted(theirs, options_);
    if (dtype != first.scalar_type()) {
      text += fmt::format(", by dtype {}", c10::toString(dtype));
    }
    return text;
  }

  /// The names in the file, if they are others.
  std::string origin_note(const std::string& name) const {
    return translation_.origins.at(name) == Names{name} ? ""
                                                        : ": " + c10::Join(", ", in_file(name));
  }

  /// What a tensor of the file is that heed cannot hold; empty if it can.
  std::string unheld(const std::string& name) const {
    const auto& origin = translation_.origins.at(name);
    return file_.unheld.count(origin[0]) > 0 ? file_.others.at(origin[0]) : "";
  }

  void note_help(const at::Tensor& ours, const at::Tensor& theirs) {
    if (ours.sizes() != theirs.sizes()) {
      const auto turned = [&] { return ours.sizes() == theirs.t().sizes(); };
      misfits_.transposed |= ours.dim() == 2 && theirs.dim() == 2 && turned();
    } else if (at::isFloatingType(ours.scalar_type()) && at::isFloatingType(theirs.scalar_type())) {
      misfits_.dtype = c10::toString(ours.scalar_type());
    }
  }

  /// The file's names of a tensor that has this one by the name map.
  Names in_file(const std::string& name) const {
    Names names;
    for (const auto& each : translation_.origins.at(name)) {
      names.push_back(options_.prefix() + each);
    }
    return names;
  }

  const FileEntries& file_;
  const detail::Translation& translation_;
  const LoadOptions& options_;
  LoadReport report_;
  detail::Misfits misfits_;
};

/// A report that nobody looks at must not hide that a model is half loaded.
void warn_of_misfits(const std::string& path, const LoadReport& report, size_t size) {
  if (report.missing.empty() && report.misshapen.empty()) return;
  TORCH_WARN("load_weights: path (", path, "): loaded ", report.loaded.size(), " of the module's ",
             size, " tensors; missing: ", report.missing.size(),
             ", misshapen: ", report.misshapen.size(), "; see LoadReport");
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
void check_destination(const std::string& name, const at::Tensor& tensor) {
  detail::check_holds_values("load_weights", name, tensor);
  HEED_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
             "load_weights: {} {} must not repeat elements; its strides are {}", name,
             detail::shape(tensor), c10::str(tensor.strides()));
  HEED_CHECK(!tensor.is_inference() || c10::InferenceMode::is_enabled(),
             "load_weights: {} must not be an inference tensor outside of c10::InferenceMode",
             name);
}

/// The tensors of the module that are loaded.
std::vector<HeldTensor> destinations(const std::vector<HeldTensor>& module, const Names& names) {
  const std::set<std::string> loaded(names.begin(), names.end());
  std::vector<HeldTensor> found;
  for (const auto& held : module) {
    if (loaded.count(held.name) == 0) continue;
    check_destination(held.name, held.tensor);
    found.push_back(held);
  }
  return found;
}

/// read_weights has no report that could name them.
void warn_of_unheld(const std::string& path, const FileEntries& file) {
  if (file.unheld.empty()) return;
  constexpr size_t kMost = 10;
  Names some;
  for (const auto& name : file.unheld) {
    if (some.size() == kMost) break;
    some.push_back(fmt::format("{} ({})", detail::in_quotes(name), file.others.at(name)));
  }
  TORCH_WARN("read_weights: path (", path, "): left out ", file.unheld.size(),
             " tensors that heed cannot hold: ", c10::Join(", ", some),
             some.size() < file.unheld.size() ? ", ..." : "");
}

detail::Translation translated(const torch::nn::Module& module, const std::vector<HeldTensor>& ours,
                               const FileEntries& theirs, const LoadOptions& options) {
  const auto shapes = detail::whole_shapes(ours);
  const auto translate = [&](const NamedTensors& tensors) {
    return detail::translate(options.name_map(), tensors, shapes);
  };
  const auto with_unheld = [&] {
    auto tensors = theirs.tensors;
    for (const auto& name : theirs.unheld) tensors.emplace(name, at::Tensor());
    return tensors;
  };
  auto all = theirs.unheld.empty() ? translate(theirs.tensors) : translate(with_unheld());
  for (const auto& name : detail::computed_buffers(module)) all.tensors.erase(name);
  return all;
}

/// What a module and a file hold, under the module's names.
struct Contents {
  Contents(const torch::nn::Module& module, const std::string& path, const LoadOptions& options,
           const std::function<FileEntries()>& read)
      : ours(detail::held_tensors("load_weights", module, options.shards())),
        theirs(below(options.prefix(), with_tensors(read(), ours.empty(), path), path)),
        translation(detail::named("load_weights",
                                  [&] { return translated(module, ours, theirs, options); })) {}

  std::vector<HeldTensor> ours;
  FileEntries theirs;
  detail::Translation translation;
};

LoadReport load_contents(torch::nn::Module& module, const std::string& path,
                         const LoadOptions& options, const std::function<FileEntries()>& read,
                         const std::function<void()>& before_change) {
  check_options(options);
  const Contents contents(module, path, options, read);
  const auto& [ours, theirs, translation] = contents;
  const Comparison comparison(ours, theirs, translation, options);
  auto report = comparison.report();
  if (options.strict()) {
    const auto problems = comparison.misfits();
    HEED_CHECK(problems.empty(),
               "load_weights: path ({}) must fit the module, {} of whose {} tensors do{}", path,
               report.loaded.size(), ours.size(), problems);
  }
  const auto fitting = destinations(ours, report.loaded);
  const auto loaded = detail::named("load_weights", [&, &theirs = theirs, &from = translation] {
    check_tied(from, theirs.tensors, options.shards());
    return detail::each_once(fitting, from, path, options.prefix());
  });
  detail::ValueCopies copies;
  const auto prepare = [&, &from = translation] {
    for (const auto& to : loaded) detail::add_copies(copies, from, to);
    copies.prepare();
  };
  if (!options.device()) prepare();
  before_change();
  if (options.device()) {
    module.to(*options.device());
    prepare();
  }
  detail::named("load_weights", [&] { copies.run(); });
  for (const auto& file : theirs.files) report.bytes_read += file.bytes_read();
  warn_of_misfits(path, report, ours.size());
  return report;
}

}  // namespace

NamedTensors read_weights(const std::string& path, const std::string& key) {
  return detail::named("read_weights", [&] {
    auto file = detail::read_weight_file(path, key);
    warn_of_unheld(path, file);
    for (auto& [name, tensor] : file.tensors) tensor = detail::with_values(tensor);
    return std::move(file.tensors);
  });
}

LoadReport detail::load_weights(torch::nn::Module& module, const std::string& path,
                                const LoadOptions& options,
                                const std::function<void()>& before_change) {
  return load_contents(
      module, path, options, [&] { return read_file(path, options); }, before_change);
}

LoadReport detail::load_weights(torch::nn::Module& module, const std::string& path,
                                const FileEntries& file, const LoadOptions& options) {
  return load_contents(
      module, path, options, [&] { return file; }, [] {});
}

std::string detail::misfits(const torch::nn::Module& module, const std::string& path,
                            const FileEntries& file, const LoadOptions& options) {
  check_options(options);
  const Contents contents(module, path, options, [&] { return file; });
  const auto& [ours, theirs, translation] = contents;
  auto problems = Comparison(ours, theirs, translation, options).misfits();
  if (problems.empty()) {
    named("load_weights", [&] { check_tied(translation, theirs.tensors, options.shards()); });
  }
  return problems;
}

std::set<at::ScalarType> detail::floating_dtypes(const torch::nn::Module& module,
                                                 const FileEntries& file,
                                                 const LoadOptions& options) {
  const auto ours = held_tensors("load_weights", module, options.shards());
  const auto translation = translated(module, ours, file, options);
  std::set<at::ScalarType> dtypes;
  for (const auto& held : ours) {
    const auto origin = translation.origins.find(held.name);
    if (origin == translation.origins.end()) continue;
    for (const auto& name : origin->second) {
      const auto tensor = file.tensors.find(name);
      const bool is_floating = tensor != file.tensors.end() && tensor->second.is_floating_point();
      if (is_floating) dtypes.insert(tensor->second.scalar_type());
    }
  }
  return dtypes;
}

LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                        const LoadOptions& options) {
  return detail::load_weights(module, path, options, std::function<void()>([] {}));
}

}  // namespace heed
