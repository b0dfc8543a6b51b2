// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <heed/decoder.h>
#include <heed/latent_attention.h>
#include <heed/mixture_of_experts.h>
#include <heed/pack_weights.h>
#include <heed/task_heads.h>
#include <heed/text_encoder.h>
#include <torch/nn/modules/activation.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "cpu/layers/packed_weight.h"
#include "models/expert_sharing.h"
#include "models/weight_packer.h"
#include "modules/layers/packable.h"

namespace heed {

PackOptions::PackOptions(PackFormat format) : format_(format) {}

namespace {

using detail::PackedFormat;
using detail::PackedPlace;

constexpr auto kPackWeights = "pack_weights";

PackedFormat format_of(PackFormat format, at::ScalarType dtype) {
  switch (format) {
    case PackFormat::as_is:
      return dtype == at::kFloat
                 ? PackedFormat::float32
                 : (dtype == at::kHalf ? PackedFormat::float16 : PackedFormat::bfloat16);
    case PackFormat::float32:
      return PackedFormat::float32;
    case PackFormat::bfloat16:
      return PackedFormat::bfloat16;
    case PackFormat::float16:
      return PackedFormat::float16;
    case PackFormat::int8:
      return PackedFormat::int8;
    case PackFormat::int4:
      return PackedFormat::int4;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown format");
}

/// The largest number that a format rounds to a finite one.
double largest_of(PackedFormat format) {
  if (format == PackedFormat::float16) return 65504;
  if (format == PackedFormat::float32) return std::numeric_limits<float>::max();
  return 0x1.fep127;  // of bfloat16, which scales of int4 are too
}

void check_options(const PackOptions& options) {
  const auto group = options.group_size();
  HEED_CHECK(detail::is_group(PackedFormat::int4, group),
             "{}: group_size ({}) must be 32, 64 or 128", kPackWeights, group);
  const bool has_int4 =
      options.format() == PackFormat::int4 || options.embedding_format() == PackFormat::int4;
  HEED_CHECK(has_int4 || !options.zero_point(), "{}: zero_point needs the format int4",
             kPackWeights);
  const bool has_int8 =
      options.format() == PackFormat::int8 || options.embedding_format() == PackFormat::int8;
  HEED_CHECK(has_int8 || has_int4 || !options.quantize_activations(),
             "{}: quantize_activations needs the format int8 or int4", kPackWeights);
}

void check_weight(const PackedPlace& place) {
  const auto& weight = *place.weight;
  const auto& name = place.name;
  detail::check_defined(kPackWeights, name.c_str(), weight);
  HEED_CHECK(detail::packed_weight_of(weight) == nullptr, "{}: {} must not be packed already",
             kPackWeights, name);
  HEED_CHECK(weight.is_cpu() && weight.layout() == at::kStrided,
             "{}: {} must be a strided tensor on the CPU; device {}", kPackWeights, name,
             weight.device().str());
  const auto dtype = weight.scalar_type();
  HEED_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
             "{}: {} dtype ({}) must be float32, bfloat16 or float16", kPackWeights, name,
             c10::toString(dtype));
  HEED_CHECK(weight.numel() > 0, "{}: {} must not be empty", kPackWeights, name);
  const auto group = place.layout.group;
  HEED_CHECK(group == 0 || weight.size(1) % group == 0,
             "{}: inputs of {} ({}) must be divisible by group_size ({})", kPackWeights, name,
             weight.size(1), group);
  const auto [least, most] = at::aminmax(weight.detach());
  const auto largest = std::max(std::abs(least.item<double>()), std::abs(most.item<double>()));
  // A zero point needs the range from the least to the greatest weight.
  const auto limit = largest_of(place.layout.format) / (place.layout.zero_point ? 2 : 1);
  HEED_CHECK(largest <= limit,  // false for NaN
             "{}: {} must be finite in its format; its largest magnitude is {}", kPackWeights, name,
             largest);
}

/// Finds the weights that are packed.
class Places {
 public:
  Places(torch::nn::Module& module, const PackOptions& options) : options_(options) {
    // A module on the stack cannot be one of its own named_modules.
    const auto below = module.named_modules("", /*include_self=*/false);
    ask_owner(module);
    for (const auto& item : below) ask_owner(*item.value());
    add("", module);
    for (const auto& item : below) add(item.key(), *item.value());
  }

  const std::vector<PackedPlace>& all() const { return places_; }

