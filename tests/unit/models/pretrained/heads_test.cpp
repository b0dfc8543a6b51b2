// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/pretrained.h>
#include <heed/weights.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "models/pretrained/heads.h"
#include "support/expect.h"
#include "support/modules.h"
#include "unit/models/pretrained/pretrained_files.h"

namespace heed::test {
namespace {

using detail::Task;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr auto kLlamaSizes = R"("vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 32)";
constexpr auto kDistilBertSizes = R"("vocab_size": 19, "dim": 16, "hidden_dim": 24, "n_layers": 1,
    "n_heads": 4, "max_position_embeddings": 32)";

/// A folder whose model has a head, or none.
class PretrainedHead : public PretrainedFiles {
 protected:
  /// The config.json of a family, with these fields, each with a comma before it.
  std::string config(const std::string& type, const std::string& fields = "") const {
    static const std::set<std::string> ungrouped = {"bert", "distilbert", "gpt_neox", "modernbert",
                                                    "roberta"};
    const std::string sizes = type == "distilbert" ? kDistilBertSizes : kLlamaSizes;
    const auto* groups = ungrouped.count(type) > 0 ? "" : R"(, "num_key_value_heads": 2)";
    return R"({"model_type": ")" + type + "\", " + sizes + groups + fields + "}";
  }

  template <typename Options>
  Options options(Task task, const std::string& type, const std::string& fields = "") const {
    write(config(type, fields));
    return std::get<Options>(detail::read_blueprint(path_, task).options);
  }
  SequenceClassifierOptions sequences(const std::string& type,
                                      const std::string& fields = "") const {
    return options<SequenceClassifierOptions>(Task::classify_sequences, type, fields);
  }

  /// The error of reading the config.json as that of a SequenceClassifier, after its path.
  std::string sequences_error(const std::string& type, const std::string& fields) const {
    const auto error = value_error([&] { sequences(type, fields); });
    const auto start = path_ + ": ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }

  /// Writes a new model to the folder, and its names.
  template <typename Model>
  std::vector<std::string> save_new(const std::string& type, const std::string& fields = "") const {
    write(config(type, fields));
    save_pretrained(make_model<Model>(path_), folder_, path_);
    return names_in_file();
  }

  std::vector<std::string> names_in_file() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : read_weights(weights_)) {
      if (name.find(".0.") == std::string::npos) names.push_back(name);  // not of the layer
    }
    return names;
  }

  /// Renames or, with an empty name, removes tensors of the file.
  void change_names(const std::string& from, const std::string& to) const {
    NamedTensors changed;
    for (const auto& [name, tensor] : read_weights(weights_)) {
      if (name.rfind(from, 0) != 0) {
        changed[name] = tensor;
      } else if (from == "model." || !to.empty()) {
        changed[to + name.substr(from.size())] = tensor;
      }
    }
    save_weights(changed, weights_);
  }

  const std::string folder_ = directory_.string();
  const std::string weights_ = folder_ + "/model.safetensors";
};

TEST_F(PretrainedHead, HasAsManyOutputsAsLabels) {
  EXPECT_EQ(sequences("bert").num_labels(), 2);
  EXPECT_EQ(sequences("bert", R"(, "num_labels": 5)").num_labels(), 5);
  EXPECT_EQ(sequences("bert", R"(, "id2label": null, "num_labels": 5)").num_labels(), 5);
  const std::string three = R"(, "id2label": {"0": "a", "1": "b", "2": "c"})";
  EXPECT_EQ(sequences("bert", three).num_labels(), 3);
  EXPECT_EQ(sequences("bert", three + R"(, "num_labels": 3)").num_labels(), 3);
  EXPECT_EQ(sequences_error("bert", three + R"(, "num_labels": 2)"),
            "num_labels 2 must be the number of labels in id2label (3)");
  EXPECT_EQ(sequences_error("bert", R"(, "id2label": ["a"])"),
            R"(id2label ["a"] must be an object)");
}

