// SPDX-License-Identifier: BSD-3-Clause
#include "models/adapters/adapter_config.h"

#include <algorithm>

#include "core/error.h"
#include "models/pretrained/config.h"
#include "weights/dotted_names.h"
#include "weights/formats/bytes.h"

namespace heed::detail {

namespace {

constexpr auto kTargets = "target_modules";
constexpr auto kLayers = "layers_to_transform";
constexpr auto kLayersPattern = "layers_pattern";
constexpr int64_t kMostOfARank = INT32_MAX;

bool ends_in(const std::string& name, const std::string& end) {
  return name == end ||
         (name.size() > end.size() &&
          name.compare(name.size() - end.size() - 1, std::string::npos, "." + end) == 0);
}

std::regex expression_of(const Config& config, const std::string& field, const std::string& text) {
  constexpr size_t kLongest = 10000;
  if (text.size() > kLongest) {
    config.refuse(field,
                  fmt::format("must be a regular expression of at most {} characters", kLongest));
  }
  try {
    return std::regex(text);
  } catch (const std::regex_error&) {
    config.refuse(field, "must be a regular expression that C++ knows too");
  }
}

/// A field that is null, a string or a list of strings.
ModuleNames read_names(const Config& config, const std::string& field) {
  if (config.is_text(field)) {
    return {expression_of(config, field, config.text(field, std::nullopt)), {}};
  }
  return {std::nullopt, config.texts_or_null(field).value_or(std::vector<std::string>())};
}

NumberPatterns read_patterns(const Config& config, const std::string& field, bool whole) {
  const auto numbers = config.object(field);
  NumberPatterns patterns;
  for (const auto& name : numbers.names()) {
    const auto number = whole ? static_cast<double>(numbers.whole(name, {}, 1, kMostOfARank))
                              : numbers.number(name, std::nullopt);
    patterns.emplace_back(expression_of(config, field, "(.*\\.)?(" + name + ")"), number);
  }
  return patterns;
}

double number_of(const NumberPatterns& patterns, const std::string& name, double otherwise) {
  for (const auto& [expression, number] : patterns) {
    if (std::regex_match(name, expression)) return number;
  }
  return otherwise;
}

void read_layers(const Config& config, AdapterConfig& adapter) {
  if (config.is_list(kLayers)) {
    adapter.layers = config.sizes_or_null(kLayers);
  } else if (config.number_or_null(kLayers)) {
    adapter.layers = {config.whole(kLayers, std::nullopt, 0, kMostOfARank)};
  }
  if (adapter.layers && adapter.layers->empty()) adapter.layers = std::nullopt;
  const auto patterns =
      config.is_text(kLayersPattern)
          ? std::vector{config.text(kLayersPattern, std::nullopt)}
          : config.texts_or_null(kLayersPattern).value_or(std::vector<std::string>());
  for (const auto& pattern : patterns) {
    adapter.layers_patterns.push_back(
        expression_of(config, kLayersPattern, R"(^(?:.*?\.)?)" + pattern + R"(\.(\d{1,9})\.)"));
  }
}

/// Refuses initializations that change the model's own weights, to which the adapter belongs.
void check_initialization(const Config& config) {
  constexpr auto kInitialization = "init_lora_weights";
  if (!config.is_text(kInitialization)) {
    config.ignore({kInitialization});
    return;
  }
  const auto kind = config.text(kInitialization, std::nullopt);
  if (kind != "gaussian" && kind != "eva" && kind != "orthogonal") {
    config.refuse(kInitialization,
                  "changes the model's own weights, which heed does not: convert the adapter with "
                  "PEFT's path_initial_model_for_weight_conversion");
  }
}

/// Fields that make no difference to what a trained adapter computes.
void ignore_origin(const Config& config) {
  config.ignore({"auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying",
                 "eva_config", "fan_in_fan_out", "inference_mode", "loftq_config", "lora_ga_config",
                 "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
                 "task_type", "velora_config"});
}

/// Fields that heed supports only where they are not used.
void refuse_others(const Config& config) {
  for (const auto* name :
       {"alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
        "megatron_config", "monteclora_config", "target_parameters", "trainable_token_indices"}) {
    config.expect(name, {"null", "[]", "{}"});
  }
  config.expect("lora_bias", {"false"});
  config.expect("use_bdlora", {"null", "false"});
  config.expect("use_qalora", {"false"});
}

AdapterConfig read_fields(const Config& config) {
  AdapterConfig adapter;
  adapter.rank = config.whole("r", 8, 1, kMostOfARank);
  adapter.alpha = config.number("lora_alpha", 8.0);
  adapter.dropout = config.probability("lora_dropout", 0.0);
  adapter.ranks = read_patterns(config, "rank_pattern", /*whole=*/true);
  adapter.alphas = read_patterns(config, "alpha_pattern", /*whole=*/false);
  adapter.rank_stabilized = config.boolean("use_rslora", false);
  adapter.dora = config.boolean("use_dora", false);
  adapter.all_linear =
      config.is_text(kTargets) && config.text(kTargets, std::nullopt) == "all-linear";
  if (!adapter.all_linear) adapter.targets = read_names(config, kTargets);
  adapter.excluded = read_names(config, "exclude_modules");
  adapter.modules_to_save =
      config.texts_or_null("modules_to_save").value_or(std::vector<std::string>());
  read_layers(config, adapter);
  adapter.bias = config.text("bias", "none");
  if (adapter.bias != "none" && adapter.bias != "all" && adapter.bias != "lora_only") {
    config.refuse("bias", "is not supported (none, all, lora_only)");
  }
  return adapter;
}

/// The number of the layer that a module is in; none if it is in no numbered one.
std::optional<int64_t> layer_of(const std::string& name, const std::vector<std::regex>& patterns) {
  static const std::vector any = {std::regex(R"(^.*?\.[^.]*\.(\d{1,9})\.)")};
  for (const auto& pattern : patterns.empty() ? any : patterns) {
    std::smatch found;
    if (std::regex_search(name, found, pattern)) {
      return std::stoll(found[found.size() - 1].str());  // a pattern may have groups of its own
    }
  }
  return std::nullopt;
}

}  // namespace

bool ModuleNames::has(const std::string& name) const {
  if (expression) return std::regex_match(name, *expression);
  return std::any_of(ends.begin(), ends.end(), [&](const auto& end) { return ends_in(name, end); });
}

bool AdapterConfig::is_saved(const std::string& name) const {
  const auto ends_with_one = [&](const std::string& module) {
    return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                       [&](const auto& end) { return !end.empty() && ends_with(module, end); });
  };
  // PEFT saves "input_layernorm" for "norm".
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (ends_with_one(name.substr(0, dot))) return true;
  }
  return ends_with_one(name);
}