 private:
  /// Remembers layers that are packed, or are not, because of the module that has them.
  void ask_owner(torch::nn::Module& module) {
    if (auto* latent = module.as<LatentAttentionImpl>()) done_.insert(latent->fc_kv_up.get());
    if (auto* mixture = module.as<MixtureOfExpertsImpl>()) ask_mixture(*mixture);
    auto* decoder = module.as<DecoderImpl>();
    auto* encoder = module.as<TextEncoderImpl>();
    const auto own = options_.embedding_format();
    const bool is_head = decoder != nullptr && decoder->options.head() && decoder->head.is_empty();
    if (decoder != nullptr && (own || is_head)) {
      embeddings_[decoder->token_embedding.get()] = own.value_or(options_.format());
    }
    if (auto* masked = module.as<MaskedLanguageModelImpl>()) {
      embeddings_[masked->encoder->token_embedding.get()] = own.value_or(options_.format());
    }
    if (encoder != nullptr && own) embeddings_[encoder->token_embedding.get()] = *own;
  }

  void ask_mixture(const MixtureOfExpertsImpl& mixture) {
    done_.insert(mixture.router.get());
    const auto* sharing = detail::sharing_of(mixture.experts);
    for (size_t i = 0; i < mixture.experts->size(); ++i) {
      if (detail::has_expert(sharing, i)) continue;  // the others are empty
      for (const auto& layer : mixture.experts->ptr(i)->modules()) done_.insert(layer.get());
    }
  }

  void add(const std::string& name, torch::nn::Module& module) {
    HEED_CHECK(module.as<torch::nn::MultiheadAttentionImpl>() == nullptr,
               "{}: {} must not be LibTorch's MultiheadAttention, which reads its Linear itself",
               kPackWeights, named(name));
    if (auto* linear = module.as<torch::nn::LinearImpl>()) {
      if (done_.count(linear) > 0) return;
      check_type(name, *linear);
      add(name, *linear, linear->weight, options_.format());
    } else if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
      const auto found = embeddings_.find(embedding);
      if (found == embeddings_.end()) return;
      check_type(name, *embedding);
      add(name, *embedding, embedding->weight, found->second);
    }
  }

  template <typename Layer>
  void check_type(const std::string& name, const Layer& layer) const {
    HEED_CHECK(detail::is_own_layer(layer),
               "{}: {} must be LibTorch's own layer, not {}: only heed's product reads packed "
               "weights",
               kPackWeights, named(name), c10::demangle(typeid(layer).name()));
  }

  void add(const std::string& name, torch::nn::Module& layer, at::Tensor& weight,
           PackFormat format) {
    if (!done_.insert(&layer).second) return;
    detail::PackedLayout layout{format_of(format, weight.scalar_type())};
    if (layout.format == PackedFormat::int4) {
      layout.group = options_.group_size();
      layout.zero_point = options_.zero_point();
    }
    layout.quantize_activations =
        options_.quantize_activations() && detail::can_quantize_activations(layout.format);
    places_.push_back({named(name) + ".weight", &layer, &weight, layout});
  }

  /// A name for errors; that of the module itself is empty.
  static std::string named(const std::string& name) { return name.empty() ? "module" : name; }

  const PackOptions& options_;
  std::unordered_set<const torch::nn::Module*> done_;
  std::unordered_map<const torch::nn::Module*, PackFormat> embeddings_;
  std::vector<PackedPlace> places_;
};

void pack(const PackedPlace& place) {
  auto packed = detail::pack_weight(*place.weight, place.layout);
  detail::set_packed_weight(*place.layer, *place.weight, std::move(packed));
}

}  // namespace

detail::WeightPacker::WeightPacker(torch::nn::Module& module, const PackOptions& options)
    : module_(module) {
  check_options(options);
  places_ = Places(module, options).all();
  HEED_CHECK(!places_.empty(), "{}: module must have a Linear", kPackWeights);
}

void detail::WeightPacker::pack(const std::string& name) {
  for (const auto& place : places_) {
    if (name != place.name) continue;
    check_weight(place);
    heed::pack(place);
  }
}

void detail::WeightPacker::pack_all() {
  for (const auto& place : places_) check_weight(place);
  for (const auto& place : places_) heed::pack(place);
}

void detail::WeightPacker::finish() {
  for (const auto& parameter : module_.parameters()) parameter.set_requires_grad(false);
}

void pack_weights(torch::nn::Module& module, const PackOptions& options) {
  detail::WeightPacker packer(module, options);
  packer.pack_all();
  packer.finish();
}

}  // namespace heed
