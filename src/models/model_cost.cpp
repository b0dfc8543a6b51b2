// SPDX-License-Identifier: BSD-3-Clause
#include <heed/model_cost.h>

#include <heed/cost.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/ceil_div.h"
#include "core/checks.h"
#include "core/seen_tensors.h"
#include "models/block_attention.h"
#include "models/block_norms.h"
#include "modules/count.h"

namespace heed {

namespace {

using detail::Count;
using Part = ModelCost::Part;

Part operator+(const Part& a, const Part& b) {
  const auto sum = [&](int64_t Part::*member) { return (Count(a.*member) + b.*member).value(); };
  return {a.name,
          sum(&Part::count),
          sum(&Part::parameters),
          sum(&Part::parameter_bytes),
          sum(&Part::macs),
          sum(&Part::kv_cache_bytes)};
}

struct Sizes {
  int64_t batch, length, memory_length;
  Count tokens() const { return Count(batch) * length; }
};

/// The rows of the table: parts with the same name share one. A parameter that parts share counts
/// in the first of them.
class Parts {
 public:
  /// The parts that follow are those of an encoder beside a decoder, or no longer.
  void of_encoder(bool are) { are_of_encoder_ = are; }

  void add(Part part) {
    if (are_of_encoder_) {
      part.name.insert(0, "encoder ");
      part.kv_cache_bytes = 0;
    }
    for (auto& present : parts_) {
      if (present.name == part.name) {
        present = present + part;
        return;
      }
    }
    parts_.push_back(std::move(part));
  }

  void add(const std::string& name, const torch::nn::Module& module, Count macs = 0) {
    const auto [count, bytes] = detail::parameter_size(module, seen_);
    add({name, 1, count, bytes, macs.value(), 0});
  }

  void add(const std::string& name, const at::Tensor& parameter) {
    const auto [count, bytes] = detail::parameter_size(parameter, seen_);
    add({name, 1, count, bytes, 0, 0});
  }

  void add(const std::string& name, const torch::nn::Module& module, const AttentionCost& cost) {
    const auto [count, bytes] = detail::parameter_size(module, seen_);
    const auto macs = Count(cost.projection_macs) + cost.attention_macs;
    add({name, 1, count, bytes, macs.value(), cost.kv_cache_bytes});
  }

  ModelCost with_total() && {
    Part total{"total"};
    for (const auto& part : parts_) total = total + part;
    parts_.push_back(total);
    return {std::move(parts_)};
  }

