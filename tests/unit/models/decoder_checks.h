// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/paged_kv_cache.h>
#include <heed/weights.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test {

/// Compares the scores that a decoder computes from caches, `chunk` tokens [B, L] at a time, and
/// from pages with those of its forward pass.
inline void expect_decodes_from_caches(Decoder& model, const at::Tensor& tokens, int64_t chunk) {
  const auto expected = model->forward(tokens);
  auto caches = model->make_caches(tokens.size(0), tokens.size(1));
  EXPECT_TRUE(are_alike({in_chunks(model, tokens, caches, chunk)}, {expected}, 1e-5));
  auto pages = model->make_paged_cache(8);
  auto step = pages.append({pages.add()}, {tokens.size(1)});
  EXPECT_TRUE(are_alike({model->forward_cached(tokens.narrow(0, 1, 1), step)},
                        {expected.narrow(0, 1, 1)}, 1e-5));
}

/// Compares the gradients of a decoder with checkpointing with those without, from one seed.
inline void expect_same_with_checkpoints(DecoderOptions options, const at::Tensor& tokens,
                                         uint64_t seed) {
  const auto length = tokens.size(1) - 1;
  std::vector<std::vector<at::Tensor>> gradients;
  for (const bool checkpointing : {false, true}) {
    torch::manual_seed(moved(seed));
    options.stack().checkpointing(checkpointing);
    Decoder model(options);
    model->loss(tokens.narrow(1, 0, length), tokens.narrow(1, 1, length)).backward();
    auto& own = gradients.emplace_back();
    for (const auto& parameter : model->parameters()) own.push_back(parameter.grad());
  }
  EXPECT_TRUE(are_equal(gradients[1], gradients[0]));
}

/// Compares the scores of a decoder's clone, which is returned, and of another decoder that loads
/// its weights from a file of this path with its own. Then sets the decoder's weights to 0, which
/// the clone must not share.
inline Decoder expect_is_copied_and_saved(Decoder& model, Decoder other, const at::Tensor& tokens,
                                          const std::string& path) {
  const auto expected = model->forward(tokens);
  Decoder copy(std::dynamic_pointer_cast<DecoderImpl>(model->clone()));
  copy->eval();
  EXPECT_TRUE(copy->forward(tokens).equal(expected));
  save_weights(*model, path);
  load_weights(*other, path);
  EXPECT_TRUE(other->forward(tokens).equal(expected));
  for (auto& parameter : model->parameters()) parameter.zero_();
  EXPECT_TRUE(copy->forward(tokens).equal(expected));
  return copy;
}

}  // namespace heed::test
