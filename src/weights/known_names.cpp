#include "weights/known_names.h"

#include <algorithm>

#include "weights/dotted_names.h"
#include "weights/similar_names.h"

namespace heed::detail {

namespace {

using Names = std::vector<std::string>;

constexpr auto kGpt = "attn.c_attn.weight";
constexpr auto kTransformer = "self_attn.in_proj_weight";
constexpr auto kCross = "multihead_attn.in_proj_weight";

/// The names of one map of name_maps.h.
struct Spelling {
  const char* map;
  const char* module;
  Names parts;       // each is in a name of the file; the first is in each block or attention
  Names roots = {};  // where the blocks of a model are, if the map does not know all prefixes
  bool is_family = false;
};

/// Spellings, before others whose parts they have too.
const std::vector<Spelling>& spellings() {
  const Names model = {"model.layers"}, gpt = {"transformer.h", "h"}, layers = {"layers"};
  static const std::vector<Spelling> all = {
      {"gemma2()", "a Decoder", {"self_attn.q_proj", "pre_feedforward_layernorm"}, model, true},
      {"olmo2()", "a Decoder", {"self_attn.q_proj", "post_feedforward_layernorm"}, model, true},
      {"phi3()", "a Decoder", {"self_attn.qkv_proj", "mlp.gate_up_proj"}, model, true},
      {"llama()", "a Decoder", {"self_attn.q_proj", "mlp.gate_proj"}, model, true},
      {"deepseek_attention()", "a LatentAttention", {"kv_a_proj_with_mqa"}},
      {"gpt_neox(heads)", "a Decoder", {"attention.query_key_value"}, {"gpt_neox.layers"}, true},
      {"gpt2()", "a Decoder", {kGpt, "mlp.c_fc"}, gpt, true},
      {"distilbert()", "a TextEncoder", {"attention.q_lin"}, {}, true},
      {"modernbert()", "a TextEncoder", {"attn.Wqkv", "mlp.Wi"}, {}, true},
      {"vit()", "an ImageEncoder", {"attention.attention.query"}, {}, true},
      {"roberta()", "a TextEncoder", {"attention.self.query", "roberta"}, {}, true},
      {"bert()", "a TextEncoder", {"attention.self.query"}, {}, true},
      {"transformer_decoder()", "an Encoder with cross-attention", {kTransformer, kCross}, layers},
      {"transformer_encoder()", "an Encoder", {kTransformer}, layers},
      {"in_proj()", "a MultiHeadAttention", {"in_proj_weight"}},
      {"in_proj_separate()", "a MultiHeadAttention", {"q_proj_weight"}},
      {"w_q_w_o()", "a MultiHeadAttention", {"W_q", "W_o"}},
      {"q_linear_out()", "a MultiHeadAttention", {"q_linear"}},
      {"w_q_fc()", "a MultiHeadAttention", {"W_Q", "fc"}},
      {"w_qs_fc()", "a ResidualAttention", {"w_qs", "fc"}},
      {"query_proj()", "an Attention", {"query_proj"}},
      {"packed_proj()", "a MultiHeadAttention", {"packed_proj"}},
      {"q_proj()", "a MultiHeadAttention", {"q_proj", "out_proj"}},
  };
  return all;
}

bool have_part(const Names& names, const std::string& part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const auto& name) { return find_part(part, name).has_value(); });
}

/// Some names of the file, enough to know them by.
Names names_of(const NamedTensors& file) {
  Names names;
  for (const auto& [name, tensor] : file) {
    if (names.size() == kMostComparedNames) break;
    names.push_back(name);
  }
  return names;
}

/// Where the first part of a spelling is in a name, if it is that of a layer which the module
/// wants: of LibTorch's encoders and decoders, a file may have both.
std::optional<Surroundings> find_layer(const Spelling& spelling, const std::string& name,
                                       const NamedTensors& file, const Names& missing) {
  const auto where = find_part(spelling.parts[0], name);
  if (!where || spelling.parts[0] != kTransformer) return where;
  const bool is_decoder = spelling.parts.size() > 1;
  const bool fits = (file.count(where->around(kCross)) > 0) == is_decoder &&
                    have_part(missing, "cross_attention") == is_decoder;
  return fits ? where : std::nullopt;
}

/// The prefix before the names that the map translates, with its dot; none if the map does not
/// read a model of which the layer at `where` is one.
std::optional<std::string> prefix_of(const Spelling& spelling, Surroundings where,
                                     const std::string& name, const Names& missing) {
  if (have_part(missing, "blocks")) {
    where = {};
    for (const auto& root : spelling.roots) {
      const auto found = find_part(root, name);
      if (!found && &root == &spelling.roots.back()) return std::nullopt;
      if (!found) continue;
      where = *found;
      break;
    }
  }
  if (where.before.empty()) return "";
  const auto prefix = where.before + ".";
  const bool is_wanted = std::any_of(missing.begin(), missing.end(),
                                     [&](const auto& each) { return each.rfind(prefix, 0) == 0; });
  return is_wanted ? "" : prefix;
}

/// GPT-2's matrices are transposed; those of nanoGPT, which has its names, are not.
bool is_nanogpt(const at::Tensor& packed) {
  return packed.defined() && packed.dim() == 2 && packed.size(0) == 3 * packed.size(1);
}

}  // namespace

std::optional<KnownNames> known_names(const NamedTensors& file, const Names& missing) {
  const auto names = names_of(file);
  for (const auto& spelling : spellings()) {
    const bool has_all = std::all_of(spelling.parts.begin(), spelling.parts.end(),
                                     [&](const auto& part) { return have_part(names, part); });
    if (!has_all) continue;
    for (const auto& name : names) {
      const auto where = find_layer(spelling, name, file, missing);
      if (!where) continue;
      const auto prefix = prefix_of(spelling, *where, name, missing);
      if (!prefix) break;
      const bool is_nano = spelling.parts[0] == kGpt && is_nanogpt(file.find(name)->second);
      const std::string map = is_nano ? "nanogpt()" : spelling.map;
      return KnownNames{"name_maps::" + map, spelling.module, *prefix,
                        spelling.is_family && !is_nano};
    }
  }
  return std::nullopt;
}

}  // namespace heed::detail
