// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

namespace {

void module() {
  heed::MultiHeadAttention attention(/*emb_dim=*/128, /*head_nums=*/8);
  auto x = torch::randn({3, 50, 128});  // [B, L, E]
  auto y = attention->forward(x);       // [B, L, E]

  // Self-attention that sees the past and no padding; the weights, if wanted, are [B, H, L, L].
  auto lengths = torch::tensor({50, 31, 7});
  auto mask = heed::causal_mask(50, 50) & heed::padding_mask(lengths, 50);
  auto [output, weights] = attention->forward_with_weights(x, mask);

  // Cross-attention: queries from one sequence, keys and values from another.
  auto memory = torch::randn({3, 20, 128});
  auto attended = attention->forward(x, memory, memory);
  std::cout << *attention << ": " << y.sizes() << '\n';
  std::cout << "weights " << weights.sizes() << ", attended " << attended.sizes() << '\n';
}

void options() {
  auto options = heed::GroupQueryAttentionOptions(/*emb_dim=*/128, /*head_num=*/8, /*group_num=*/2)
                     .causal(true)
                     .window(16)
                     .rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/16))
                     .dropout(0.1);
  torch::nn::Sequential model(heed::GroupQueryAttention(options), torch::nn::Linear(128, 10));
  auto scores = model->forward(torch::randn({3, 50, 128}));
  std::cout << "scores " << scores.sizes() << '\n';
}

void errors() {
  heed::MultiHeadAttention attention(128, 8);
  try {
    attention->forward(torch::randn({3, 50, 64}));
  } catch (const c10::ValueError& error) {
    std::cout << error.what_without_backtrace() << '\n';
  }
}

void generation() {
  auto block = heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, block, /*num_layers=*/2)
                          .positions(heed::PositionEmbeddingOptions(64)));
  model->eval();

  torch::NoGradGuard no_grad;
  auto tokens = torch::tensor({{5, 17, 3}});  // [B, L], the prompt
  auto caches = model->make_caches(/*batch=*/1, /*capacity=*/20);
  for (int i = 0; i < 10; ++i) {
    auto scores = model->forward_cached(tokens, caches, {}, /*last_only=*/true);  // [B, 1, V]
    tokens = scores.argmax(-1);                                                   // [B, 1]
  }
  std::cout << "tokens in the cache: " << caches[0].lengths()[0] << '\n';
}

void fixed_shapes() {
  auto block = heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, block, /*num_layers=*/2));
  model->eval();
  const int64_t batch = 2, capacity = 20;
  auto token = torch::tensor({{5}, {17}});

  torch::NoGradGuard no_grad;
  auto caches = model->make_caches(batch, capacity, heed::CacheOptions().fixed_shapes(true));
  auto step = [&] {
    auto scores = model->forward_cached(token, caches);              // token [B, 1]
    token.copy_(scores.select(1, -1).argmax(-1, /*keepdim=*/true));  // the next one
  };
  for (int i = 0; i < 3; ++i) step();
}

}  // namespace

void getting_started() { run(module, options, errors, generation, fixed_shapes); }

}  // namespace guide
