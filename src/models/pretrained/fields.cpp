// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace heed::detail {

namespace {

struct NamedActivation {
  const char* name;
  Activation plain;
  std::optional<Activation> gated;  // none: heed has no such layer
};

// Names of transformers' ACT2FN; those of one kind differ in rounding at most.
constexpr NamedActivation kActivations[] = {
    {"relu", Activation::relu, Activation::reglu},
    {"gelu", Activation::gelu, Activation::geglu},
    {"gelu_python", Activation::gelu, Activation::geglu},
    {"gelu_new", Activation::gelu_tanh, Activation::geglu_tanh},
    {"gelu_fast", Activation::gelu_tanh, Activation::geglu_tanh},
    {"gelu_accurate", Activation::gelu_tanh, Activation::geglu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh, Activation::geglu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh, Activation::geglu_tanh},
    {"silu", Activation::silu, Activation::swiglu},
    {"swish", Activation::silu, Activation::swiglu},
    {"quick_gelu", Activation::gelu_sigmoid, std::nullopt},
};

const NamedActivation& find_activation(const Config& config, const std::string& field,
                                       const std::string& wanted, bool gated) {
  std::vector<const char*> names;
  for (const auto& known : kActivations) {
    if (gated && !known.gated) continue;
    if (known.name == wanted) return known;
    names.push_back(known.name);
  }
  config.refuse(field, fmt::format("is not supported ({})", fmt::join(names, ", ")));
}

}  // namespace

Activation read_activation(const Config& config, const std::string& name,
                           const std::string& otherwise) {
  return activation_of(config, name, config.text(name, otherwise));
}

Activation read_gated_activation(const Config& config, const std::string& name,
                                 const std::string& otherwise) {
  return gated_activation_of(config, name, config.text(name, otherwise));
}

Activation activation_of(const Config& config, const std::string& field, const std::string& name) {
  return find_activation(config, field, name, /*gated=*/false).plain;
}

Activation gated_activation_of(const Config& config, const std::string& field,
                               const std::string& name) {
  const auto& found = find_activation(config, field, name, /*gated=*/true);
  return found.gated.value_or(found.plain);
}

int64_t read_side(const Config& config, const std::string& name, int64_t otherwise) {
  if (!config.is_list(name)) return config.size(name, otherwise);
  const auto sides = config.sizes_or_null(name).value_or(std::vector<int64_t>());
  if (sides.size() != 2 || sides[0] != sides[1]) config.refuse(name, "must be those of a square");
  return sides[0];
}

double read_norm_eps(const Config& config, const std::string& name, double otherwise) {
  const auto eps = config.number(name, otherwise);
  if (eps < 0.0) config.refuse(name, "must be at least 0");
  return eps;
}

double read_factor(const Config& config, const std::string& name, double otherwise) {
  const auto factor = config.number(name, otherwise);
  if (factor == 0.0) config.refuse(name, "must not be 0");
  return factor;
}

std::optional<double> read_softcap(const Config& config, const std::string& name,
                                   std::optional<double> otherwise) {
  const auto softcap = config.number_or_null(name, otherwise);
  if (softcap && *softcap <= 0.0) config.refuse(name, "must be above 0, or null");
  return softcap;
}

int64_t read_num_layers(const Config& config, const std::string& name, int64_t otherwise) {
  constexpr int64_t kMost = 1'000;
  return config.whole(name, otherwise, 1, kMost);
}

std::vector<bool> read_local_layers(const Config& config, const std::vector<bool>& otherwise) {
  constexpr auto kTypes = "layer_types";
  const auto types = config.texts_or_null(kTypes);
  if (!types) return otherwise;
  if (types->size() != otherwise.size()) {
    config.refuse(kTypes,
                  fmt::format("must have {} elements, one for each layer", otherwise.size()));
  }
  std::vector<bool> local;
  for (const auto& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      config.refuse(kTypes, "is not supported (full_attention, sliding_attention)");
    }
    local.push_back(type == "sliding_attention");
  }
  return local;
}

}  // namespace heed::detail