TEST_F(PretrainedHead, IsThatOfItsFamily) {
  const auto bert = sequences("bert", R"(, "classifier_dropout": 0.25)");
  EXPECT_EQ(bert.pooling(), Pooling::first);
  EXPECT_EQ(bert.dropout(), 0.25);
  EXPECT_EQ(bert.transform()->activation(), Activation::tanh);
  EXPECT_EQ(bert.transform()->dropout(), 0.0);
  const auto roberta = sequences("roberta", R"(, "classifier_dropout": null)");
  EXPECT_EQ(roberta.dropout(), 0.1);
  EXPECT_EQ(roberta.transform()->dropout(), 0.1);
  const auto distilbert = sequences("distilbert");
  EXPECT_EQ(distilbert.transform()->activation(), Activation::relu);
  EXPECT_EQ(distilbert.dropout(), 0.2);
  const auto modernbert = sequences("modernbert", R"(, "classifier_pooling": "mean")");
  EXPECT_EQ(modernbert.pooling(), Pooling::mean);
  EXPECT_FALSE(modernbert.transform()->bias());
  EXPECT_FALSE(modernbert.transform()->norm()->bias());
  EXPECT_EQ(sequences_error("modernbert", R"(, "classifier_pooling": "max")"),
            R"(classifier_pooling "max" is not supported (cls, mean))");
  const auto masked =
      options<MaskedLanguageModelOptions>(Task::fill_masks, "bert", R"(, "layer_norm_eps": 0.5)");
  EXPECT_EQ(masked.transform().norm()->eps(), 0.5);
  EXPECT_TRUE(masked.bias());
  write(config("bert", R"(, "tie_word_embeddings": false)"));
  EXPECT_EQ(value_error([&] { detail::read_blueprint(path_, Task::fill_masks); }),
            path_ + ": tie_word_embeddings false is not supported (true)");
}

TEST_F(PretrainedHead, OfADecoderFindsItsPadding) {
  const auto padding = [&](const std::string& type, const std::string& fields = "") {
    return sequences(type, fields).padding_token();
  };
  EXPECT_FALSE(padding("llama"));
  EXPECT_EQ(padding("llama", R"(, "pad_token_id": 7)"), 7);
  EXPECT_FALSE(padding("llama", R"(, "pad_token_id": -1)"));
  EXPECT_EQ(padding("gemma"), 0);
  EXPECT_FALSE(padding("gemma", R"(, "pad_token_id": null)"));
  EXPECT_EQ(sequences_error("llama", R"(, "pad_token_id": 1.5)"),
            "pad_token_id 1.5 must be a whole number from -1 to 2147483647");
  const auto llama = sequences("llama");
  EXPECT_EQ(llama.pooling(), Pooling::last);
  EXPECT_FALSE(llama.bias());
  EXPECT_FALSE(llama.transform());
  EXPECT_FALSE(std::get<DecoderOptions>(llama.model()).head());
  // A softcap is of the head that it has not.
  EXPECT_FALSE(std::get<DecoderOptions>(sequences("gemma2").model()).softcap());
  EXPECT_EQ(value_error([&] {
              write(config("llama", R"(, "pad_token_id": 19)"));
              make_model<SequenceClassifier>(path_);
            }),
            "make_model: " + path_ +
                ": SequenceClassifier: padding_token (19) must be at least 0 and below vocab_size "
                "(19)");
  EXPECT_TRUE(options<TokenClassifierOptions>(Task::classify_tokens, "llama").bias());
  EXPECT_EQ(options<TokenClassifierOptions>(Task::classify_tokens, "stablelm",
                                            R"(, "hidden_dropout": 0.5)")
                .dropout(),
            0.5);
}

TEST_F(PretrainedHead, IsMissingInSomeFamilies) {
  write(config("llama"));
  EXPECT_EQ(
      value_error([&] { make_model<MaskedLanguageModel>(path_); }),
      "make_model: " + path_ + " must describe a MaskedLanguageModel; it describes a Decoder");
  write(config("olmo2"));
  EXPECT_EQ(value_error([&] { make_model<TokenClassifier>(path_); }),
            "make_model: " + path_ + " must describe a TokenClassifier; it describes a Decoder");
  write(R"({"model_type": "vit"})");
  EXPECT_EQ(
      value_error([&] { make_model<SequenceClassifier>(path_); }),
      "make_model: " + path_ + " must describe a SequenceClassifier; it describes an ImageEncoder");
}

