// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

/// One function for each header, with the examples in its comments.
namespace header {

namespace {

at::Tensor heads(int64_t count = 8) { return torch::randn({2, count, 10, 64}); }

void alibi() {
  auto query = heads(), key = heads(2), value = heads(2);
  auto options = heed::AttendOptions().causal(true).alibi_slopes(heed::alibi_slopes(8));
  auto output = heed::attend(query, key, value, options);  // query [B, 8, L, D]
}

void attend() {
  auto query = torch::randn({2, 8, 10, 64});  // [B, H, L, D]
  auto key = torch::randn({2, 2, 10, 64});    // [B, G, S, D]
  auto value = torch::randn({2, 2, 10, 64});  // [B, G, S, Dv]
  auto output = heed::attend(query, key, value, heed::AttendOptions().causal(true));
}

void attend_varlen() {
  // Sequences of 3, 5 and 2 tokens: T = U = 10.
  auto offsets = torch::tensor({0, 3, 8, 10});
  auto query = torch::randn({10, 8, 64}), key = torch::randn({10, 2, 64});
  auto value = torch::randn({10, 2, 64});
  auto output = heed::attend_varlen(query, key, value, offsets, offsets);
}

void merge_attention() {
  auto query = heads(), prefix_key = heads(), prefix_value = heads(), key = heads(),
       value = heads();
  auto options = heed::AttendOptions().causal(true);
  auto [first, first_lse] = heed::attend_with_lse(query, prefix_key, prefix_value);
  auto [second, second_lse] = heed::attend_with_lse(query, key, value, options);
  auto [output, lse] = heed::merge_attention({first, second}, {first_lse, second_lse});
  std::cout << "merged " << output.sizes() << '\n';
}

void attend_options() {
  auto query = heads(), key = heads(), value = heads();
  auto padding = heed::padding_mask(/*lengths=*/torch::tensor({10, 7}), /*key_length=*/10);
  auto options = heed::AttendOptions().mask(padding).causal(true).window(4);
  auto output = heed::attend(query, key, value, options);
}

void attend_path() {
  auto query = heads(), key = heads(), value = heads();
  auto path = heed::attend_path(query, key, value, heed::AttendOptions().dropout(0.1));
  std::cout << to_string(path) << '\n';  // block
}

void attention() {
  heed::Attention attention(/*emb_dim=*/64);
  auto x = torch::randn({2, 10, 64});                         // [B, L, E]
  auto y = attention->forward(x, heed::causal_mask(10, 10));  // [B, L, E]
}

void attention_inputs() {
  heed::MultiHeadAttention attention(64, 4);
  auto x = torch::randn({2, 10, 64});
  // Two documents of 6 and 4 tokens in one row.
  auto inputs = heed::AttentionInputs()
                    .documents(torch::tensor({0, 0, 0, 0, 0, 0, 1, 1, 1, 1}))
                    .positions(torch::tensor({0, 1, 2, 3, 4, 5, 0, 1, 2, 3}));
  auto y = attention->forward(x, inputs);  // x [B, 10, E]
}

void block_mask() {
  auto query = heads(), key = heads(), value = heads();
  // Each token sees the 4 tokens up to itself, and the first.
  auto rule = [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) {
    return j <= i && (j > i - 4 || j == 0);
  };
  auto mask = heed::make_block_mask(/*batch=*/1, /*heads=*/1, /*query_length=*/10, 10, rule);
  auto output = heed::attend(query, key, value, heed::AttendOptions().block_mask(mask));
}

void cost() {
  heed::GroupQueryAttention attention(/*emb_dim=*/512, /*head_num=*/8, /*group_num=*/2);
  auto cost = heed::attention_cost(*attention, /*batch=*/1, /*query_length=*/2048);
  std::cout << cost << cost.kv_cache_bytes << " bytes of cache\n";
}

void differential_attention() {
  heed::DifferentialAttentionOptions options(/*emb_dim=*/64, /*head_num=*/4);
  heed::DifferentialAttention attention(options.layer(2).causal(true));
  auto y = attention->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void group_query_attention() {
  // Eight query heads share two key/value heads.
  heed::GroupQueryAttention attention(/*emb_dim=*/128, /*head_num=*/8, /*group_num=*/2);
  auto x = torch::randn({3, 50, 128});                        // [B, L, E]
  auto y = attention->forward(x, heed::causal_mask(50, 50));  // [B, L, E]
}

void kv_cache() {
  heed::MultiHeadAttention attention(64, 4);
  auto prompt = torch::randn({1, 10, 64}), token = torch::randn({1, 1, 64});
  torch::NoGradGuard no_grad;
  attention->eval();
  auto cache = attention->make_cache(/*batch=*/1, /*capacity=*/100);
  auto y = attention->forward_cached(prompt, cache);  // prompt [1, L, E]
  auto z = attention->forward_cached(token, cache);   // the next token [1, 1, E]
}

void quantize() {
  auto key = torch::randn({1, 2, 100, 64}), value = torch::randn({1, 2, 100, 64});
  auto [keys, key_scales] = heed::quantize_int8(key);
  auto [values, value_scales] = heed::quantize_int8(value);
  auto output =
      heed::attend(torch::randn({1, 8, 1, 64}), keys, values,
                   heed::AttendOptions().key_scales(key_scales).value_scales(value_scales));
}

void paged_kv_cache() {
  heed::GroupQueryAttention attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  auto prompts = torch::randn({1, 8, 64}), tokens = torch::randn({1, 3, 64});
  auto cache = attention->make_paged_cache(/*pages=*/100);
  torch::NoGradGuard no_grad;
  const auto first = cache.add(), second = cache.add();
  auto step = cache.append({first, second}, {5, 3});  // prompts of 5 and 3 tokens
  auto y = attention->forward_cached(prompts, step);  // [1, 8, E]
  const auto other = cache.fork(first);               // goes on from the same tokens
  auto next = cache.append({first, second, other}, {1, 1, 1});
  auto z = attention->forward_cached(tokens, next);  // [1, 3, E]
  cache.remove(second);
}

void memory_rows() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::Decoder decoder(heed::DecoderOptions(
      /*vocab_size=*/100, heed::TransformerBlockOptions(attention).cross_attention(true),
      /*num_layers=*/2));
  torch::NoGradGuard no_grad;
  const auto projected = decoder->project_memory(torch::randn({2, 7, 64}));
  auto cache = decoder->make_paged_cache(/*pages=*/8);
  const auto first = cache.add(), second = cache.add(), fork_of_first = cache.fork(first);
  const auto tokens = torch::randint(100, {1, 3});
  auto step = cache.append({first, second, fork_of_first}, {1, 1, 1});
  auto inputs = heed::TransformerInputs().projected_memory(projected);  // of two sources
  auto scores = decoder->forward_cached(tokens, step.memory_rows({0, 1, 0}), false, inputs);
}

void fixed_kv_cache() {
  heed::MultiHeadAttention attention(64, 4);
  auto cache = attention->make_cache(1, 100, heed::CacheOptions().fixed_shapes(true));
}

void latent_attention() {
  heed::LatentAttentionOptions options(/*emb_dim=*/256, /*head_num=*/4, /*key_rank=*/64);
  heed::LatentAttention attention(options);
  auto y = attention->forward(torch::randn({2, 10, 256}));  // [B, L, E]
}

void deepseek_attention() {
  auto yarn =
      heed::YarnScaling(/*factor=*/40, /*original_length=*/4096).mscale(1.0).mscale_all_dim(1.0);
  auto rotary = heed::RotaryEmbeddingOptions(/*head_dim=*/64)
                    .pairing(heed::RotaryPairing::interleaved)
                    .scaling(yarn);
  heed::LatentAttentionOptions options(/*emb_dim=*/7168, /*head_num=*/128, /*key_rank=*/512);
  options.query_rank(1536).rotary(rotary);
}

void masks() {
  auto query = heads(), key = heads(), value = heads();
  auto causal = heed::causal_mask(/*query_length=*/10, /*key_length=*/10);  // [L, S]
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);            // [B, 1, 1, S]
  auto mask = heed::combine_masks({causal, padding});                       // [B, 1, L, S]
  auto output = heed::attend(query, key, value, heed::AttendOptions().mask(mask));
}

void multi_head_attention_function() {
  auto x = torch::randn({2, 10, 64});  // [B, L, H * D]
  auto causal = heed::AttendOptions().causal(true);
  auto output = heed::multi_head_attention(x, x, x, /*num_heads=*/4, causal);
}

void multi_head_attention() {
  auto memory = torch::randn({2, 20, 64});
  heed::MultiHeadAttention attention(/*emb_dim=*/64, /*head_nums=*/4);
  auto x = torch::randn({2, 10, 64});                           // [B, L, E]
  auto y = attention->forward(x, heed::causal_mask(10, 10));    // self-attention
  auto z = attention->forward(x, memory, memory);               // memory [B, S, E]
  auto [output, weights] = attention->forward_with_weights(x);  // weights [B, H, L, L]
}

void multi_head_attention_base() {
  heed::GroupQueryAttentionOptions options(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  options.causal(true).window(256).rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/16));
  heed::GroupQueryAttention attention(options.qk_norm(heed::QkNormOptions()));
}

