// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/families.h"

#include <c10/util/StringUtil.h>

#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/pretrained/heads.h"
#include "weights/formats/bytes.h"

namespace heed::detail {

namespace {

/// How a family is read: one model, or an encoder of texts and one of images.
struct Family {
  /* implicit */ Family(ReadFamily read, ReadFamily read_images = nullptr)
      : read(read), read_images(read_images) {}

  ReadFamily for_task(Task task) const {
    return task == Task::encode_images && read_images != nullptr ? read_images : read;
  }

  ReadFamily read, read_images;  // the latter is null where there is one model
};

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> families = {
      {"bart", read_bart},
      {"bert", read_bert},
      {"camembert", read_xlm_roberta},
      {"clip", {read_clip_text, read_clip_image}},
      {"clip_text_model", read_clip_text_model},
      {"clip_vision_model", read_clip_vision_model},
      {"cohere2", read_cohere2},
      {"deepseek_v2", read_deepseek_v2},
      {"deepseek_v3", read_deepseek_v3},
      {"dinov2", read_dinov2},
      {"dinov2_with_registers", read_dinov2_with_registers},
      {"distilbert", read_distilbert},
      {"electra", read_electra},
      {"gemma", read_gemma},
      {"gemma2", read_gemma2},
      {"gemma3", read_gemma3},
      {"gemma3_text", read_gemma3_text},
      {"glm4", read_glm4},
      {"gpt2", read_gpt2},
      {"gpt_neox", read_gpt_neox},
      {"gpt_oss", read_gpt_oss},
      {"granite", read_granite},
      {"llama", read_llama},
      {"marian", read_marian},
      {"mistral", read_mistral},
      {"mixtral", read_mixtral},
      {"modernbert", read_modernbert},
      {"mt5", read_mt5},
      {"olmo2", read_olmo2},
      {"olmo3", read_olmo3},
      {"olmoe", read_olmoe},
      {"phi3", read_phi3},
      {"qwen2", read_qwen2},
      {"qwen2_moe", read_qwen2_moe},
      {"qwen3", read_qwen3},
      {"qwen3_moe", read_qwen3_moe},
      {"roberta", read_roberta},
      {"siglip", {read_siglip_text, read_siglip_image}},
      {"siglip_text_model", read_siglip_text_model},
      {"siglip_vision_model", read_siglip_vision_model},
      {"smollm3", read_smollm3},
      {"stablelm", read_stablelm},
      {"starcoder2", read_starcoder2},
      {"t5", read_t5},
      {"umt5", read_umt5},
      {"vit", read_vit},
      {"whisper", read_whisper},
      {"xlm-roberta", read_xlm_roberta},
  };
  return families;
}

/// Whether the family's feed-forward layers choose among experts.
bool is_mixture(const std::string& family) {
  static const std::set<std::string> mixtures = {"afmoe",
                                                 "cohere2_moe",
                                                 "dbrx",
                                                 "deepseek_v32",
                                                 "deepseek_v4",
                                                 "dots1",
                                                 "ernie4_5_moe",
                                                 "exaone_moe",
                                                 "flex_olmo",
                                                 "glm4_moe",
                                                 "glm4_moe_lite",
                                                 "glm_moe_dsa",
                                                 "granitemoe",
                                                 "granitemoehybrid",
                                                 "granitemoeshared",
                                                 "hunyuan_v1_moe",
                                                 "jamba",
                                                 "jetmoe",
                                                 "lfm2_moe",
                                                 "llama4",
                                                 "llama4_text",
                                                 "longcat_flash",
                                                 "mimo_v2_flash",
                                                 "minimax",
                                                 "minimax_m2",
                                                 "mistral4",
                                                 "nllb-moe",
                                                 "phimoe",
                                                 "qwen3_5_moe",
                                                 "qwen3_next",
                                                 "solar_open",
                                                 "switch_transformers"};
  return mixtures.count(family) > 0;
}

/// The family of an architecture, by their names: "qwen2_moe" of "Qwen2MoeForCausalLM". None where
/// the name tells none, or several.
std::optional<std::string> family_of(const std::string& architecture) {
  const auto plain = [](const std::string& name) {
    std::string result;
    for (const unsigned char c : name) {
      if (std::isalnum(c) != 0) result += static_cast<char>(std::tolower(c));
    }
    return result;
  };
  const auto stem = plain(with_end(architecture, ""));
  std::vector<std::string> found;
  for (const auto& [name, read] : families()) {
    // Architectures of gemma3_text may lack the "Text".
    if (plain(name) == stem || plain(name) == stem + "text") found.push_back(name);
  }
  return found.size() == 1 ? std::optional(found[0]) : std::nullopt;
}

ReadFamily find_family(const Config& config, Task task) {
  constexpr auto kType = "model_type";
  if (!config.has(kType)) {
    const auto architecture = read_architecture(config);
    const auto family = family_of(architecture);
    const auto advice =
        family ? fmt::format("; {} may be of \"{}\"", in_quotes(architecture), *family) : "";
    config.refuse(kType, "must be there, or be given by PretrainedOptions::model_type" + advice);
  }
  const auto type = config.text(kType, std::nullopt);
  const auto found = families().find(type);
  if (found != families().end()) return found->second.for_task(task);
  if (is_mixture(type)) {
    config.refuse(kType, "is a mixture of experts of a family that is not supported");
  }
  std::vector<std::string> names;
  for (const auto& [name, read] : families()) names.push_back(name);
  config.refuse(kType, fmt::format("is not supported ({})", c10::Join(", ", names)));
}

/// Ignore fields of any family that make no difference to the outputs and gradients: where the
/// model is from and how transformers runs it, what tokens and heads mean, and how tokens are
/// generated.
/// @{
void ignore_origin(const Config& config) {
  config.ignore({"_attn_implementation",
                 "_attn_implementation_autoset",
                 "_commit_hash",
                 "_flash_attn_2_enabled",
                 "_name_or_path",
                 "_num_labels",
                 "architectures",
                 "attn_implementation",
                 "auto_map",
                 "chunk_size_feed_forward",
                 "dtype",
                 "gradient_checkpointing",
                 "initializer_range",
                 "is_llama_config",
                 "language",
                 "max_sequence_length",
                 "model_max_length",
                 "name",
                 "name_or_path",
                 "output_attentions",
                 "output_hidden_states",
                 "output_past",
                 "pretraining_tp",
                 "return_dict",
                 "sbert_ce_default_activation_function",
                 "sentence_transformers",
                 "tf_legacy_loss",
                 "tie_last_hidden_states",
                 "torch_dtype",
                 "torchscript",
                 "transformers.js_config",
                 "transformers_version",
                 "unsloth_fixed",
                 "unsloth_version",
                 "use_bfloat16",
                 "use_cache",
                 "xla_device"});
}

void ignore_tokens(const Config& config) {
  config.ignore({"bos_token_id", "cls_token_id", "cross_attention_hidden_size",
                 "decoder_start_token_id", "eos_token_id", "eos_token_ids", "finetuning_task",
                 "id2label", "label2id", "mask_token_id", "num_labels", "pad_token_id", "prefix",
                 "problem_type", "sep_token_id", "task_specific_params", "tie_encoder_decoder",
                 "tokenizer_class", "unk_token_id"});
}

void ignore_generation(const Config& config) {
  config.ignore({"assistant_confidence_threshold",
                 "assistant_lookbehind",
                 "bad_words_ids",
                 "begin_suppress_tokens",
                 "cache_implementation",
                 "diversity_penalty",
                 "do_sample",
                 "early_stopping",
                 "encoder_no_repeat_ngram_size",
                 "encoder_repetition_penalty",
                 "epsilon_cutoff",
                 "eta_cutoff",
                 "exponential_decay_length_penalty",
                 "forced_bos_token_id",
                 "forced_eos_token_id",
                 "length_penalty",
                 "max_length",
                 "min_length",
                 "no_repeat_ngram_size",
                 "num_assistant_tokens",
                 "num_assistant_tokens_schedule",
                 "num_beam_groups",
                 "num_beams",
                 "num_return_sequences",
                 "output_scores",
                 "remove_invalid_values",
                 "repetition_penalty",
                 "return_dict_in_generate",
                 "suppress_tokens",
                 "target_lookbehind",
                 "temperature",
                 "top_k",
                 "top_p",
                 "typical_p"});
}
/// @}

void refuse_quantized(const Config& config) {
  constexpr auto kName = "quantization_config";
  const auto quantization = config.object(kName);
  if (quantization.empty()) return;
  const bool is_mxfp4 = quantization.is_text("quant_method") &&
                        quantization.text("quant_method", std::nullopt) == "mxfp4";
  config.refuse(kName, is_mxfp4
                           ? "is of MXFP4 weights, which heed does not read: convert them to "
                             "bfloat16, as transformers does with Mxfp4Config(dequantize=True) and "
                             "save_pretrained"
                           : "is of weights that another program has quantized, which heed does "
                             "not read: load the model of which they were made, with "
                             "PretrainedOptions::weights");
}

/// Checks fields of any family that heed supports with one value, which makes no difference.
void expect_plain_model(const Config& config, bool is_encoder_decoder) {
  config.expect("is_encoder_decoder", {is_encoder_decoder ? "true" : "false"});
  config.expect("per_layer_config", {"null", "{}"});
  config.expect("pruned_heads", {"{}"});
  config.expect("rope_interleaved", {"false"});
}

/// Reads the fields that any family may have.
void read_any_family(const Config& config, bool is_encoder_decoder) {
  ignore_origin(config);
  ignore_tokens(config);
  ignore_generation(config);
  refuse_quantized(config);
  expect_plain_model(config, is_encoder_decoder);
}

}  // namespace

Blueprint read_blueprint(const std::string& config_path, Task task,
                         const std::optional<std::string>& model_type) {
  const Config config(config_path);
  if (model_type) config.add("model_type", *model_type);
  auto blueprint = find_family(config, task)(config);
  blueprint.architecture = read_architecture(config);
  add_head(config, task, blueprint);
  const bool is_pair = std::holds_alternative<EncoderDecoderOptions>(blueprint.options);
  read_any_family(config, is_pair);
  if (blueprint.part) read_any_family(config.object(blueprint.part->field), is_pair);
  config.check_all_read();
  return blueprint;
}

}  // namespace heed::detail
