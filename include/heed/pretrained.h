// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <heed/decoder.h>
#include <heed/encoder_decoder.h>
#include <heed/image_encoder.h>
#include <heed/pack_weights.h>
#include <heed/task_heads.h>
#include <heed/text_encoder.h>

#include <optional>
#include <string>

namespace heed {

/// How `load_pretrained` makes a model.
struct HEED_API PretrainedOptions {
  /// The dtype of the parameters; by default that of the file's tensors, which must then have only
  /// one.
  TORCH_ARG(std::optional<at::ScalarType>, dtype) = std::nullopt;
  /// The device of the parameters; the CPU by default.
  TORCH_ARG(std::optional<at::Device>, device) = std::nullopt;
  /// Packs the weights for inference as `pack_weights` does, each as soon as it is loaded: memory
  /// is taken for the packed weights and the largest tensor. By default they are not packed.
  TORCH_ARG(std::optional<PackOptions>, weights) = std::nullopt;
  /// Whether a Decoder has its head; see DecoderOptions::head. By default it has one, unless
  /// `architectures` names a model without a head, such as Qwen3Model, and the names of the file's
  /// tensors have no prefix, such as `model.`. Other models have the heads of their classes.
  TORCH_ARG(std::optional<bool>, head) = std::nullopt;
  /// Keeps a Decoder's head and its embedding if config.json says that they are one tensor and the
  /// file has two that differ, with a warning, as transformers does. By default this is an error.
  TORCH_ARG(bool, untie_head) = false;
  /// The family of the model, such as "llama", for a config.json without `model_type`; if it has
  /// one, both must agree.
  TORCH_ARG(std::optional<std::string>, model_type) = std::nullopt;
};

/// Makes the model that a folder in Hugging Face's format describes, with its weights, in
/// evaluation mode. `Model` is Decoder, TextEncoder, ImageEncoder, EncoderDecoder,
/// SequenceClassifier, TokenClassifier or MaskedLanguageModel.
///
/// @code
/// auto model = heed::load_pretrained("Llama-3.2-1B");
/// auto scores = model->forward(torch::tensor({{12, 7, 80}}));  // [B, L, V]
///
/// auto options = heed::PretrainedOptions().dtype(torch::kBFloat16);
/// auto encoder = heed::load_pretrained<heed::TextEncoder>("all-MiniLM-L6-v2", options);
/// auto vectors = encoder->forward(torch::tensor({{12, 7, 80}}));  // [B, L, E]
///
/// auto packed = heed::PretrainedOptions().weights(heed::PackFormat::int8);
/// auto small = heed::load_pretrained("Llama-3.2-1B", packed);
/// @endcode
///
/// The folder has config.json and, looked for in this order, model.safetensors,
/// model.safetensors.index.json with its files, pytorch_model.bin, or pytorch_model.bin.index.json
/// with its files. docs/pretrained.md lists the families of models. Nothing in config.json is
/// guessed: a field that is not known to be without effect must be understood.
///
/// Memory is taken for the parameters once, and not before all names and shapes of the file fit
/// config.json. Heads that `Model` does not have, poolers and vision towers are left out. Of a pair
/// of encoders, such as CLIP, TextEncoder and ImageEncoder each are one.
///
/// @code
/// auto reranker = heed::load_pretrained<heed::SequenceClassifier>("ms-marco-MiniLM-L6-v2");
/// auto pair = torch::tensor({{2, 12, 7, 3, 80, 9, 3}});  // [B, L]: a question and a text
/// auto types = torch::tensor({{0, 0, 0, 0, 1, 1, 1}});   // [B, L]
/// auto relevance = reranker->forward(pair, {}, types);   // [B, 1]
/// @endcode
///
/// heed downloads nothing. For a name on huggingface.co, this command makes the folder:
/// `hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B`.
///
/// Throws c10::ValueError that names the file, and in config.json the field and its value, when a
/// file is missing or damaged, when a field is not supported, when config.json and the weights
/// disagree, or when the folder has another kind of model or, by its architectures, another head;
/// with `weights`, also as `pack_weights`
/// does, and when `device` is not the CPU.
template <typename Model = Decoder>
Model load_pretrained(const std::string& folder, const PretrainedOptions& options = {});

/// Makes the model that a config.json describes, with new weights. `path` is the file or its
/// folder. Throws c10::ValueError as `load_pretrained` does.
template <typename Model = Decoder>
Model make_model(const std::string& path);

/// Writes the model to `folder`, which is made if it is missing, as config.json and
/// model.safetensors, which transformers reads. `source` is the folder, or the config.json, that
/// the model was made from: its fields are copied, with the model's dtype. `folder` may be
/// `source`, unless this describes a vision tower too: then only the model's own fields are copied.
/// `architectures` becomes that of the model's head, if it is not the Decoder's own. Each of the
/// two files is written completely or not at all. Throws c10::ValueError when `source` describes
/// another model, and when a file cannot be written.
template <typename Model>
void save_pretrained(const Model& model, const std::string& folder, const std::string& source);

extern template HEED_API Decoder load_pretrained(const std::string&, const PretrainedOptions&);
extern template HEED_API TextEncoder load_pretrained(const std::string&, const PretrainedOptions&);
extern template HEED_API ImageEncoder load_pretrained(const std::string&, const PretrainedOptions&);
extern template HEED_API EncoderDecoder load_pretrained(const std::string&,
                                                        const PretrainedOptions&);
extern template HEED_API SequenceClassifier load_pretrained(const std::string&,
                                                            const PretrainedOptions&);
extern template HEED_API TokenClassifier load_pretrained(const std::string&,
                                                         const PretrainedOptions&);
extern template HEED_API MaskedLanguageModel load_pretrained(const std::string&,
                                                             const PretrainedOptions&);
extern template HEED_API Decoder make_model(const std::string&);
extern template HEED_API TextEncoder make_model(const std::string&);
extern template HEED_API ImageEncoder make_model(const std::string&);
extern template HEED_API EncoderDecoder make_model(const std::string&);
extern template HEED_API SequenceClassifier make_model(const std::string&);
extern template HEED_API TokenClassifier make_model(const std::string&);
extern template HEED_API MaskedLanguageModel make_model(const std::string&);
extern template HEED_API void save_pretrained(const Decoder&, const std::string&,
                                              const std::string&);
extern template HEED_API void save_pretrained(const TextEncoder&, const std::string&,
                                              const std::string&);
extern template HEED_API void save_pretrained(const ImageEncoder&, const std::string&,
                                              const std::string&);
extern template HEED_API void save_pretrained(const EncoderDecoder&, const std::string&,
                                              const std::string&);
extern template HEED_API void save_pretrained(const SequenceClassifier&, const std::string&,
                                              const std::string&);
extern template HEED_API void save_pretrained(const TokenClassifier&, const std::string&,
                                              const std::string&);
extern template HEED_API void save_pretrained(const MaskedLanguageModel&, const std::string&,
                                              const std::string&);

}  // namespace heed
