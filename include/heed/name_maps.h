// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/export.h>
#include <heed/named_tensors.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heed {

class NameMap;

namespace detail {
struct Composition;
struct Surroundings;
struct Translation;
using ModuleTensors = torch::OrderedDict<std::string, at::Tensor>;
HEED_LOCAL Translation translate(const NameMap& map, const NamedTensors& theirs,
                                 const ModuleTensors& module);
HEED_LOCAL std::map<std::string, Composition> invert(const NameMap& map,
                                                     const ModuleTensors& module);
HEED_LOCAL std::vector<std::string> translated_name(const NameMap& map, const std::string& theirs);
/// The map for files whose names lack `prefix`, which ends in a dot.
HEED_LOCAL NameMap without_prefix(NameMap map, const std::string& prefix);
/// The map with modules of the file left out, also those that it ties or renames.
HEED_LOCAL NameMap without_modules(NameMap map, const std::vector<std::string>& theirs);
}  // namespace detail

/// How one tensor of a file holds tensors of all modules of a list, such as those of experts: slice
/// i of its dimension 0 holds those of module i, by default one after the other by rows.
struct HEED_API StackLayout {
  /// Whether the matrices in the slices are transposed.
  TORCH_ARG(bool, transposed) = false;
  /// Whether the rows of the tensors take turns: the first row of each, then the second of each.
  TORCH_ARG(bool, interleaved) = false;
};

/// Translates the names and layouts of a file that another program wrote into those of a heed
/// module. In the functions below, `theirs` are names in the file and `ours` are names in the
/// module.
///
/// @code
/// // Three matrices in the file, one in the module; the module has no output projection.
/// auto names = heed::NameMap().pack({"query", "key", "value"}, "qkv").drop("dense");
/// heed::AttentionV1 attention(/*emb_dim=*/64);
/// auto options = heed::LoadOptions().name_map(names);
/// heed::load_weights(*attention, "other.safetensors", options);
/// @endcode
///
/// A name is the name of a tensor ("in_proj_weight") or of a module ("W_q"). The name of a module
/// stands for all of its tensors ("W_q.weight", "W_q.bias"). Names are found at any depth
/// ("layers.3.W_q.weight"), and the rest of the path is kept. The empty name is the outermost
/// module: `rename("a", "")` turns "a.weight" into "weight", and `rename("", "a")` does the
/// opposite for all names that earlier entries have not used. Names without an entry stay as they
/// are. An entry never sees the result of another one: each entry looks only for names that are in
/// the file and that no earlier entry has used.
class HEED_API NameMap {
 public:
  /// Renames `theirs` to `ours`.
  NameMap& rename(std::string theirs, std::string ours);
  /// Renames the one of `theirs` that the file has to `ours`.
  NameMap& rename_any(std::vector<std::string> theirs, std::string ours);
  /// Concatenates the rows (dimension 0) of all of `theirs`, in this order, to `ours`.
  NameMap& pack(std::vector<std::string> theirs, std::string ours);
  /// Splits the rows of `theirs` into `ours`, in this order; the sizes are those in the module.
  NameMap& split(std::string theirs, std::vector<std::string> ours);
  /// Splits the rows of `theirs`, which lie head by head, into equal parts: head 0's rows of all of
  /// `ours`, in this order, then head 1's.
  NameMap& split_heads(std::string theirs, std::vector<std::string> ours, int64_t heads);
  /// Renames `theirs` to `ours` and transposes its matrices.
  NameMap& transpose(std::string theirs, std::string ours);
  /// Transposes and then splits: splits the columns of the matrices of `theirs` into `ours`.
  NameMap& transpose_split(std::string theirs, std::vector<std::string> ours);
  /// Splits `theirs` into tensors of the modules of `list`, as the layout says: its slice i into
  /// those of `ours` in module i. `unstack("up", "experts", {"fc_in.weight"})` makes of "up"
  /// [2, F, E] "experts.0.fc_in.weight" and "experts.1.fc_in.weight" [F, E].
  NameMap& unstack(std::string theirs, std::string list, std::vector<std::string> ours,
                   const StackLayout& layout = {});
  /// Renames `theirs` to `ours` and puts `dims` dimensions of size 1 before its own.
  /// Throws c10::ValueError when `dims` is below 1.
  NameMap& unsqueeze(std::string theirs, std::string ours, int64_t dims = 1);
  /// Renames the module `theirs` to `ours` in all longer names, whatever other entries do with the
  /// rest of the name: `inside("h", "blocks")` turns "h.3.attn.weight" into "blocks.3.attn.weight".
  NameMap& inside(std::string theirs, std::string ours);
  /// Ignores `theirs`, if the file has it: the module has no such tensor.
  NameMap& drop(std::string theirs);
  /// Ignores `theirs` if the module has no such tensor, but checks that it equals the one of
  /// `originals` that the file has. If the file has none of these, `theirs` takes their place. An
  /// example is the head of a language model that shares its embedding.
  NameMap& tied(std::string theirs, std::vector<std::string> originals);

