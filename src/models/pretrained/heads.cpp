// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/heads.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "models/pretrained/fields.h"
#include "weights/formats/bytes.h"

namespace heed::detail {

namespace {

constexpr auto kClassifier = "classifier";

/// The number of labels: that of id2label or, if there are none, num_labels, by default 2.
int64_t read_num_labels(const Config& config) {
  const auto names = config.count_or_null("id2label");
  const auto number = config.size_or_null("num_labels");
  if (names && number && *names != *number) {
    config.refuse("num_labels",
                  fmt::format("must be the number of labels in id2label ({})", *names));
  }
  return names ? *names : number.value_or(2);
}

/// The probability of a field that may be null; `otherwise` if it is null or not there.
double read_dropout(const Config& config, const std::string& name, double otherwise) {
  return config.number_or_null(name) ? config.probability(name, otherwise) : otherwise;
}

/// A decoder's padding token; none if the field is null or -1, of which no token is.
std::optional<int64_t> read_padding(const Config& config, std::optional<int64_t> otherwise) {
  constexpr auto kPadding = "pad_token_id";
  if (!config.has(kPadding)) return otherwise;
  if (!config.number_or_null(kPadding)) return std::nullopt;
  const auto token = config.whole(kPadding, std::nullopt, -1, INT32_MAX);
  return token < 0 ? std::nullopt : std::optional(token);
}

/// The heads of a family of decoders, as transformers has them: one Linear on the hidden states.
struct DecoderHeads {
  std::optional<int64_t> padding_token;  // where a file leaves it out
  const char* token_layer = "score";     // null: the family has no TokenClassifier
};

const DecoderHeads* find_decoder_heads(const std::string& family) {
  static const std::map<std::string, DecoderHeads> all = {
      {"gemma", {0}},
      {"gemma2", {0}},
      {"gemma3_text", {0, nullptr}},
      {"gpt2", {std::nullopt, kClassifier}},
      {"gpt_neox", {std::nullopt, kClassifier}},
      {"llama", {std::nullopt}},
      {"mistral", {std::nullopt}},
      {"olmo2", {1, nullptr}},
      {"phi3", {32000}},
      {"qwen2", {std::nullopt}},
      {"qwen3", {std::nullopt}},
      {"smollm3", {128004}},
      {"stablelm", {std::nullopt}},
  };
  const auto found = all.find(family);
  return found == all.end() ? nullptr : &found->second;
}

/// The dropout before the classifier of a decoder's tokens.
double read_token_dropout(const Config& config, const std::string& family) {
  const double otherwise = family == "stablelm" ? config.probability("hidden_dropout", 0.0) : 0.1;
  return read_dropout(config, "classifier_dropout", otherwise);
}

void add_decoder_head(const Config& config, Task task, const std::string& family,
                      Blueprint& blueprint) {
  const auto* heads = find_decoder_heads(family);
  const bool for_tokens = task == Task::classify_tokens;
  if (heads == nullptr || task == Task::fill_masks) return;
  if (for_tokens && heads->token_layer == nullptr) return;
  remove_head(blueprint);
  const auto decoder = std::get<DecoderOptions>(blueprint.options);
  const auto num_labels = read_num_labels(config);
  NameMap names;
  if (for_tokens) {
    names.rename(heads->token_layer, kClassifier);
    blueprint.options = TokenClassifierOptions(decoder, num_labels)
                            .bias(config.boolean("token_classification_bias", true))
                            .dropout(read_token_dropout(config, family));
  } else {
    names.rename("score", kClassifier);
    blueprint.options = SequenceClassifierOptions(decoder, num_labels)
                            .padding_token(read_padding(config, heads->padding_token))
                            .bias(false);
  }
  blueprint.names = names.submodule("decoder", blueprint.names);
}

/// The heads of a family of encoders, and the names of their parts.
struct EncoderHeads {
  std::optional<SequenceClassifierOptions> sequences = std::nullopt;
  std::optional<TokenClassifierOptions> tokens = std::nullopt;
  std::optional<MaskedLanguageModelOptions> masks = std::nullopt;
  NameMap names = {};
};

/// Adds names of a layer_norm, which has TensorFlow's names in files of 2018.
void rename_norm(NameMap& names, const std::string& theirs) {
  names.rename_any({theirs + ".weight", theirs + ".gamma"}, "transform.norm.weight")
      .rename_any({theirs + ".bias", theirs + ".beta"}, "transform.norm.bias");
}

/// Adds names of the scores of masked tokens: `decoder` is the layer whose weight is `embedding`, a
/// name that stands alone or inside `prefix`, and `bias` the parameter that some files call the
/// layer's bias.
void rename_scores(NameMap& names, const std::string& decoder, const std::string& bias,
                   const std::string& prefix, const std::string& embedding) {
  names.tied(decoder + ".weight", {prefix + embedding, embedding});
  if (bias != decoder + ".bias") names.tied(decoder + ".bias", {bias});
  names.rename_any({bias, decoder + ".bias"}, "output_bias");
}

HeadTransformOptions transform_of(const TextEncoderOptions& encoder, Activation activation) {
  return HeadTransformOptions(encoder.stack().block().emb_dim()).activation(activation);
}

HeadTransformOptions masked_transform(const TextEncoderOptions& encoder, Activation activation,
                                      double eps) {
  auto transform = transform_of(encoder, activation);
  return transform.norm(NormOptions(transform.emb_dim()).eps(eps));
}

/// The scores of masked tokens, whose weight is the embedding.
MaskedLanguageModelOptions read_masked(const Config& config, const TextEncoderOptions& encoder,
                                       const HeadTransformOptions& transform) {
  config.expect("tie_word_embeddings", {"true"});
  return MaskedLanguageModelOptions(encoder).transform(transform);
}

double read_bert_dropout(const Config& config) {
  return read_dropout(config, "classifier_dropout", config.probability("hidden_dropout_prob", 0.1));
}

EncoderHeads read_bert_heads(const Config& config, Task task, const TextEncoderOptions& encoder) {
  EncoderHeads heads;
  const auto dropout = read_bert_dropout(config);
  if (task == Task::fill_masks) {
    const auto activation = read_activation(config, "hidden_act", "gelu");
    const auto eps = read_norm_eps(config, "layer_norm_eps", 1e-12);
    heads.masks = read_masked(config, encoder, masked_transform(encoder, activation, eps));
    heads.names.rename("cls.predictions.transform.dense", "transform.dense");
    rename_norm(heads.names, "cls.predictions.transform.LayerNorm");
    rename_scores(heads.names, "cls.predictions.decoder", "cls.predictions.bias", "bert.",
                  "embeddings.word_embeddings.weight");
    return heads;
  }
  if (task == Task::classify_sequences) {
    heads.sequences = SequenceClassifierOptions(encoder, read_num_labels(config))
                          .transform(transform_of(encoder, Activation::tanh))
                          .dropout(dropout);
    heads.names.rename_any({"bert.pooler.dense", "pooler.dense"}, "transform.dense");
  } else {
    heads.tokens = TokenClassifierOptions(encoder, read_num_labels(config)).dropout(dropout);
  }
  heads.names.rename(kClassifier, kClassifier);
  return heads;
}

EncoderHeads read_roberta_heads(const Config& config, Task task,
                                const TextEncoderOptions& encoder) {
  EncoderHeads heads;
  const auto dropout = read_bert_dropout(config);
  if (task == Task::fill_masks) {
    const auto eps = read_norm_eps(config, "layer_norm_eps", 1e-12);
    heads.masks = read_masked(config, encoder, masked_transform(encoder, Activation::gelu, eps));
    heads.names.rename("lm_head.dense", "transform.dense");
    rename_norm(heads.names, "lm_head.layer_norm");
    rename_scores(heads.names, "lm_head.decoder", "lm_head.bias", "roberta.",
                  "embeddings.word_embeddings.weight");
  } else if (task == Task::classify_sequences) {
    heads.sequences = SequenceClassifierOptions(encoder, read_num_labels(config))
                          .transform(transform_of(encoder, Activation::tanh).dropout(dropout))
                          .dropout(dropout);
    heads.names.rename("classifier.dense", "transform.dense")
        .rename("classifier.out_proj", kClassifier);
  } else {
    heads.tokens = TokenClassifierOptions(encoder, read_num_labels(config)).dropout(dropout);
    heads.names.rename(kClassifier, kClassifier);
  }
  return heads;
}

EncoderHeads read_distilbert_heads(const Config& config, Task task,
                                   const TextEncoderOptions& encoder) {
  constexpr double kNormEps = 1e-12;
  EncoderHeads heads;
  if (task == Task::fill_masks) {
    const auto activation = read_activation(config, "activation", "gelu");
    heads.masks = read_masked(config, encoder, masked_transform(encoder, activation, kNormEps));
    heads.names.rename("vocab_transform", "transform.dense");
    rename_norm(heads.names, "vocab_layer_norm");
    rename_scores(heads.names, "vocab_projector", "vocab_projector.bias", "distilbert.",
                  "embeddings.word_embeddings.weight");
    return heads;
  }
  if (task == Task::classify_sequences) {
    heads.sequences = SequenceClassifierOptions(encoder, read_num_labels(config))
                          .transform(transform_of(encoder, Activation::relu))
                          .dropout(config.probability("seq_classif_dropout", 0.2));
    heads.names.rename("pre_classifier", "transform.dense");
  } else {
    heads.tokens = TokenClassifierOptions(encoder, read_num_labels(config))
                       .dropout(config.probability("dropout", 0.1));
  }
  heads.names.rename(kClassifier, kClassifier);
  return heads;
}

Pooling read_pooling(const Config& config) {
  constexpr auto kPooling = "classifier_pooling";
  const auto pooling = config.text(kPooling, "cls");
  if (pooling != "cls" && pooling != "mean")
    config.refuse(kPooling, "is not supported (cls, mean)");
  return pooling == "cls" ? Pooling::first : Pooling::mean;
}

EncoderHeads read_modernbert_heads(const Config& config, Task task,
                                   const TextEncoderOptions& encoder) {
  EncoderHeads heads;
  auto transform = transform_of(encoder, read_activation(config, "classifier_activation", "gelu"))
                       .bias(config.boolean("classifier_bias", false));
  transform.norm(NormOptions(transform.emb_dim())
                     .eps(read_norm_eps(config, "norm_eps", 1e-5))
                     .bias(config.boolean("norm_bias", false)));
  heads.names.rename("head.dense", "transform.dense").rename("head.norm", "transform.norm");
  if (task == Task::fill_masks) {
    heads.masks =
        read_masked(config, encoder, transform).bias(config.boolean("decoder_bias", true));
    rename_scores(heads.names, "decoder", "decoder.bias", "model.",
                  "embeddings.tok_embeddings.weight");
    return heads;
  }
  const auto num_labels = read_num_labels(config);
  const auto dropout = config.probability("classifier_dropout", 0.0);
  if (task == Task::classify_sequences) {
    heads.sequences = SequenceClassifierOptions(encoder, num_labels)
                          .pooling(read_pooling(config))
                          .transform(transform)
                          .dropout(dropout);
  } else {
    heads.tokens =
        TokenClassifierOptions(encoder, num_labels).transform(transform).dropout(dropout);
  }
  heads.names.rename(kClassifier, kClassifier);
  return heads;
}

using ReadEncoderHeads = EncoderHeads (*)(const Config& config, Task task,
                                          const TextEncoderOptions& encoder);

ReadEncoderHeads find_encoder_heads(const std::string& family) {
  static const std::map<std::string, ReadEncoderHeads> all = {
      {"bert", read_bert_heads},
      {"camembert", read_roberta_heads},
      {"distilbert", read_distilbert_heads},
      {"modernbert", read_modernbert_heads},
      {"roberta", read_roberta_heads},
      {"xlm-roberta", read_roberta_heads},
  };
  const auto found = all.find(family);
  return found == all.end() ? nullptr : found->second;
}

void add_encoder_head(const Config& config, Task task, const std::string& family,
                      Blueprint& blueprint) {
  const auto read = find_encoder_heads(family);
  if (read == nullptr) return;
  auto heads = read(config, task, std::get<TextEncoderOptions>(blueprint.options));
  if (heads.sequences) blueprint.options = *heads.sequences;
  if (heads.tokens) blueprint.options = *heads.tokens;
  if (heads.masks) blueprint.options = *heads.masks;
  blueprint.names = heads.names.submodule("encoder", blueprint.names);
}

}  // namespace

std::string read_architecture(const Config& config) {
  constexpr auto kArchitectures = "architectures";
  if (!config.is_list(kArchitectures)) return "";
  const auto names = config.texts_or_null(kArchitectures);
  return names && !names->empty() ? names->front() : "";
}

bool is_without_head(const std::string& architecture) {
  return ends_with(architecture, "Model") && !ends_with(architecture, "LMHeadModel");
}

std::string with_end(const std::string& architecture, std::string_view end) {
  auto stem = architecture.substr(0, architecture.rfind("For"));
  for (const std::string_view old : {"LMHeadModel", "Model"}) {
    if (!ends_with(stem, old)) continue;
    stem.resize(stem.size() - old.size());
    break;
  }
  return stem + std::string(end);
}

const std::vector<std::string>& names_of_heads() {
  static const std::vector<std::string> names = {"lm_head", "embed_out", "score", "classifier",
                                                 "qa_outputs"};
  return names;
}

void remove_head(Blueprint& blueprint) {
  std::get<DecoderOptions>(blueprint.options).head(false).softcap(std::nullopt).scores_scale(1.0);
  blueprint.names = without_modules(std::move(blueprint.names), names_of_heads());
}

void add_head(const Config& config, Task task, Blueprint& blueprint) {
  if (task == Task::own || task == Task::encode_texts || task == Task::encode_images) return;
  const auto family = config.text("model_type", std::nullopt);
  if (std::holds_alternative<DecoderOptions>(blueprint.options)) {
    add_decoder_head(config, task, family, blueprint);
  } else if (std::holds_alternative<TextEncoderOptions>(blueprint.options)) {
    add_encoder_head(config, task, family, blueprint);
  }
}

}  // namespace heed::detail
