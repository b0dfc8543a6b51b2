// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

#include <limits>

namespace guide {

void from_libtorch() {
  torch::nn::MultiheadAttention theirs(torch::nn::MultiheadAttentionOptions(64, 4));
  heed::MultiHeadAttention ours(/*emb_dim=*/64, /*head_nums=*/4, /*dropout=*/0.0);

  // in_proj_weight and out_proj become fc_q, fc_k, fc_v and fc_out.
  heed::save_weights(*theirs, "attention.safetensors");
  heed::load_weights(*ours, "attention.safetensors",
                     heed::LoadOptions().name_map(heed::name_maps::in_proj()));

  auto x = torch::randn({2, 10, 64});     // [B, L, E]
  auto hidden = torch::arange(10) >= 7;   // true = padding
  auto padding = hidden.expand({2, 10});  // [B, S]
  auto future = torch::full({10, 10}, -std::numeric_limits<float>::infinity()).triu(1);

  auto sequence_first = x.transpose(0, 1);  // [L, B, E]
  auto [expected, averaged] =
      theirs->forward(sequence_first, sequence_first, sequence_first, padding,
                      /*need_weights=*/true, future);

  auto mask = heed::combine_masks(
      {heed::key_padding_mask(heed::from_hidden(padding)), heed::causal_mask(10, 10)});
  auto [output, weights] = ours->forward_with_weights(x, mask);

  // The mask is for the first layer.
  torch::nn::Sequential layers(ours, torch::nn::Linear(64, 10));
  auto scores = layers->forward(x, mask);

  std::cout << "like nn::MultiheadAttention: "
            << torch::allclose(output.transpose(0, 1), expected, 1e-4, 1e-5)
            << ", averaged over heads: " << torch::allclose(weights.mean(1), averaged, 1e-4, 1e-5)
            << '\n';
}

}  // namespace guide