  /// Adds all entries of `names`, a map for the submodule `ours`: what they make, and all names
  /// that no entry uses, are names in `ours`. Entries before have used the names of other parts:
  /// `NameMap().rename("score", "classifier").submodule("model", name_maps::llama())`.
  /// `names` has no submodule itself, and a map has at most one.
  /// Throws c10::ValueError when there would be two, or when `ours` is empty.
  NameMap& submodule(std::string ours, const NameMap& names);

  /// Returns the tensors with the names that `module` gives them.
  /// An entry is skipped if neither the file nor the module has its names; biases are an example.
  /// Throws c10::ValueError that names the entry when the file lacks a tensor of the entry, when
  /// its sizes do not add up, when tied tensors differ, or when two tensors get the same name or
  /// one gets an empty name.
  NamedTensors apply(const NamedTensors& tensors, const torch::nn::Module& module) const;

  /// The opposite: returns the module's parameters and buffers, including tied ones, under the
  /// names of the other program. Of several spellings, it takes the first. Throws c10::ValueError
  /// that names the entry or the tensor when the map cannot be inverted: for example, when it is
  /// unknown how many rows of a packed tensor belong to which name.
  NamedTensors invert(const torch::nn::Module& module) const;

  /// Whether the map leaves every name as it is.
  bool empty() const { return entries_.empty() && paths_.empty() && submodule_.empty(); }

 private:
  enum class Kind {
    rename,
    pack,
    split,
    split_heads,
    transpose,
    transpose_split,
    unstack,
    unsqueeze,
    drop,
    tied
  };
  struct Entry {
    Kind kind;
    std::vector<std::string> theirs, ours;
    int64_t heads = 0;        // of split_heads; of unsqueeze: the new dimensions
    std::string within = {};  // the submodule in which `ours` are; empty: the module itself
    std::string list = {};    // of unstack
    StackLayout layout = {};  // of unstack
  };
  struct Path {  // of `inside`
    std::string theirs, ours, within = {};
  };
  struct Applied;
  struct Inverted;
  friend detail::Translation detail::translate(const NameMap& map, const NamedTensors& theirs,
                                               const detail::ModuleTensors& module);
  friend std::map<std::string, detail::Composition> detail::invert(
      const NameMap& map, const detail::ModuleTensors& module);
  friend std::vector<std::string> detail::translated_name(const NameMap& map,
                                                          const std::string& theirs);
  friend NameMap detail::without_prefix(NameMap map, const std::string& prefix);
  friend NameMap detail::without_modules(NameMap map, const std::vector<std::string>& theirs);
  HEED_LOCAL static std::optional<detail::Surroundings> find_ours(const Entry& entry,
                                                                  const std::string& ours,
                                                                  const std::string& name);
  HEED_LOCAL std::string in_module(const std::string& within, std::string name) const;
  HEED_LOCAL std::string in_file(const std::string& within, std::string name) const;

  std::vector<Entry> entries_;
  std::vector<Path> paths_;
  std::string submodule_;  // of names that no entry uses; empty: the module itself
};

