#pragma once

#include <heed/export.h>
#include <heed/named_tensors.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace heed {

class NameMap;

namespace detail {
struct Translation;
HEED_LOCAL Translation translate(const NameMap& map, const NamedTensors& theirs,
                                 const torch::nn::Module& module);
}  // namespace detail

/// Their names and layouts to ours: what stands between a file written by another program and a
/// module of heed. Chainable: `NameMap().rename("W_q", "fc_q").pack({"k", "v"}, "kv")`.
///
/// A name is that of a tensor ("in_proj_weight") or of a module ("W_q"), whose tensors
/// ("W_q.weight", "W_q.bias") are then all meant; it is found at any depth ("layers.3.W_q.weight"),
/// and what surrounds it is kept. The empty name is that of the outermost module: `rename("a", "")`
/// makes "a.weight" "weight", and `rename("", "a")` the opposite of all that earlier entries left.
/// Names that no entry mentions stay as they are. Entries do not chain: each looks for names that
/// the file has and no earlier entry has taken.
class HEED_API NameMap {
 public:
  /// `theirs` is called `ours` here.
  NameMap& rename(std::string theirs, std::string ours);
  /// The one of `theirs` that the file has is called `ours` here.
  NameMap& rename_any(std::vector<std::string> theirs, std::string ours);
  /// The rows (dimension 0) of each of `theirs`, in this order, are the rows of `ours`.
  NameMap& pack(std::vector<std::string> theirs, std::string ours);
  /// The rows of `theirs` are shared out among `ours`, in this order, by their sizes.
  NameMap& split(std::string theirs, std::vector<std::string> ours);
  /// The matrices of `theirs` are the transposes of those of `ours`.
  NameMap& transpose(std::string theirs, std::string ours);
  /// `transpose` and then `split`: the columns of the matrices of `theirs` are shared out.
  NameMap& transpose_split(std::string theirs, std::vector<std::string> ours);
  /// Names that lead through the module `theirs` lead through `ours` here, whatever other entries
  /// make of the rest: `inside("h", "blocks")` for "h.3.attn.weight".
  NameMap& inside(std::string theirs, std::string ours);
  /// `theirs`, if the file has it, is left out: the module has no place for it.
  NameMap& drop(std::string theirs);
  /// `theirs` must equal the one of `originals` that the file has, and is left out, where the
  /// module has no place for it: a language model's head that is its embedding.
  NameMap& tied(std::string theirs, std::vector<std::string> originals);

  /// The tensors under the names that `module` gives them.
  /// An entry whose names neither the file nor the module holds, such as biases, is passed over.
  /// Throws c10::ValueError, naming the entry, when the file lacks what it names, when its sizes do
  /// not add up, when tied tensors differ, or when two tensors end under one name or one without.
  NamedTensors apply(const NamedTensors& tensors, const torch::nn::Module& module) const;

  /// The opposite: the module's parameters and buffers under their names, what they tie included.
  /// Of several spellings it takes the first.
  /// Throws c10::ValueError, naming the entry or the tensor, when the map cannot be turned around:
  /// how many rows of a packed tensor were whose is not known.
  NamedTensors invert(const torch::nn::Module& module) const;

  /// Whether it leaves every name as it is.
  bool empty() const { return entries_.empty() && paths_.empty(); }

 private:
  enum class Kind { rename, pack, split, transpose, transpose_split, drop, tied };
  struct Entry {
    Kind kind;
    std::vector<std::string> theirs, ours;
  };
  struct Applied;
  struct Inverted;
  friend detail::Translation detail::translate(const NameMap& map, const NamedTensors& theirs,
                                               const torch::nn::Module& module);
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> paths_;  // of `inside`
};

/// Maps for the spellings in use. The comment names the module that each loads into.
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
/// torch.nn.MultiheadAttention with kdim or vdim: MultiHeadAttention
HEED_API NameMap in_proj_separate();

/// Hugging Face's LlamaForCausalLM, Mistral's and Qwen's too: Decoder with rms_norm, swiglu, rotary
/// embedding and neither biases nor positions, as the checkpoint's configuration has it.
HEED_API NameMap llama();
/// Hugging Face's GPT2LMHeadModel: Decoder with learned positions and gelu_tanh.
HEED_API NameMap gpt2();
/// nanoGPT's GPT: Decoder with learned positions and gelu.
HEED_API NameMap nanogpt();
/// torch.nn.TransformerEncoder: Encoder; without a `norm` of its own, one with final_norm(false).
/// torch.nn.TransformerEncoderLayer: TransformerBlock.
HEED_API NameMap transformer_encoder();
/// torch.nn.TransformerDecoder and TransformerDecoderLayer, likewise, with cross_attention(true).
HEED_API NameMap transformer_decoder();
/// The attention of Hugging Face's DeepSeek V2 and V3: LatentAttention.
HEED_API NameMap deepseek_attention();

}  // namespace name_maps

}  // namespace heed