void projected_memory() {
  heed::MultiHeadAttention attention(64, 4);
  auto source = torch::randn({2, 20, 64}), query = torch::randn({2, 10, 64});
  auto memory = attention->project_memory(source, source);  // source [B, S, E]
  auto y = attention->forward(query, memory);               // query [B, L, E]
}

void residual_attention() {
  heed::MultiHeadAttentionOptions attention(/*emb_dim=*/64, /*head_nums=*/4);
  heed::ResidualAttention layer(heed::ResidualAttentionOptions(attention).norm_first(true));
  auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void rotary_embedding() {
  auto query = heads(), key = heads(2), value = heads(2);
  heed::RotaryEmbedding rotary(/*head_dim=*/64);
  auto rotated_query = rotary->forward(query);  // [B, H, L, D], positions 0 to L - 1
  auto rotated_key = rotary->forward(key);      // [B, G, S, D]
  auto output = heed::attend(rotated_query, rotated_key, value);

  // An image of 2 x 5 patches: 16 pairs of a head are rotated by the row, 16 by the column.
  auto patch = torch::arange(10);
  auto places = torch::stack({patch.floor_divide(5), patch.remainder(5)}, 1);  // [L, 2]
  heed::RotaryEmbedding axial(
      heed::RotaryEmbeddingOptions(/*head_dim=*/64).sections({16, 16}).restart_sections(true));
  auto rotated = axial->forward(query, places);
}

void scaled_dot_product_attention() {
  auto query = heads(), key = heads(), value = heads();
  heed::ScaledDotProductAttention attention(/*temperature=*/8.0);  // sqrt(D)
  auto [output, weights] = attention->forward(query, key, value);  // query [B, H, L, D]
}

void self_attention() {
  heed::SelfAttention attention(/*embed_size=*/64, /*heads=*/4);
  auto x = torch::randn({2, 10, 64});                    // [B, L, E]
  auto [output, weights] = attention->forward(x, x, x);  // weights [B, H, L, L]
}

void run_attention() {
  run(alibi, attend, attend_varlen, attend_options, attend_path, attention, attention_inputs,
      block_mask, cost, differential_attention, group_query_attention, kv_cache, quantize,
      paged_kv_cache, memory_rows, fixed_kv_cache, latent_attention, deepseek_attention, masks,
      merge_attention, multi_head_attention_function, multi_head_attention,
      multi_head_attention_base, projected_memory, residual_attention, rotary_embedding,
      scaled_dot_product_attention, self_attention);
}

}  // namespace

}  // namespace header

void headers_of_attention() { header::run_attention(); }

}  // namespace guide