TEST_F(PretrainedHead, HasTransformersNames) {
  EXPECT_THAT(
      save_new<SequenceClassifier>("llama"),
      UnorderedElementsAre("model.embed_tokens.weight", "model.norm.weight", "score.weight"));
  EXPECT_THAT(save_new<TokenClassifier>("llama"),
              UnorderedElementsAre("model.embed_tokens.weight", "model.norm.weight", "score.weight",
                                   "score.bias"));
  EXPECT_THAT(save_new<SequenceClassifier>("distilbert"),
              UnorderedElementsAre("distilbert.embeddings.word_embeddings.weight",
                                   "distilbert.embeddings.position_embeddings.weight",
                                   "distilbert.embeddings.LayerNorm.weight",
                                   "distilbert.embeddings.LayerNorm.bias", "pre_classifier.weight",
                                   "pre_classifier.bias", "classifier.weight", "classifier.bias"));
  EXPECT_THAT(
      save_new<MaskedLanguageModel>("modernbert"),
      UnorderedElementsAre("model.embeddings.tok_embeddings.weight", "model.embeddings.norm.weight",
                           "model.final_norm.weight", "head.dense.weight", "head.norm.weight",
                           "decoder.weight", "decoder.bias"));
}

TEST_F(PretrainedHead, ComesBackFromItsFolder) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).view({2, 4}) + 1;
  save_new<SequenceClassifier>("qwen3", R"(, "pad_token_id": 0)");
  auto model = load_pretrained<SequenceClassifier>(folder_);
  EXPECT_FALSE(model->is_training());
  save_pretrained(model, folder_ + "/again", folder_);
  auto again = load_pretrained<SequenceClassifier>(folder_ + "/again");
  EXPECT_TRUE(again(tokens).equal(model(tokens)));
  // A head that is left out, as of a file of older programs, is no obstacle.
  auto tensors = read_weights(weights_);
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight") + 1;
  save_weights(tensors, weights_);
  EXPECT_TRUE(load_pretrained<SequenceClassifier>(folder_)(tokens).equal(model(tokens)));
  auto packed = load_pretrained<SequenceClassifier>(
      folder_, PretrainedOptions().weights(PackFormat::float32));
  EXPECT_TRUE(are_alike({packed(tokens)}, {model(tokens)}, 1e-5));
  save_pretrained(packed, folder_ + "/packed", folder_);
  EXPECT_TRUE(
      load_pretrained<SequenceClassifier>(folder_ + "/packed")(tokens).equal(packed(tokens)));
}

TEST_F(PretrainedHead, IsAnotherOne) {
  const std::string of_tokens = R"(, "architectures": ["ModernBertForTokenClassification"])";
  save_new<TokenClassifier>("modernbert", of_tokens);
  EXPECT_TRUE(load_pretrained<TokenClassifier>(folder_)->transform);
  // The names and shapes are those of a SequenceClassifier.
  EXPECT_EQ(value_error([&] { load_pretrained<SequenceClassifier>(folder_); }),
            "load_pretrained: " + path_ +
                ": architectures (ModernBertForTokenClassification) must end in "
                "ForSequenceClassification for a SequenceClassifier");
  save_new<SequenceClassifier>("llama");
  EXPECT_THAT(value_error([&] { load_pretrained<TokenClassifier>(folder_); }),
              HasSubstr("missing: classifier.bias"));
  EXPECT_EQ(value_error([&] {
              load_pretrained<SequenceClassifier>(folder_, PretrainedOptions().head(true));
            }),
            "load_pretrained: head must not be given for a SequenceClassifier");
}

