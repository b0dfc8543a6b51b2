// SPDX-License-Identifier: BSD-3-Clause
#include <heed/adapters.h>

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <utility>

#include "core/checks.h"
#include "cpu/layers/packed_weight.h"
#include "models/adapters/adapter_config.h"
#include "models/adapters/adapter_files.h"
#include "models/adapters/adapter_names.h"
#include "models/adapters/installation.h"
#include "models/pretrained/folders.h"
#include "weights/formats/bytes.h"
#include "weights/formats/file_tensors.h"
#include "weights/formats/weight_file.h"
#include "weights/module_tensors.h"
#include "weights/named.h"

namespace heed {

namespace {

using detail::AdapterConfig;
using detail::AdapterNames;
using detail::Composition;
using detail::NewAdapter;

/// The tensors of the adapter of one of the modules of a file.
struct FileAdapter {
  at::Tensor a, b, magnitude;
};

/// The tensors of an adapter's file: adapters by the names of their modules, and whole tensors.
struct FileTensors {
  std::string source;  // for errors
  std::map<std::string, FileAdapter> adapters;
  std::map<std::string, at::Tensor> others;
};

/// A tensor of the module, and its new values.
struct Replacement {
  at::Tensor parameter, values;
};

std::string find_file(const std::string& folder) {
  for (const auto* name : {detail::kAdapterSafetensors, detail::kAdapterBin}) {
    const auto path = folder + "/" + name;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  HEED_CHECK(false, "folder ({}) must have {} or {}", folder, detail::kAdapterSafetensors,
             detail::kAdapterBin);
}

/// Puts a tensor where its name says.
void add(FileTensors& file, const std::string& name, const at::Tensor& tensor) {
  const std::string prefix = detail::kAdapterPrefix;
  HEED_CHECK(detail::begins_with(name, prefix), "{}: {} must begin with {}", file.source,
             detail::in_quotes(name), prefix);
  HEED_CHECK(at::isFloatingType(tensor.scalar_type()), "{}: {} dtype ({}) must be floating-point",
             file.source, detail::in_quotes(name), c10::toString(tensor.scalar_type()));
  auto own = name.substr(prefix.size());
  const std::pair<std::string, at::Tensor FileAdapter::*> kinds[] = {
      {".lora_A.weight", &FileAdapter::a},
      {".lora_B.weight", &FileAdapter::b},
      {".lora_magnitude_vector", &FileAdapter::magnitude},
      {".lora_magnitude_vector.weight", &FileAdapter::magnitude}};
  for (const auto& [end, member] : kinds) {
    if (!detail::ends_with(own, end)) continue;
    file.adapters[own.substr(0, own.size() - end.size())].*member = tensor;
    return;
  }
  const std::string base = ".base_layer.";  // a Linear that has an adapter
  const auto at = own.find(base);
  if (at != std::string::npos) own.replace(at, base.size(), ".");
  file.others[own] = tensor;
}

FileTensors read_tensors(const std::string& folder) {
  const auto path = find_file(folder);
  const auto entries = detail::read_weight_file(detail::Bytes(path), "");
  FileTensors file{path, {}, {}};
  HEED_CHECK(entries.packed.empty() && entries.others.empty(), "{} must hold tensors alone", path);
  for (const auto& [name, tensor] : entries.tensors) add(file, name, tensor);
  return file;
}

class Loading {
 public:
  Loading(torch::nn::Module& module, const AdapterConfig& config, const FileTensors& file,
          const AdapterNames& names)
      : module_(module),
        config_(config),
        file_(file),
        names_(names),
        places_(detail::linear_places(module)) {}

  /// Checks everything, and changes nothing.
  void check() {
    HEED_CHECK(!file_.adapters.empty(), "{} must have the adapter of a Linear", file_.source);
    for (const auto& [name, adapter] : file_.adapters) add_adapter(name, adapter);
    for (const auto& [name, values] : file_.others) add_other(name, values);
    check_complete();
  }

  void run() {
    std::vector<at::Tensor> trained;
    const at::NoGradGuard no_grad;
    for (auto& [parameter, values] : replacements_) {
      detail::copy_values(values, parameter);
      trained.push_back(parameter);
    }
    detail::install(module_, adapters_, trained);
  }

 private:
  /// The Linears of which a module of the file is made, by their names here.
  std::vector<std::string> linears_of(const std::string& name) const {
    const auto* found = names_.find(name + ".weight");
    HEED_CHECK(found, "{}: {} must be a module of the model{}", file_.source,
               detail::in_quotes(name), kAdvice);
    std::vector<std::string> linears;
    for (const auto& ours : found->second.ours) {
      const auto linear = detail::module_of(ours);
      HEED_CHECK(places_.count(linear) > 0,
                 "{}: {} must be a Linear; it is {}, whose adapter is not supported", file_.source,
                 detail::in_quotes(name), linear);
      detail::check_adaptable(linear, places_.at(linear));
      linears.push_back(linear);
    }
    return linears;
  }

  void check_shape(const std::string& name, const char* end, const at::Tensor& tensor,
                   at::IntArrayRef sizes) const {
    HEED_CHECK(tensor.defined(), "{}: {} must be there", file_.source,
               detail::in_quotes(name + end));
    HEED_CHECK(tensor.sizes() == sizes, "{}: {} {} must be {}", file_.source,
               detail::in_quotes(name + end), detail::shape(tensor), c10::str(sizes));
  }

  void add_adapter(const std::string& name, const FileAdapter& adapter) {
    const auto linears = linears_of(name);
    HEED_CHECK(config_.is_target(name), "{}: {} must be one of the config's target_modules",
               file_.source, detail::in_quotes(name));
    const auto rows = c10::fmap(linears, [&](const std::string& linear) {
      return places_.at(linear).layer().weight.size(0);
    });
    const auto& weight = places_.at(linears[0]).layer().weight;
    const auto rank = config_.rank_of(name);
    const auto outputs = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    check_shape(name, ".lora_A.weight", adapter.a, {rank, weight.size(1)});
    check_shape(name, ".lora_B.weight", adapter.b, {outputs, rank});
    if (config_.dora) {
      check_shape(name, ".lora_magnitude_vector", adapter.magnitude, {outputs});
    } else {
      HEED_CHECK(!adapter.magnitude.defined(), "{}: {} must not be there: use_dora is false",
                 file_.source, detail::in_quotes(name + ".lora_magnitude_vector"));
    }
    const auto like = at::device(weight.device()).dtype(detail::adapter_dtype(weight));
    const auto read = [&](const at::Tensor& tensor) {
      return detail::with_values(tensor).to(like, /*non_blocking=*/false, /*copy=*/true);
    };
    const auto& composition = names_.find(name + ".weight")->second;
    const auto a = read(adapter.a);
    const auto b = detail::parts_of(composition, read(adapter.b), rows);
    std::vector<at::Tensor> magnitudes(linears.size());
    if (config_.dora) magnitudes = detail::parts_of(composition, read(adapter.magnitude), rows);
    for (size_t i = 0; i < linears.size(); ++i) {
      const auto magnitude = config_.dora ? magnitudes[i].clone() : at::Tensor();
      adapters_.push_back({places_.at(linears[i]),
                           {a, b[i].clone(), magnitude},
                           {config_.alpha_of(name), config_.dropout, config_.rank_stabilized}});
    }
  }

  /// A tensor that replaces one of the model's.
  void add_other(const std::string& name, const at::Tensor& values) {
    const auto* found = names_.find(name);
    HEED_CHECK(found, "{}: {} must be a tensor of the model{}", file_.source,
               detail::in_quotes(name), kAdvice);
    const bool is_bias = config_.bias != "none" && detail::ends_with(name, ".bias");
    HEED_CHECK(is_bias || config_.is_saved(name),
               "{}: {} must be in one of the config's modules_to_save, or a bias that it names",
               file_.source, detail::in_quotes(name));
    const auto& composition = found->second;
    HEED_CHECK(!names_.is_tied(composition),
               "{}: {} must not be shared by two parts of the model, of which one would be changed",
               file_.source, detail::in_quotes(name));
    check_shape(name, "", values, composition.shape.sizes());
    const auto tensors = detail::weights_of(module_);
    std::vector<int64_t> rows;
    for (const auto& ours : composition.ours) {
      HEED_CHECK(detail::packed_weight_of(tensors[ours]) == nullptr,
                 "{}: {} must not be packed by pack_weights: the file has other values of it",
                 file_.source, ours);
      rows.push_back(tensors[ours].size(0));
    }
    const auto whole = composition.transposed ? detail::transposed(values)
                                              : detail::with_leading(values, composition.leading);
    const bool is_whole = composition.ours.size() == 1 && composition.stacked == 0;
    const auto parts = is_whole ? std::vector{whole}
                                : detail::parts_of(composition, detail::with_values(whole), rows);
    for (size_t i = 0; i < parts.size(); ++i) {
      replacements_.push_back({tensors[composition.ours[i]], parts[i]});
    }
  }

  /// Throws unless the file has the adapters of all targets, and the whole modules_to_save.
  void check_complete() const {
    const auto& first = file_.adapters.begin()->first;
    const detail::Spelling spelling(names_.find(first + ".weight")->first, first + ".weight");
    for (const auto& [known, composition] : names_.all()) {
      const auto name = spelling.of(known);
      if (config_.is_saved(name) && !names_.is_tied(composition)) {
        HEED_CHECK(file_.others.count(name) > 0, "{}: {} must be there: it is in modules_to_save",
                   file_.source, detail::in_quotes(name));
      }
      const bool is_weight = detail::ends_with(name, ".weight");
      if (!is_weight || config_.all_linear || file_.adapters.count(detail::module_of(name)) > 0) {
        continue;
      }
      const bool is_linear = places_.count(detail::module_of(composition.ours.front())) > 0;
      HEED_CHECK(!is_linear || !config_.is_target(detail::module_of(name)),
                 "{}: {} must have an adapter: it is one of target_modules", file_.source,
                 detail::in_quotes(detail::module_of(name)));
    }
  }

  static constexpr auto kAdvice =
      ": source must be the folder of the model, and the adapter be made for it";

  torch::nn::Module& module_;
  const AdapterConfig& config_;
  const FileTensors& file_;
  const AdapterNames& names_;
  const std::map<std::string, detail::LinearPlace> places_;
  std::vector<NewAdapter> adapters_;
  std::vector<Replacement> replacements_;
};

}  // namespace

void load_adapter(torch::nn::Module& module, const std::string& folder,
                  const AdapterOptions& options) {
  detail::named("load_adapter", [&] {
    detail::check_folder(folder);
    detail::check_takes_adapter(module);
    const auto config = detail::read_adapter_config(folder + "/" + detail::kAdapterConfig);
    const auto file = read_tensors(folder);
    const AdapterNames names(module, options.source());
    Loading loading(module, config, file, names);
    loading.check();
    loading.run();
  });
}

}  // namespace heed
