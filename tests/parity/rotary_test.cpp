// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/rotary_embedding.h>

#include <map>

#include "fixture.h"
#include "support/expect.h"

namespace heed::test {
namespace {

/// Written by rotary_embeddings.py with transformers 5.24.
TEST(Rotary, EqualsTransformers) {
  const Fixture fixture(HEED_PARITY_DATA "/rotary.pt");
  const auto head_dim = fixture["x"].size(3);
  const RotaryEmbeddingOptions plain(head_dim);
  const auto scaled = [&](const RotaryScaling& scaling) {
    return RotaryEmbeddingOptions(head_dim).scaling(scaling);
  };
  const auto interleaved = RotaryEmbeddingOptions(head_dim).pairing(RotaryPairing::interleaved);
  const std::map<std::string, RotaryEmbeddingOptions> cases = {
      {"plain", plain},
      {"base", RotaryEmbeddingOptions(head_dim).base(500000.0)},
      {"linear", scaled(LinearScaling(4.0))},
      {"dynamic_ntk", scaled(NtkScaling(2.0).original_length(64))},
      {"longrope", scaled(LongRopeScaling({1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0},
                                          {1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 11.0, 14.0}, 64)
                              .attention_factor(1.25))},
      {"yarn", scaled(YarnScaling(4.0, 64))},
      {"llama3", scaled(Llama3Scaling(8.0, 64))},
      {"interleaved", interleaved},
      {"interleaved_partial", RotaryEmbeddingOptions(interleaved).rotary_dim(6)},
  };
  for (const auto& [name, options] : cases) {
    for (const auto device : devices()) {
      const auto output = RotaryEmbedding(options)->forward(fixture["x"].to(device),
                                                            fixture["positions"].to(device));
      // Theirs are computed in float32, |x| <= 4: at position 200 one rounding of a frequency or of
      // an angle turns a pair by 1.2e-5.
      EXPECT_TRUE(is_close(output, fixture[name], 5e-5)) << name;
    }
  }
}

/// Positions on several axes: those of Qwen2-VL's and GLM-4V's text, and of Qwen2-VL's images.
TEST(Rotary, EqualsTransformersOnSeveralAxes) {
  const Fixture fixture(HEED_PARITY_DATA "/rotary.pt");
  const auto head_dim = fixture["x"].size(3);
  const auto mrope = RotaryEmbeddingOptions(head_dim).sections({2, 3, 3});
  const auto glm = RotaryEmbeddingOptions(head_dim)
                       .rotary_dim(head_dim / 2)
                       .pairing(RotaryPairing::interleaved)
                       .sections({1, 1, 2});
  const auto axial =
      RotaryEmbeddingOptions(head_dim).base(100.0).sections({4, 4}).restart_sections(true);
  const auto expect = [&](const char* name, const RotaryEmbeddingOptions& options,
                          const char* positions) {
    for (const auto device : devices()) {
      const auto output =
          RotaryEmbedding(options)->forward(fixture["x"].to(device), fixture[positions].to(device));
      EXPECT_TRUE(is_close(output, fixture[name], 5e-5)) << name;  // as above
    }
  };
  expect("mrope", mrope, "points");
  expect("mrope_yarn", RotaryEmbeddingOptions(mrope).scaling(YarnScaling(4.0, 64)), "points");
  expect("mrope_interleaved", glm, "points");
  expect("axial", axial, "places");
}

/// DINOv3's places in an image are no integers: its angles come from outside, each of them twice.
TEST(Rotary, TakesTheAnglesOfDinov3) {
  const Fixture fixture(HEED_PARITY_DATA "/rotary.pt");
  const auto head_dim = fixture["x"].size(3);
  for (const auto device : devices()) {
    const auto own = [&](const char* name) {
      return fixture[name].to(device).narrow(1, 0, head_dim / 2).unsqueeze(0).unsqueeze(0);
    };
    const auto output = RotaryEmbedding(head_dim)->rotate(fixture["x"].to(device),
                                                          {own("dinov3_cos"), own("dinov3_sin")});
    EXPECT_TRUE(is_close(output, fixture["dinov3"], 2e-6));
  }
}

}  // namespace
}  // namespace heed::test
