// SPDX-License-Identifier: BSD-3-Clause
#include <heed/adapters.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <heed/decoder.h>
#include <heed/weights.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/seen_tensors.h"
#include "cpu/layers/packed_weight.h"
#include "models/adapters/adapter_files.h"
#include "models/adapters/adapter_names.h"
#include "modules/layers/lora_linear.h"
#include "weights/formats/atomic_file.h"
#include "weights/module_tensors.h"
#include "weights/named.h"

namespace heed {

namespace {

using detail::Composition;
using detail::LoraLinearImpl;
using Json = nlohmann::ordered_json;

/// The adapter of a module of the file, made of those of the Linears that it packs.
struct JoinedAdapter {
  at::Tensor a, b, magnitude;
  double alpha;
};

/// alpha as the file has it for a factor of B A.
double alpha_of(double scale, int64_t rank, bool rank_stabilized) {
  const auto r = static_cast<double>(rank);
  return scale * (rank_stabilized ? std::sqrt(r) : r);
}

/// Joins the adapters of Linears [N_i, K], in the order of their rows: [A_i], each once, under each
/// other, and the B_i in the rows and columns that are theirs. A Linear without an adapter is null.
class Joining {
 public:
  explicit Joining(std::string name) : name_(std::move(name)) {}

  void add(const torch::nn::LinearImpl& layer, const LoraLinearImpl* adapted) {
    layers_.push_back({&layer, adapted, 0});
    if (adapted == nullptr) return;
    if (first_ == nullptr) first_ = adapted;
    const auto known = std::find_if(as_.begin(), as_.end(),
                                    [&](const auto& a) { return a.is_same(adapted->lora_a); });
    int64_t column = 0;
    for (auto a = as_.begin(); a != known; ++a) column += a->size(0);
    layers_.back().column = column;
    if (known == as_.end()) as_.push_back(adapted->lora_a);
  }

  bool empty() const { return first_ == nullptr; }

  JoinedAdapter join(int64_t heads) const {
    const auto a = as_.size() == 1 ? as_[0] : at::cat(as_);
    std::vector<at::Tensor> bs, magnitudes;
    for (const auto& [layer, adapted, column] : layers_) {
      const auto rows = layer->weight.size(0);
      auto b = at::zeros({rows, a.size(0)}, first_->lora_b.options());
      if (adapted != nullptr) {
        check_alike(*adapted);
        b.narrow(1, column, adapted->lora_rank())
            .copy_(adapted->lora_b * (adapted->scale() / first_->scale()));
      }
      bs.push_back(b);
      if (!first_->lora_magnitude.defined()) continue;
      magnitudes.push_back(adapted != nullptr ? adapted->lora_magnitude
                                              : detail::row_lengths(layer->weight));
    }
    const bool stabilized = first_->settings.rank_stabilized;
    return {a, joined(bs, heads), magnitudes.empty() ? at::Tensor() : joined(magnitudes, heads),
            alpha_of(first_->scale(), a.size(0), stabilized)};
  }

 private:
  struct Layer {
    const torch::nn::LinearImpl* layer;
    const LoraLinearImpl* adapted;
    int64_t column;  // of its B
  };

  void check_alike(const LoraLinearImpl& adapted) const {
    HEED_CHECK(adapted.lora_magnitude.defined() == first_->lora_magnitude.defined(),
               "the Linears of {} must all have DoRA or none", name_);
  }

  static at::Tensor joined(const std::vector<at::Tensor>& parts, int64_t heads) {
    Composition rows{{}, false, {}, heads};
    for (size_t i = 0; i < parts.size(); ++i) rows.ours.push_back(std::to_string(i));
    return make(rows, [&](const auto& i) { return parts[std::stoul(i)]; });
  }

  const std::string name_;
  std::vector<Layer> layers_;
  std::vector<at::Tensor> as_;
  const LoraLinearImpl* first_ = nullptr;
};

/// A number as PEFT writes it, whose alphas are mostly whole.
Json number(double value) {
  const auto nearest = std::round(value);
  const bool is_whole = std::abs(value - nearest) <= 1e-9 * std::abs(value) &&
                        std::abs(nearest) < 1e15;  // 8 / sqrt(2) * sqrt(2) is 8
  return is_whole ? Json(static_cast<int64_t>(nearest)) : Json(value);
}

/// PEFT's task of a model with a head for the next token; none for others, to whose modules PEFT
/// would add those that it expects.
Json task_type(const torch::nn::Module& module) {
  const auto* decoder = module.as<DecoderImpl>();
  return decoder != nullptr && decoder->options.head() ? Json("CAUSAL_LM") : Json();
}

/// The contents of the two files.
class AdapterFolder {
 public:
  AdapterFolder(const torch::nn::Module& module, const AdapterOptions& options)
      : module_(module), names_(module, options.source()), tensors_(detail::weights_of(module)) {
    for (const auto& item : module.named_modules("", /*include_self=*/false)) {
      if (const auto* linear = item.value()->as<torch::nn::LinearImpl>()) {
        linears_[item.key()] = linear;
      }
    }
    for (const auto& [name, composition] : names_.all()) add_adapter(name, composition);
    for (const auto& [name, composition] : names_.all()) add_trained(name, composition);
    HEED_CHECK(first_ != nullptr, "module must have an adapter");
    describe(options);
  }

  const NamedTensors& tensors() const { return held_; }
  std::string config() const { return config_.dump(2) + "\n"; }

