// SPDX-License-Identifier: BSD-3-Clause
#include "weights/known_names.h"

#include <heed/name_maps.h>

#include <algorithm>
#include <set>
#include <utility>

#include "weights/dotted_names.h"
#include "weights/formats/bytes.h"
#include "weights/similar_names.h"
#include "weights/translation.h"

namespace heed::detail {

namespace {

using Names = std::vector<std::string>;

constexpr auto kGpt = "attn.c_attn.weight";
constexpr auto kLlama = "self_attn.q_proj";
constexpr auto kTransformer = "self_attn.in_proj_weight";
constexpr auto kCross = "multihead_attn.in_proj_weight";

/// The names of one map of name_maps.h.
struct Spelling {
  const char* map;
  const char* module;
  NameMap (*make)();
  Names parts;  // each is in a name of the file; the first is in each block or attention
  bool is_family = false;
};

constexpr auto kDecoder = "a Decoder", kText = "a TextEncoder", kImage = "an ImageEncoder";
constexpr auto kBoth = "an Encoder with cross-attention", kHeads = "a MultiHeadAttention";

std::vector<Spelling> spellings_of_decoders() {
  namespace maps = name_maps;
  const auto gpt_neox = [] { return maps::gpt_neox(/*heads=*/1); };  // the names alone matter
  constexpr auto kLatent = "a LatentAttention";
  return {
      {"gemma3()",
       kDecoder,
       maps::gemma3,
       {kLlama, "pre_feedforward_layernorm", "language_model"},
       true},
      {"gemma2()", kDecoder, maps::gemma2, {kLlama, "pre_feedforward_layernorm"}, true},
      {"olmo2()", kDecoder, maps::olmo2, {kLlama, "post_feedforward_layernorm"}, true},
      {"glm4()", kDecoder, maps::glm4, {kLlama, "post_mlp_layernorm"}, true},
      {"starcoder2()", kDecoder, maps::starcoder2, {kLlama, "mlp.c_fc"}, true},
      {"phi3()", kDecoder, maps::phi3, {"self_attn.qkv_proj", "mlp.gate_up_proj"}, true},
      {"deepseek()",
       kDecoder,
       maps::deepseek,
       {"kv_a_proj_with_mqa", "post_attention_layernorm"},
       true},
      {"mixtral()", kDecoder, maps::mixtral, {kLlama, "block_sparse_moe.gate"}, true},
      {"gpt_oss()", kDecoder, maps::gpt_oss, {kLlama, "mlp.router"}, true},
      {"qwen3_moe()", kDecoder, maps::qwen3_moe, {kLlama, "mlp.gate"}, true},
      {"llama()", kDecoder, maps::llama, {kLlama, "mlp.gate_proj"}, true},
      {"deepseek_attention()", kLatent, maps::deepseek_attention, {"kv_a_proj_with_mqa"}},
      {"gpt_neox(heads)", kDecoder, gpt_neox, {"attention.query_key_value"}, true},
      {"gpt2()", kDecoder, maps::gpt2, {kGpt, "mlp.c_fc"}, true},
  };
}

std::vector<Spelling> spellings_of_encoders() {
  namespace maps = name_maps;
  const auto dinov2 = [] { return maps::dinov2(); };
  const auto dinov2_gated = [] { return maps::dinov2(/*gated=*/true); };
  const auto registers = [] { return maps::dinov2_with_registers(); };
  const auto registers_gated = [] { return maps::dinov2_with_registers(/*gated=*/true); };
  return {
      {"distilbert()", kText, maps::distilbert, {"attention.q_lin"}, true},
      {"modernbert()", kText, maps::modernbert, {"attn.Wqkv", "mlp.Wi"}, true},
      {"clip_image()",
       kImage,
       maps::clip_image,
       {"vision_model.encoder.layers", "vision_model.pre_layrnorm"},
       true},
      {"siglip_image()", kImage, maps::siglip_image, {"vision_model.encoder.layers"}, true},
      {"siglip_text()",
       kText,
       maps::siglip_text,
       {"text_model.encoder.layers", "text_model.head"},
       true},
      {"clip_text()", kText, maps::clip_text, {"text_model.encoder.layers"}, true},
      {"dinov2_with_registers(true)",
       kImage,
       registers_gated,
       {"layer_scale1.lambda1", "embeddings.register_tokens", "mlp.weights_in"},
       true},
      {"dinov2_with_registers()",
       kImage,
       registers,
       {"layer_scale1.lambda1", "embeddings.register_tokens"},
       true},
      {"dinov2(true)", kImage, dinov2_gated, {"layer_scale1.lambda1", "mlp.weights_in"}, true},
      {"dinov2()", kImage, dinov2, {"layer_scale1.lambda1"}, true},
      {"vit()", kImage, maps::vit, {"attention.attention.query"}, true},
      {"roberta()", kText, maps::roberta, {"attention.self.query", "roberta"}, true},
      {"electra()", kText, maps::electra, {"attention.self.query", "electra"}, true},
      {"bert()", kText, maps::bert, {"attention.self.query"}, true},
  };
}

std::vector<Spelling> spellings_of_layers() {
  namespace maps = name_maps;
  return {
      {"transformer_decoder()", kBoth, maps::transformer_decoder, {kTransformer, kCross}},
      {"transformer_encoder()", "an Encoder", maps::transformer_encoder, {kTransformer}},
      {"in_proj()", kHeads, maps::in_proj, {"in_proj_weight"}},
      {"in_proj_separate()", kHeads, maps::in_proj_separate, {"q_proj_weight"}},
      {"w_q_w_o()", kHeads, maps::w_q_w_o, {"W_q", "W_o"}},
      {"q_linear_out()", kHeads, maps::q_linear_out, {"q_linear"}},
      {"w_q_fc()", kHeads, maps::w_q_fc, {"W_Q", "fc"}},
      {"w_qs_fc()", "a ResidualAttention", maps::w_qs_fc, {"w_qs", "fc"}},
      {"query_proj()", "an Attention", maps::query_proj, {"query_proj"}},
      {"packed_proj()", kHeads, maps::packed_proj, {"packed_proj"}},
      {"q_proj()", kHeads, maps::q_proj, {"q_proj", "out_proj"}},
  };
}

/// All spellings; of several that fit equally, the first is meant.
const std::vector<Spelling>& spellings() {
  static const auto all = [] {
    auto found = spellings_of_decoders();
    for (const auto& more : {spellings_of_encoders(), spellings_of_layers()}) {
      found.insert(found.end(), more.begin(), more.end());
    }
    return found;
  }();
  return all;
}

bool have_part(const Names& names, const std::string& part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const auto& name) { return find_part(part, name).has_value(); });
}

