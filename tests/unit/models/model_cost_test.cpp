// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <heed/cost.h>
#include <heed/model_cost.h>
#include <heed/pack_weights.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <limits>
#include <string>

#include "support/expect.h"
#include "support/transformers.h"

namespace heed::test::of_model_cost {
namespace {

constexpr int64_t B = 2, L = 10, S = 7, E = 32, H = 4, G = 2, V = 50;

int64_t elements(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

/// The part of this name.
ModelCost::Part part_of(const ModelCost& cost, const std::string& name) {
  for (const auto& each : cost.parts) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << name;
  return {};
}

/// Counted by hand for D = 8, F = 4 E and biases everywhere.
TEST(ModelCost, CountsEveryPart) {
  Decoder model(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 3)
                    .positions(PositionEmbeddingOptions(E)));
  const auto cost = model_cost(*model, B, L, S);
  const auto part = [&](const std::string& name) { return part_of(cost, name); };
  EXPECT_EQ(cost.total().parameters, elements(*model));
  EXPECT_EQ(part("token embedding").parameters, V * E);
  EXPECT_EQ(part("attention").count, 3);
  EXPECT_EQ(part("norm").count, 10);
  EXPECT_EQ(part("norm").parameters, 10 * 2 * E);
  const int64_t projected = 2 * E * E, of_keys = 2 * E * G * 8;
  EXPECT_EQ(part("attention").macs, 3 * B * (L * (projected + of_keys) + L * L * 2 * E));
  EXPECT_EQ(part("attention").kv_cache_bytes, 3 * B * L * 2 * G * 8 * 4);
  EXPECT_EQ(part("cross-attention").macs, 3 * B * (L * projected + S * of_keys + L * S * 2 * E));
  EXPECT_EQ(part("cross-attention").kv_cache_bytes, 3 * B * S * 2 * G * 8 * 4);
  EXPECT_EQ(part("feed-forward").macs, 3 * B * L * 8 * E * E);
  EXPECT_EQ(part("head, tied").macs, B * L * V * E);
  EXPECT_EQ(part("head, tied").parameters, 0);
  EXPECT_EQ(cost.total().macs, part("attention").macs + part("cross-attention").macs +
                                   part("feed-forward").macs + part("head, tied").macs);

  Decoder untied(DecoderOptions(V, block_options(E, H, G), 1).tied_head(false));
  EXPECT_EQ(model_cost(*untied, B, L).total().parameters, elements(*untied));
  Encoder encoder(EncoderOptions(block_options(E, H, G), 2));
  EXPECT_EQ(model_cost(*encoder, B, L).total().parameters, elements(*encoder));
}

int64_t elements_of(const ModelCost& cost, const std::string& start) {
  int64_t count = 0;
  for (const auto& part : cost.parts) {
    if (part.name.rfind(start, 0) == 0) count += part.parameters;
  }
  return count;
}

/// Counted by hand for D = 8, F = 4 E and biases everywhere.
TEST(ModelCost, CountsAnEncoderAndItsDecoder) {
  const auto bias = RelativePositionBiasOptions(H).buckets(8).max_distance(9);
  const auto encoder = EncoderOptions(block_options(E, H, G), 2).relative_bias(bias);
  auto text = TextEncoderOptions(V, encoder).embedding_dim(16).type_vocab_size(2);
  text.positions(PositionEmbeddingOptions(16).kind(PositionKind::learned).max_length(9));
  text.embedding_norm(true);
  const auto decoder = DecoderOptions(V, block_options(E, H, G), 3)
                           .positions(PositionEmbeddingOptions(E))
                           .embedding_norm(true)
                           .score_bias(true);
  EncoderDecoder model(EncoderDecoderOptions(text, decoder));
  const auto cost = model_cost(*model, B, S, L);
  const auto part = [&](const std::string& name) { return part_of(cost, name); };
  EXPECT_EQ(cost.total().parameters, elements(*model));
  EXPECT_EQ(elements_of(cost, "encoder "), elements(*model->encoder));
  EXPECT_EQ(part("encoder relative bias").parameters, 8 * H);
  EXPECT_EQ(part("norm").count, 11);
  const int64_t projected = 2 * E * E, of_keys = 2 * E * G * 8;
  EXPECT_EQ(part("encoder embedding projection").macs, B * S * 16 * E);
  EXPECT_EQ(part("encoder attention").macs, 2 * B * (S * (projected + of_keys) + S * S * 2 * E));
  EXPECT_EQ(part("encoder attention").kv_cache_bytes, 0);
  EXPECT_EQ(part("attention").macs, 3 * B * (L * (projected + of_keys) + L * L * 2 * E));
  EXPECT_EQ(part("cross-attention").macs, 3 * B * (L * projected + S * of_keys + L * S * 2 * E));
  EXPECT_EQ(part("cross-attention").kv_cache_bytes, 3 * B * S * 2 * G * 8 * 4);
  EXPECT_EQ(part("head, tied").macs, B * L * V * E);
  EXPECT_ERROR("model_cost: source_length (-1) must be at least 0", model_cost(*model, B, -1, L));
  const auto table = c10::str(cost);  // as wide as its longest name
  EXPECT_EQ(table.substr(0, table.find('\n')).find("count"), 28U + 2);
}

TEST(ModelCost, CountsTheFramesOfAnEncoder) {
  constexpr int64_t mels = 5, frames = 9, positions = 5;
  EncoderDecoder model(
      EncoderDecoderOptions(FrameEncoderOptions(mels, 8, EncoderOptions(block_options(E, H, G), 1)),
                            DecoderOptions(V, block_options(E, H, G), 1)));
  const auto cost = model_cost(*model, B, frames, L);
  EXPECT_EQ(cost.total().parameters, elements(*model));
  EXPECT_EQ(cost.parts[0].name, "encoder convolution");
  EXPECT_EQ(cost.parts[0].macs, B * (frames * 3 * mels * E + positions * 3 * E * E));
  const auto of_memory = model_cost(*model->decoder, B, L, positions);
  EXPECT_EQ(cost.total().kv_cache_bytes, of_memory.total().kv_cache_bytes);
}

/// Its memory is there once, its work is done for each place.
TEST(ModelCost, CountsASharedParameterOnce) {
  Decoder model(DecoderOptions(V, block_options(E, H, G), 2));
  const auto apart = model_cost(*model, B, L);
  auto& blocks = model->stack->blocks;
  const auto first = blocks[0];
  const auto block = elements(*first);
  blocks = model->stack->replace_module("blocks", torch::nn::ModuleList(first, first));
  const auto shared = model_cost(*model, B, L);
  EXPECT_EQ(shared.total().parameters, apart.total().parameters - block);
  EXPECT_EQ(shared.total().macs, apart.total().macs);
  EXPECT_EQ(shared.total().kv_cache_bytes, apart.total().kv_cache_bytes);
}

TEST(ModelCost, IsATable) {
  const Decoder model(DecoderOptions(V, block_options(E, H, G), 1));
  EXPECT_EQ(
      c10::str(model_cost(*model, 1, 1)),
      R"(part                 count      parameters   parameter bytes       multiply-adds    kv cache bytes
token embedding          1            1600              6400                   0                 0
attention                1            3168             12672                3136               128
norm                     3             192               768                   0                 0
feed-forward             1            8352             33408                8192                 0
head, tied               1               0                 0                1600                 0
total                    7           13312             53248               12928               128
)");
  auto packed = Decoder(DecoderOptions(V, block_options(E, H, G), 1));
  pack_weights(*packed, PackFormat::int8);
  const auto cost = model_cost(*packed, 1, 1);
  EXPECT_EQ(cost.total().parameters, 13312);
  // Panels have 64 outputs, of which fc_out needs 32.
  EXPECT_EQ(cost.parts[3].name, "feed-forward");
  EXPECT_EQ(cost.parts[3].parameter_bytes, 128 * 32 + 64 * 128 + (128 + 64) * 4 + (128 + 32) * 4);
}

TEST(ModelCost, NamesTheSizeThatIsWrongAndNeverOverflows) {
  const Encoder encoder(EncoderOptions(block_options(E, H, G), 1));
  EXPECT_ERROR("model_cost: batch (-1) must be at least 0", model_cost(*encoder, -1, L));
  EXPECT_ERROR("model_cost: length (-2) must be at least 0", model_cost(*encoder, B, -2));
  EXPECT_ERROR("model_cost: memory_length (-3) must be at least 0", model_cost(*encoder, B, L, -3));
  constexpr auto kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(model_cost(*encoder, kLargest, kLargest).total().macs, kLargest);
}

}  // namespace
}  // namespace heed::test::of_model_cost