TEST_F(PretrainedHead, MayBeMissingInAFileOfADecoder) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).view({2, 4});
  const std::string architecture = R"(, "architectures": ["Qwen3Model"])";
  write(config("qwen3", R"(, "tie_word_embeddings": true)" + architecture));
  auto whole = make_model(path_);
  save_pretrained(whole, folder_, path_);
  // All that a Decoder has is there, whatever the architecture.
  EXPECT_TRUE(load_pretrained(folder_)(tokens).equal(whole(tokens)));
  auto states = load_pretrained(folder_, PretrainedOptions().head(false));
  EXPECT_EQ(states(tokens).sizes(), at::IntArrayRef({2, 4, 16}));
  EXPECT_EQ(printed(states), "heed::Decoder(vocab_size=19, head=false)");
  // The names that Qwen3Model writes.
  change_names("lm_head.", "");
  change_names("model.", "");
  EXPECT_THAT(names_in_file(), UnorderedElementsAre("embed_tokens.weight", "norm.weight"));
  EXPECT_TRUE(load_pretrained(folder_)(tokens).equal(states(tokens)));
  EXPECT_TRUE(
      load_pretrained(folder_, PretrainedOptions().head(true))(tokens).equal(whole(tokens)));
  // A tied head is in the embedding.
  write(config("qwen3", R"(, "tie_word_embeddings": true, "architectures": ["Qwen3ForCausalLM"])"));
  EXPECT_TRUE(load_pretrained(folder_)(tokens).equal(whole(tokens)));
}

TEST_F(PretrainedHead, IsSavedWithoutOne) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).view({2, 4});
  for (const std::string type : {"llama", "gpt_neox"}) {
    SCOPED_TRACE(type);
    const std::string rotary = type == "gpt_neox" ? R"(, "rotary_pct": 1.0)" : "";
    write(config(type, R"(, "architectures": ["SomeForCausalLM"])" + rotary));
    save_pretrained(make_model(path_), folder_, path_);
    auto states = load_pretrained(folder_, PretrainedOptions().head(false));
    const auto saved = folder_ + "/states-" + type;
    save_pretrained(states, saved, folder_);
    for (const auto& [name, tensor] : read_weights(saved + "/model.safetensors")) {
      EXPECT_EQ(name.find("model."), std::string::npos) << name;
      EXPECT_EQ(name.find("gpt_neox."), std::string::npos) << name;
      EXPECT_EQ(name.find("head"), std::string::npos) << name;
    }
    EXPECT_THAT(read_bytes(saved + "/config.json"), HasSubstr("SomeModel"));
    EXPECT_TRUE(load_pretrained(saved)(tokens).equal(states(tokens)));
  }
}

TEST_F(PretrainedHead, IsAdvisedToBeLeftOut) {
  save_new<Decoder>("llama", R"(, "architectures": ["LlamaForCausalLM"])");
  change_names("lm_head.", "");
  const auto expected = "load_pretrained: " + path_ + " must describe the tensors of " + weights_ +
                        "\n  missing: head.weight"
                        "\n  PretrainedOptions that may help: head(false), for hidden states "
                        "instead of scores";
  EXPECT_EQ(value_error([&] { load_pretrained(folder_); }), expected);
  EXPECT_FALSE(load_pretrained(folder_, PretrainedOptions().head(false))->options.head());
  // Also where the names have no prefix.
  change_names("model.", "");
  EXPECT_EQ(value_error([&] { load_pretrained(folder_); }), expected);
  EXPECT_FALSE(load_pretrained(folder_, PretrainedOptions().head(false))->options.head());
  // Not where more is missing.
  change_names("norm.", "");
  EXPECT_EQ(value_error([&] { load_pretrained(folder_); }).find("head(false)"), std::string::npos);
}

TEST(PretrainedArchitectures, HaveOtherEnds) {
  const auto change = [](const std::string& name) { return detail::with_end(name, "Model"); };
  EXPECT_EQ(change("Qwen3ForCausalLM"), "Qwen3Model");
  EXPECT_EQ(change("GPT2LMHeadModel"), "GPT2Model");
  EXPECT_EQ(change("LlamaModel"), "LlamaModel");
  EXPECT_EQ(detail::with_end("BertForPreTraining", "ForMaskedLM"), "BertForMaskedLM");
  EXPECT_EQ(detail::with_end("BertModel", "ForMaskedLM"), "BertForMaskedLM");
  EXPECT_TRUE(detail::is_without_head("Qwen3Model"));
  for (const auto* name : {"GPT2LMHeadModel", "Qwen3ForCausalLM", ""}) {
    EXPECT_FALSE(detail::is_without_head(name)) << name;
  }
}

}  // namespace
}  // namespace heed::test