 private:
  /// Adds a tensor of which a part is trained.
  void add_trained(const std::string& name, const Composition& composition) {
    const bool is_trained =
        std::any_of(composition.ours.begin(), composition.ours.end(),
                    [&](const auto& ours) { return tensors_[ours].requires_grad(); });
    if (!is_trained || !seen_.add(tensors_[composition.ours.front()])) return;
    trained_.insert(name);
    const auto whole = make(composition, [&](const auto& ours) { return tensors_[ours].detach(); });
    const auto owner = detail::module_of(name);
    const bool is_adapted = config_["rank_pattern"].contains(owner);
    held_[detail::kAdapterPrefix +
          (is_adapted ? owner + ".base_layer" + name.substr(owner.size()) : name)] = whole;
  }

  const LoraLinearImpl* adapter_of(const std::string& tensor) const {
    const auto found = linears_.find(detail::module_of(tensor));
    return found == linears_.end() ? nullptr : dynamic_cast<const LoraLinearImpl*>(found->second);
  }

  void add_adapter(const std::string& name, const Composition& composition) {
    for (const auto& ours : composition.ours) {
      HEED_CHECK(composition.stacked == 0 || adapter_of(ours) == nullptr,
                 "{} must have no adapter: source has its weight in {}, with those of others",
                 detail::module_of(ours), name);
    }
    if (!detail::ends_with(name, ".weight")) return;
    const auto module = detail::module_of(name);
    Joining joining(module);
    for (const auto& ours : composition.ours) {
      const auto found = linears_.find(detail::module_of(ours));
      if (found == linears_.end()) return;
      const auto* adapted = dynamic_cast<const LoraLinearImpl*>(found->second);
      if (adapted != nullptr) check_settings(detail::module_of(ours), *adapted);
      joining.add(*found->second, adapted);
    }
    if (joining.empty()) return;
    is_transposed_ = composition.transposed;
    const auto joined = joining.join(composition.heads);
    const auto prefix = detail::kAdapterPrefix + module;
    held_[prefix + ".lora_A.weight"] = joined.a.detach();
    held_[prefix + ".lora_B.weight"] = joined.b.detach();
    if (joined.magnitude.defined()) {
      held_[prefix + ".lora_magnitude_vector"] = joined.magnitude.detach();
    }
    config_["target_modules"].push_back(module);
    config_["rank_pattern"][module] = joined.a.size(0);
    config_["alpha_pattern"][module] = number(joined.alpha);
  }

  /// Throws unless the numbers that a config has once are those of all layers.
  void check_settings(const std::string& name, const LoraLinearImpl& adapted) {
    if (first_ == nullptr) first_ = &adapted;
    HEED_CHECK(adapted.settings.dropout == first_->settings.dropout &&
                   adapted.settings.rank_stabilized == first_->settings.rank_stabilized &&
                   adapted.lora_magnitude.defined() == first_->lora_magnitude.defined(),
               "{} must have the dropout, rank_stabilized and dora of the other adapters", name);
  }

  /// The modules of which something else than a bias is trained: all of it is then saved.
  std::set<std::string> modules_to_save() const {
    std::set<std::string> modules;
    for (const auto& name : trained_) {
      if (!detail::ends_with(name, ".bias")) modules.insert(detail::module_of(name));
    }
    return modules;
  }

  void describe(const AdapterOptions& options) {
    const auto whole = modules_to_save();
    const bool has_biases = std::any_of(trained_.begin(), trained_.end(), [&](const auto& name) {
      return whole.count(detail::module_of(name)) == 0;
    });
    // The numbers of the first module are those of all without a pattern.
    const Json ranks = config_["rank_pattern"], alphas = config_["alpha_pattern"];
    const Json rank = *ranks.begin(), alpha = *alphas.begin();
    for (const auto& [name, value] : ranks.items()) {
      if (value == rank) config_["rank_pattern"].erase(name);
    }
    for (const auto& [name, value] : alphas.items()) {
      if (value == alpha) config_["alpha_pattern"].erase(name);
    }
    config_["r"] = rank;
    config_["lora_alpha"] = alpha;
    config_["peft_type"] = "LORA";
    config_["task_type"] = task_type(module_);
    config_["base_model_name_or_path"] = options.source() ? Json(*options.source()) : Json();
    config_["inference_mode"] = true;
    config_["bias"] = has_biases ? "all" : "none";
    config_["lora_dropout"] = first_->settings.dropout;
    config_["use_rslora"] = first_->settings.rank_stabilized;
    config_["use_dora"] = first_->lora_magnitude.defined();
    config_["fan_in_fan_out"] = is_transposed_;
    config_["modules_to_save"] = whole.empty() ? Json() : Json(whole);
  }

  const torch::nn::Module& module_;
  const detail::AdapterNames names_;
  const detail::ModuleTensors tensors_;
  std::map<std::string, const torch::nn::LinearImpl*> linears_;
  const LoraLinearImpl* first_ = nullptr;
  bool is_transposed_ = false;
  NamedTensors held_;
  std::set<std::string> trained_;  // names of whole tensors
  detail::SeenTensors seen_;
  Json config_ = {{"target_modules", Json::array()},
                  {"rank_pattern", Json::object()},
                  {"alpha_pattern", Json::object()}};
};

}  // namespace

void save_adapter(const torch::nn::Module& module, const std::string& folder,
                  const AdapterOptions& options) {
  detail::named("save_adapter", [&] {
    const AdapterFolder written(module, options);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    HEED_CHECK(!error, "folder ({}) cannot be made: {}", folder, error.message());
    save_weights(written.tensors(), folder + "/" + detail::kAdapterSafetensors);
    detail::AtomicFile file(folder + "/" + detail::kAdapterConfig);
    file.write(written.config());
    file.commit();
  });
}

}  // namespace heed
