// SPDX-License-Identifier: BSD-3-Clause
#include "models/adapters/adapter_names.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "core/error.h"
#include "models/pretrained/blueprint.h"
#include "models/pretrained/folders.h"
#include "models/pretrained/heads.h"
#include "modules/layers/lora_linear.h"
#include "weights/module_tensors.h"
#include "weights/shards.h"
#include "weights/stacks.h"

namespace heed::detail {

namespace {

template <typename Impl, typename Options>
bool fits(const torch::nn::Module& module, const Blueprint& blueprint) {
  return module.as<Impl>() != nullptr && std::holds_alternative<Options>(blueprint.options);
}

Task task_of(const torch::nn::Module& module) {
  if (module.as<SequenceClassifierImpl>() != nullptr) return Task::classify_sequences;
  if (module.as<TokenClassifierImpl>() != nullptr) return Task::classify_tokens;
  if (module.as<TextEncoderImpl>() != nullptr) return Task::encode_texts;
  if (module.as<ImageEncoderImpl>() != nullptr) return Task::encode_images;
  return module.as<MaskedLanguageModelImpl>() != nullptr ? Task::fill_masks : Task::own;
}

NameMap names_of(const torch::nn::Module& module, const std::string& source) {
  const auto config = config_at(source);
  auto blueprint = read_blueprint(config, task_of(module));
  const bool fit = fits<DecoderImpl, DecoderOptions>(module, blueprint) ||
                   fits<TextEncoderImpl, TextEncoderOptions>(module, blueprint) ||
                   fits<ImageEncoderImpl, ImageEncoderOptions>(module, blueprint) ||
                   fits<EncoderDecoderImpl, EncoderDecoderOptions>(module, blueprint) ||
                   fits<SequenceClassifierImpl, SequenceClassifierOptions>(module, blueprint) ||
                   fits<TokenClassifierImpl, TokenClassifierOptions>(module, blueprint) ||
                   fits<MaskedLanguageModelImpl, MaskedLanguageModelOptions>(module, blueprint);
  HEED_CHECK(fit, "{} must describe a model of the module's class", config);
  const auto* decoder = module.as<DecoderImpl>();
  if (decoder != nullptr && !decoder->options.head()) {
    remove_head(blueprint);
    return without_prefix(blueprint.names, blueprint.prefix);
  }
  return blueprint.names;
}

/// The shapes of a module's tensors but those of adapters.
ModuleTensors shapes_without_adapters(const torch::nn::Module& module) {
  std::set<std::string> adapters;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& each) {
    if (dynamic_cast<const LoraLinearImpl*>(&each) == nullptr) return;
    for (const auto* name : {"lora_a", "lora_b", "lora_magnitude"}) adapters.insert(prefix + name);
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key() + ".", *item.value());
  }
  ModuleTensors shapes;
  for (const auto& item : weights_of(module)) {
    if (adapters.count(item.key()) == 0) shapes.insert(item.key(), shape_alone(item.value()));
  }
  return shapes;
}

}  // namespace

AdapterNames::AdapterNames(const torch::nn::Module& module,
                           const std::optional<std::string>& source)
    : map_(source ? names_of(module, *source) : NameMap()),
      all_(invert(map_, shapes_without_adapters(module))) {
  for (const auto& [name, composition] : all_) by_ours_.emplace(composition.ours.front(), name);
}

const std::pair<const std::string, Composition>* AdapterNames::find(
    const std::string& theirs) const {
  if (const auto found = all_.find(theirs); found != all_.end()) return &*found;
  const auto ours = translated_name(map_, theirs);
  const auto name = by_ours_.find(ours.front());
  if (name == by_ours_.end()) return nullptr;
  const auto& found = *all_.find(name->second);
  return found.second.ours == ours ? &found : nullptr;
}

bool AdapterNames::is_tied(const Composition& composition) const {
  return std::count_if(all_.begin(), all_.end(),
                       [&](const auto& item) { return item.second.ours == composition.ours; }) > 1;
}

std::vector<at::Tensor> parts_of(const Composition& composition, const at::Tensor& whole,
                                 const std::vector<int64_t>& rows) {
  std::vector<at::Tensor> parts;
  if (composition.stacked > 0) {
    const auto size = static_cast<int64_t>(rows.size()) / composition.stacked;
    for (int64_t i = 0; i < composition.stacked; ++i) {
      const auto own = rows.begin() + i * size;
      const auto views = unstacked(whole, i, {own, own + size}, composition.layout);
      parts.insert(parts.end(), views.begin(), views.end());
    }
    return parts;
  }
  if (composition.heads == 0) return whole.split_with_sizes(rows);
  const auto count = static_cast<int64_t>(rows.size());
  for (const auto& heads : head_parts(whole, composition.heads, count)) {
    parts.push_back(at::cat(heads));
  }
  return parts;
}

}  // namespace heed::detail