/// Maps for names in common use. The comment gives the names in the file and the module to load
/// into.
namespace name_maps {

HEED_API NameMap w_q_w_o();       ///< W_q W_k W_v W_o: MultiHeadAttention
HEED_API NameMap q_linear_out();  ///< q_linear k_linear v_linear out: MultiHeadAttention
HEED_API NameMap w_q_fc();        ///< W_Q W_K W_V fc: MultiHeadAttention
HEED_API NameMap w_qs_fc();       ///< w_qs w_ks w_vs fc layer_norm: ResidualAttention
HEED_API NameMap query_proj();    ///< query_proj key_proj value_proj or valye_proj: Attention
HEED_API NameMap proj();          ///< proj: AttentionV1
HEED_API NameMap packed_proj();   ///< packed_proj out_proj: MultiHeadAttention
HEED_API NameMap q_proj();        ///< q_proj k_proj v_proj out_proj: MultiHeadAttention
HEED_API NameMap in_proj();       ///< torch.nn.MultiheadAttention: MultiHeadAttention
/// torch.nn.MultiheadAttention with kdim or vdim: MultiHeadAttention.
HEED_API NameMap in_proj_separate();

/// Hugging Face's LlamaForCausalLM and the corresponding classes of Mistral, Qwen2, Qwen3,
/// StableLM, Gemma, SmolLM3, Granite and Cohere2: Decoder. The values of the options are in the
/// checkpoint's configuration.
HEED_API NameMap llama();
/// Like `llama`, with mixtures of experts: MixtralForCausalLM.
HEED_API NameMap mixtral();
/// Like `llama`, with mixtures of experts in some blocks or in all: Qwen3MoeForCausalLM,
/// Qwen2MoeForCausalLM and OlmoeForCausalLM.
HEED_API NameMap qwen3_moe();
/// Like `llama`, with latent attention and mixtures of experts: DeepseekV2ForCausalLM and
/// DeepseekV3ForCausalLM.
HEED_API NameMap deepseek();
/// Like `llama`, with mixtures of experts whose tensors are stacked, and attention sinks:
/// GptOssForCausalLM, not quantized.
HEED_API NameMap gpt_oss();
/// Like `llama`, with packed projections: Phi3ForCausalLM.
HEED_API NameMap phi3();
/// Like `llama`, with norms on both sides of each layer: Gemma2ForCausalLM and Gemma3ForCausalLM.
HEED_API NameMap gemma2();
/// The text model of Gemma3ForConditionalGeneration, whose vision tower is left out.
HEED_API NameMap gemma3();
/// Like `llama`, with norms after each layer: Olmo2ForCausalLM and Olmo3ForCausalLM.
HEED_API NameMap olmo2();
/// Like `llama`, with a feed-forward layer without a gate: Starcoder2ForCausalLM.
HEED_API NameMap starcoder2();
/// Like `llama`, with norms on both sides of each layer and a packed gate: Glm4ForCausalLM.
HEED_API NameMap glm4();
/// Hugging Face's GPTNeoXForCausalLM, whose blocks have so many heads: Decoder.
HEED_API NameMap gpt_neox(int64_t heads);
/// Hugging Face's GPT2LMHeadModel: Decoder with learned positions and gelu_tanh.
HEED_API NameMap gpt2();
/// Hugging Face's BertModel, alone or in a model with a head, which is left out: TextEncoder.
HEED_API NameMap bert();
/// RobertaModel, XLMRobertaModel and CamembertModel, likewise.
HEED_API NameMap roberta();
HEED_API NameMap electra();     ///< the same of ElectraModel
HEED_API NameMap distilbert();  ///< the same of DistilBertModel
HEED_API NameMap modernbert();  ///< the same of ModernBertModel
/// Hugging Face's ViTModel, alone or in a model with a head, which is left out: ImageEncoder.
HEED_API NameMap vit();
/// Hugging Face's Dinov2Model and Dinov2WithRegistersModel, whose feed-forward layers are gated or
/// not, alone or in a model with a head, which is left out: ImageEncoder.
/// @{
HEED_API NameMap dinov2(bool gated = false);
HEED_API NameMap dinov2_with_registers(bool gated = false);
/// @}
/// One tower of Hugging Face's CLIPModel or SiglipModel, or a model that has this tower alone:
/// TextEncoder and ImageEncoder. The other one is left out, and so are logit_scale and logit_bias.
/// @{
HEED_API NameMap clip_text();
HEED_API NameMap clip_image();
HEED_API NameMap siglip_text();
HEED_API NameMap siglip_image();
/// @}
/// nanoGPT's GPT: Decoder with learned positions and gelu.
HEED_API NameMap nanogpt();
/// torch.nn.TransformerEncoder: Encoder; with final_norm(false) if it has no `norm`.
/// torch.nn.TransformerEncoderLayer: TransformerBlock.
HEED_API NameMap transformer_encoder();
/// torch.nn.TransformerDecoder and TransformerDecoderLayer: as above, with cross_attention(true).
HEED_API NameMap transformer_decoder();
/// The attention of Hugging Face's DeepSeek V2 and V3: LatentAttention. Where the config has a
/// `rope_scaling` of type yarn, so must `LatentAttentionOptions::rotary`, whose default has none:
/// with its mscale_all_dim, which multiplies the scores. For DeepSeek V3:
///
/// @code
/// auto yarn =
///     heed::YarnScaling(/*factor=*/40, /*original_length=*/4096).mscale(1.0).mscale_all_dim(1.0);
/// auto rotary = heed::RotaryEmbeddingOptions(/*head_dim=*/64)
///                   .pairing(heed::RotaryPairing::interleaved)
///                   .scaling(yarn);
/// heed::LatentAttentionOptions options(/*emb_dim=*/7168, /*head_num=*/128, /*key_rank=*/512);
/// options.query_rank(1536).rotary(rotary);
/// @endcode
HEED_API NameMap deepseek_attention();

}  // namespace name_maps

}  // namespace heed