/// Some names of the file, enough to know them by. No published name is as long as those left out.
Names names_of(const NamedTensors& file) {
  constexpr size_t kLongest = 200;
  Names names;
  for (const auto& [name, tensor] : file) {
    if (names.size() == kMostComparedNames) break;
    if (name.size() <= kLongest) names.push_back(name);
  }
  return names;
}

/// Whether a name has the first part of a spelling in a layer which the module wants: of LibTorch's
/// encoders and decoders, a file may have both.
bool is_of_layer(const Spelling& spelling, const std::string& name, const NamedTensors& file,
                 const Names& missing) {
  const auto where = find_part(spelling.parts[0], name);
  if (!where || spelling.parts[0] != kTransformer) return where.has_value();
  const bool is_decoder = spelling.parts.size() > 1;
  return (file.count(where->around(kCross)) > 0) == is_decoder &&
         have_part(missing, "cross_attention") == is_decoder;
}

/// How many missing names the map makes of a name of the file without its prefix.
size_t count_missing(const NameMap& map, const std::string& theirs,
                     const std::set<std::string>& missing) {
  size_t count = 0;
  for (const auto& ours : translated_name(map, theirs)) count += missing.count(ours);
  return count;
}

/// The shortest prefix of a name, with its dot or empty, without which the map makes a missing name
/// of it; none if there is none.
std::optional<std::string> prefix_of(const std::string& name, const NameMap& map,
                                     const std::set<std::string>& missing) {
  for (size_t size = 0; size < name.size();) {
    if (count_missing(map, name.substr(size), missing) > 0) return name.substr(0, size);
    const auto dot = name.find('.', size);
    if (dot == std::string::npos) break;
    size = dot + 1;
  }
  return std::nullopt;
}

/// Describes names with this prefix. GPT-2's matrices are transposed; those of nanoGPT, which has
/// its names, are not: `layer` tells them apart.
KnownNames known_as(const Spelling& spelling, const std::string& prefix, const at::Tensor& layer) {
  const bool is_nanogpt = spelling.parts[0] == kGpt && layer.defined() && layer.dim() == 2 &&
                          layer.size(0) == 3 * layer.size(1);
  const std::string map = is_nanogpt ? "nanogpt()" : spelling.map;
  return {"name_maps::" + map, spelling.module, prefix, spelling.is_family && !is_nanogpt};
}

}  // namespace

std::optional<KnownNames> known_names(const NamedTensors& file, const Names& missing) {
  constexpr size_t kMostTried = 30;  // names of one spelling
  const auto names = names_of(file);
  const std::set<std::string> wanted(missing.begin(), missing.end());
  std::optional<KnownNames> best;
  size_t most = 0;
  for (const auto& spelling : spellings()) {
    const bool has_all = std::all_of(spelling.parts.begin(), spelling.parts.end(),
                                     [&](const auto& part) { return have_part(names, part); });
    if (!has_all) continue;
    const auto map = spelling.make();
    size_t tried = 0;
    for (const auto& name : names) {
      if (tried == kMostTried) break;
      if (!is_of_layer(spelling, name, file, missing)) continue;
      ++tried;
      const auto prefix = prefix_of(name, map, wanted);
      if (!prefix) continue;
      size_t count = 0;
      for (const auto& each : names) {
        if (each.rfind(*prefix, 0) != 0) continue;
        count += count_missing(map, each.substr(prefix->size()), wanted);
      }
      if (count > most) best = known_as(spelling, *prefix, file.find(name)->second);
      most = std::max(most, count);
      break;
    }
  }
  return best;
}

std::optional<std::string> known_quantization(const NamedTensors& file) {
  static const std::vector<std::pair<std::string, std::string>> ends = {
      {".qweight", "GPTQ or AWQ"},
      {".weight_packed", "compressed-tensors"},
      {".weight_scale", "compressed-tensors or FP8"},
      {".weight_scale_inv", "FP8"},
      {".weight.absmax", "bitsandbytes"},
      {"_proj_blocks", "MXFP4"},
  };
  for (const auto& [end, program] : ends) {
    const bool has = std::any_of(file.begin(), file.end(), [&, &end = end](const auto& item) {
      return item.first.size() > end.size() && ends_with(item.first, end);
    });
    if (has) return program;
  }
  return std::nullopt;
}

}  // namespace heed::detail