 private:
  std::vector<Part> parts_;
  detail::SeenTensors seen_;
  bool are_of_encoder_ = false;
};

/// The elements of the weights by which one token is multiplied: those of all Linears, but of the
/// experts that a token chooses alone.
int64_t weights_per_token(const torch::nn::Module& layer) {
  Count count = 0;
  for (const auto& module : layer.modules()) {
    if (const auto* linear = module->as<torch::nn::Linear>()) {
      count = count + linear->weight.numel();
    }
  }
  const auto* mixture = layer.as<MixtureOfExperts>();
  if (mixture == nullptr) return count.value();
  // Experts of other processes are empty.
  int64_t expert = 0, of_all = 0;
  for (const auto& each : *mixture->experts) {
    const auto own = weights_per_token(*each);
    expert = std::max(expert, own);
    of_all += own;
  }
  return (Count(count.value() - of_all) + Count(mixture->options.top_k()) * expert).value();
}

/// A norm of the user's may have Linears.
void add_norm(Parts& parts, const torch::nn::Module& norm, const Sizes& sizes) {
  parts.add("norm", norm, sizes.tokens() * weights_per_token(norm));
}

void add_stack(Parts& parts, const EncoderImpl& stack, const Sizes& sizes) {
  if (stack.relative_biases) {
    for (const auto& bias : *stack.relative_biases) parts.add("relative bias", *bias);
  }
  for (const auto& child : *stack.blocks) {
    const auto& block = *child->as<TransformerBlockImpl>();
    if (block.options.self_attention()) {
      detail::visit_attention(block, [&](const auto& attention) {
        parts.add("attention", attention, attention_cost(attention, sizes.batch, sizes.length));
      });
    }
    for (const auto& place : detail::kNormPlaces) {
      if (const auto norm = block.norm_module(place.name)) add_norm(parts, *norm, sizes);
    }
    if (block.cross_attention) {
      parts.add(
          "cross-attention", *block.cross_attention,
          attention_cost(*block.cross_attention, sizes.batch, sizes.length, sizes.memory_length));
    }
    const auto layer = block.feed_forward_module();
    const bool is_mixture = layer->as<MixtureOfExperts>() != nullptr;
    parts.add(is_mixture ? "mixture of experts" : "feed-forward", *layer,
              sizes.tokens() * weights_per_token(*layer));
    for (const auto& scale : {block.attention_layer_scale, block.cross_attention_layer_scale,
                              block.feed_forward_layer_scale}) {
      if (scale.defined()) parts.add("layer scale", scale);
    }
  }
  if (const auto norm = stack.final_norm_module()) add_norm(parts, *norm, sizes);
}

void add_decoder(Parts& parts, const DecoderImpl& model, const Sizes& sizes) {
  parts.add("token embedding", *model.token_embedding);
  if (model.position_embedding) parts.add("position embedding", *model.position_embedding);
  if (model.embedding_norm) parts.add("norm", *model.embedding_norm);
  add_stack(parts, *model.stack, sizes);
  if (!model.options.head()) return;
  const auto head_macs = sizes.tokens() * model.token_embedding->weight.numel();
  if (model.head) {
    parts.add("head", *model.head, head_macs);
  } else {
    parts.add({"head, tied", 1, 0, 0, head_macs.value(), 0});
  }
}

void add_text_encoder(Parts& parts, const TextEncoderImpl& model, const Sizes& sizes) {
  if (model.token_embedding) parts.add("token embedding", *model.token_embedding);
  if (model.position_embedding) parts.add("position embedding", *model.position_embedding);
  if (model.type_embedding) parts.add("type embedding", *model.type_embedding);
  if (model.embedding_norm) parts.add("norm", *model.embedding_norm);
  if (const auto& projection = model.embedding_projection) {
    parts.add("embedding projection", *projection, sizes.tokens() * projection->weight.numel());
  }
  add_stack(parts, *model.stack, sizes);
}

/// `sizes` are those of the frames. Returns the number of positions.
int64_t add_frame_encoder(Parts& parts, const FrameEncoderImpl& model, const Sizes& sizes) {
  auto halved = sizes;
  halved.length = detail::ceil_div(sizes.length, 2);
  const auto &first = model.first_convolution, &second = model.second_convolution;
  parts.add("convolution", *first, sizes.tokens() * first->weight.numel());
  parts.add("convolution", *second, halved.tokens() * second->weight.numel());
  parts.add("position embedding", *model.position_embedding);
  add_stack(parts, *model.stack, halved);
  return halved.length;
}

void check_sizes(const Sizes& sizes, const char* memory_length = "memory_length") {
  detail::check_not_negative("model_cost", "batch", sizes.batch);
  detail::check_not_negative("model_cost", "length", sizes.length);
  detail::check_not_negative("model_cost", memory_length, sizes.memory_length);
}

}  // namespace

ModelCost model_cost(const EncoderImpl& model, int64_t batch, int64_t length,
                     int64_t memory_length) {
  const Sizes sizes{batch, length, memory_length};
  check_sizes(sizes);
  Parts parts;
  add_stack(parts, model, sizes);
  return std::move(parts).with_total();
}

ModelCost model_cost(const DecoderImpl& model, int64_t batch, int64_t length,
                     int64_t memory_length) {
  const Sizes sizes{batch, length, memory_length};
  check_sizes(sizes);
  Parts parts;
  add_decoder(parts, model, sizes);
  return std::move(parts).with_total();
}

ModelCost model_cost(const EncoderDecoderImpl& model, int64_t batch, int64_t source_length,
                     int64_t length) {
  Sizes sizes{batch, length, source_length};
  check_sizes(sizes, "source_length");
  const Sizes source{batch, source_length, 0};
  Parts parts;
  parts.of_encoder(true);
  if (model.encoder) {
    add_text_encoder(parts, *model.encoder, source);
  } else {
    sizes.memory_length = add_frame_encoder(parts, *model.frame_encoder, source);
  }
  parts.of_encoder(false);
  add_decoder(parts, *model.decoder, sizes);
  return std::move(parts).with_total();
}

std::ostream& operator<<(std::ostream& stream, const ModelCost& cost) {
  size_t width = 20;
  for (const auto& part : cost.parts) width = std::max(width, part.name.size() + 1);
  stream << fmt::format("{:<{}}{:>6}{:>16}{:>18}{:>20}{:>18}\n", "part", width, "count",
                        "parameters", "parameter bytes", "multiply-adds", "kv cache bytes");
  for (const auto& part : cost.parts) {
    stream << fmt::format("{:<{}}{:>6}{:>16}{:>18}{:>20}{:>18}\n", part.name, width, part.count,
                          part.parameters, part.parameter_bytes, part.macs, part.kv_cache_bytes);
  }
  return stream;
}

}  // namespace heed
