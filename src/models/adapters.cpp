// SPDX-License-Identifier: BSD-3-Clause
#include <heed/adapters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <utility>

#include "core/check_memory.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "core/seen_tensors.h"
#include "cpu/layers/packed_weight.h"
#include "models/adapters/installation.h"
#include "models/expert_sharing.h"
#include "modules/layers/packable.h"
#include "modules/layers/parameters.h"
#include "weights/formats/bytes.h"
#include "weights/named.h"

namespace heed {

LoraOptions::LoraOptions(int64_t rank) : rank_(rank) {}

namespace {

using detail::LinearPlace;
using detail::NewAdapter;

constexpr auto kAddAdapter = "add_adapter";
constexpr auto kMergeAdapter = "merge_adapter";

void check_options(const LoraOptions& options) {
  detail::check_positive(kAddAdapter, "rank", options.rank());
  HEED_CHECK(std::isfinite(options.alpha()) && options.alpha() != 0.0,
             "{}: alpha ({}) must be finite and not 0", kAddAdapter, options.alpha());
  detail::check_probability(kAddAdapter, "dropout", options.dropout());
}

/// Whether the dotted `name` is `end`, or ends with it.
bool has_end(const std::string& name, const std::string& end) {
  return !end.empty() && detail::ends_with("." + name, "." + end);
}

/// The places that the options choose.
std::map<std::string, LinearPlace> chosen(const std::map<std::string, LinearPlace>& places,
                                          const std::vector<std::string>& ends) {
  std::map<std::string, LinearPlace> found;
  for (const auto& [name, place] : places) {
    if (ends.empty() && place.in_block) found.emplace(name, place);
  }
  HEED_CHECK(!ends.empty() || !found.empty(),
             "module must have an attention or a feed-forward layer, or target_modules be given");
  for (const auto& end : ends) {
    bool known = false;
    for (const auto& [name, place] : places) {
      if (!has_end(name, end)) continue;
      known = true;
      found.emplace(name, place);
    }
    HEED_CHECK(known, "target_modules ({}) must be the end of a Linear's name", end);
  }
  return found;
}

/// The parameters of the modules that are trained as a whole.
std::vector<at::Tensor> trained_wholly(torch::nn::Module& module,
                                       const std::map<std::string, LinearPlace>& adapted,
                                       const std::vector<std::string>& ends) {
  std::vector<at::Tensor> trained;
  for (const auto& end : ends) {
    bool known = false;
    for (const auto& item : module.named_modules("", /*include_self=*/false)) {
      if (!has_end(item.key(), end)) continue;
      known = true;
      for (const auto& parameter : item.value()->named_parameters()) {
        const auto name = item.key() + "." + parameter.key();
        HEED_CHECK(detail::packed_weight_of(parameter.value()) == nullptr,
                   "modules_to_save ({}) must not have packed weights, such as {}", end, name);
        HEED_CHECK(adapted.count(name.substr(0, name.rfind('.'))) == 0,
                   "modules_to_save ({}) must not have Linears of target_modules, such as {}", end,
                   name);
        trained.push_back(parameter.value());
      }
    }
    HEED_CHECK(known, "modules_to_save ({}) must be the end of a module's name", end);
  }
  return trained;
}

/// New parameters: A is drawn as PEFT's, B is 0.
detail::LoraParameters new_parameters(const at::Tensor& weight, const LoraOptions& options) {
  const auto dtype = detail::adapter_dtype(weight);
  const auto like = at::device(weight.device()).dtype(dtype);
  detail::check_memory("LoraOptions", "lora_a", {options.rank(), weight.size(1)}, dtype);
  detail::check_memory("LoraOptions", "lora_b", {weight.size(0), options.rank()}, dtype);
  const auto bound = 1.0 / std::sqrt(static_cast<double>(weight.size(1)));
  const at::NoGradGuard no_grad;
  detail::LoraParameters made;
  made.a = at::empty({options.rank(), weight.size(1)}, like).uniform_(-bound, bound);
  made.b = at::zeros({weight.size(0), options.rank()}, like);
  if (options.dora()) made.magnitude = detail::row_lengths(weight).to(like);
  return made;
}

}  // namespace

at::ScalarType detail::adapter_dtype(const at::Tensor& weight) {
  return compute_dtype(weight.scalar_type());
}

void detail::check_takes_adapter(const torch::nn::Module& module) {
  check_no_adapter(module, " already");
  const auto check = [&](const torch::nn::Module& each) {
    HEED_CHECK(dynamic_cast<const ExpertSharing*>(&each) == nullptr,
               "module must not have experts that are split among processes: give the rest of it "
               "an adapter before parallelize_experts");
  };
  check(module);
  for (const auto& each : module.modules(/*include_self=*/false)) check(*each);
}

void detail::check_adaptable(const std::string& name, const LinearPlace& place) {
  const auto& layer = place.layer();
  HEED_CHECK(is_own_layer(layer), "{} must be LibTorch's own layer, not {}", name,
             c10::demangle(typeid(layer).name()));
  HEED_CHECK(layer.weight.defined() && at::isFloatingType(layer.weight.scalar_type()),
             "{} must have a floating-point weight", name);
}

void detail::install(torch::nn::Module& module, const std::vector<NewAdapter>& adapters,
                     const std::vector<at::Tensor>& trained) {
  std::vector<std::shared_ptr<LoraLinearImpl>> layers;
  for (const auto& [place, parameters, settings] : adapters) {
    const auto& base = place.layer();
    layers.push_back(std::make_shared<LoraLinearImpl>(base, parameters, settings));
    layers.back()->train(base.is_training());
  }
  for (const auto& parameter : module.parameters()) parameter.set_requires_grad(false);
  for (const auto& parameter : trained) parameter.set_requires_grad(true);
  for (size_t i = 0; i < layers.size(); ++i) adapters[i].place.put(layers[i]);
}

void add_adapter(torch::nn::Module& module, const LoraOptions& options) {
  check_options(options);
  detail::named(kAddAdapter, [&] {
    detail::check_takes_adapter(module);
    const auto adapted = chosen(detail::linear_places(module), options.target_modules());
    for (const auto& [name, place] : adapted) detail::check_adaptable(name, place);
    const auto trained = trained_wholly(module, adapted, options.modules_to_save());
    std::vector<NewAdapter> adapters;
    adapters.reserve(adapted.size());
    for (const auto& [name, place] : adapted) {
      adapters.push_back({place,
                          new_parameters(place.layer().weight, options),
                          {options.alpha(), options.dropout(), options.rank_stabilized()}});
    }
    detail::install(module, adapters, trained);
  });
}

void merge_adapter(torch::nn::Module& module) {
  std::vector<std::pair<LinearPlace, detail::LoraLinearImpl*>> adapted;
  for (const auto& [name, place] : detail::linear_places(module)) {
    auto* layer = dynamic_cast<detail::LoraLinearImpl*>(&place.layer());
    if (layer == nullptr) continue;
    HEED_CHECK(detail::packed_weight_of(layer->weight) == nullptr,
               "{}: {} must not be packed by pack_weights", kMergeAdapter, name);
    adapted.emplace_back(place, layer);
  }
  HEED_CHECK(!adapted.empty(), "{}: module must have an adapter", kMergeAdapter);
  for (const auto& [place, layer] : adapted) {
    const auto& weight = layer->weight;
    const detail::UninitializedParameters uninitialized(weight.options());
    auto plain = detail::make_linear(weight.size(1), weight.size(0), layer->bias.defined());
    const at::NoGradGuard no_grad;
    plain->weight.copy_(layer->merged_weight());
    if (layer->bias.defined()) plain->bias.copy_(layer->bias);
    plain->train(layer->is_training());
    place.put(plain.ptr());
  }
  for (const auto& parameter : module.parameters()) parameter.set_requires_grad(true);
}

std::vector<at::Tensor> adapter_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  detail::SeenTensors seen;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad() && seen.add(parameter)) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace heed