bool AdapterConfig::is_target(const std::string& name) const {
  const bool is_in_saved = std::any_of(
      modules_to_save.begin(), modules_to_save.end(),
      [&](const auto& module) { return !module.empty() && find_part(module, name).has_value(); });
  if (excluded.has(name) || is_in_saved) return false;
  if (all_linear) return true;
  if (!targets.has(name)) return false;
  const auto& ends = targets.ends;
  const bool is_named_wholly = std::find(ends.begin(), ends.end(), name) != ends.end();
  if (targets.expression || is_named_wholly || !layers) return true;
  const auto layer = layer_of(name, layers_patterns);
  return layer && std::find(layers->begin(), layers->end(), *layer) != layers->end();
}

int64_t AdapterConfig::rank_of(const std::string& name) const {
  return static_cast<int64_t>(number_of(ranks, name, static_cast<double>(rank)));
}

double AdapterConfig::alpha_of(const std::string& name) const {
  return number_of(alphas, name, alpha);
}

AdapterConfig read_adapter_config(const std::string& path) {
  const Config config(path);
  const auto type = config.text("peft_type", std::nullopt);
  if (type != "LORA") config.refuse("peft_type", "is not supported (LORA)");
  auto adapter = read_fields(config);
  check_initialization(config);
  ignore_origin(config);
  refuse_others(config);
  config.check_all_read();
  return adapter;
}

}  // namespace heed::detail
