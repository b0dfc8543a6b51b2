// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

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

void autocast() {
  heed::FeedForward model(64);
  auto x = torch::randn({2, 10, 64});
  heed::Autocast autocast(torch::kCPU, torch::kBFloat16);
  auto loss = model->forward(x).square().mean();
}

void beam_search() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, attention, /*num_layers=*/2));
  std::vector<std::vector<int64_t>> prompts = {{5, 8, 13}, {21, 34}};
  auto options = heed::BeamSearchOptions(/*num_beams=*/4, /*max_new_tokens=*/20)
                     .end_tokens({2})
                     .num_return_sequences(2);
  auto found = heed::beam_search(model, prompts, options);
  const auto best = found[0][0];  // the best continuation of the first prompt: tokens and score
}

void beam_search_of_targets() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
  heed::DecoderOptions decoder(/*vocab_size=*/100, stack);
  heed::EncoderDecoder model(heed::EncoderDecoderOptions(encoder, decoder));
  auto source = torch::randint(100, {2, 12});  // [N, S]
  auto padding = heed::padding_mask(torch::tensor({12, 7}), 12);
  std::vector<std::vector<int64_t>> starts = {{0}, {0}};  // decoder_start_token_id
  auto options = heed::BeamSearchOptions(/*num_beams=*/4, /*max_new_tokens=*/20).end_tokens({1});
  auto found = heed::beam_search(model, source, starts, options, padding);
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

void checkpoint() {
  heed::FeedForward block(64);
  auto x = torch::randn({2, 10, 64});
  auto y = heed::checkpoint([&](const auto& in) { return block->forward(in[0]); }, {x});
  y.sum().backward();
}

void cost() {
  heed::GroupQueryAttention attention(/*emb_dim=*/512, /*head_num=*/8, /*group_num=*/2);
  auto cost = heed::attention_cost(*attention, /*batch=*/1, /*query_length=*/2048);
  std::cout << cost << cost.kv_cache_bytes << " bytes of cache\n";
}

void decoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  attention.rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/16));
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, attention, /*num_layers=*/2));
  auto tokens = torch::randint(100, {2, 10});  // [B, L]
  auto scores = model->forward(tokens);        // [B, L, V]

  auto text = torch::randint(100, {2, 11});
  auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
  loss.backward();
}

void differential_attention() {
  heed::DifferentialAttentionOptions options(/*emb_dim=*/64, /*head_num=*/4);
  heed::DifferentialAttention attention(options.layer(2).causal(true));
  auto y = attention->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

class Doubled : public heed::FeedForwardImpl {
 public:
  using heed::FeedForwardImpl::FeedForwardImpl;
  at::Tensor forward(const at::Tensor& x) override { return 2 * FeedForwardImpl::forward(x); }
};

void feed_forward_of_ones_own() {
  heed::TransformerBlock block(heed::GroupQueryAttentionOptions(64, 4, 2));
  std::shared_ptr<heed::FeedForwardImpl> mine = std::make_shared<Doubled>(/*emb_dim=*/64);
  block->feed_forward = block->replace_module("feed_forward", mine);
  auto y = block->forward(torch::randn({2, 10, 64}));
}

/// A layer of one's own: x * tanh(fc(x)).
class MyLayerImpl : public torch::nn::Cloneable<MyLayerImpl> {
 public:
  explicit MyLayerImpl(int64_t width) : width(width) { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(width, width)); }
  at::Tensor forward(const at::Tensor& x) { return x * heed::linear(fc, x).tanh(); }

  int64_t width;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(MyLayer);

void feed_forward_layers() {
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(64, 4, 2));
  block.feed_forward([] { return torch::nn::AnyModule(MyLayer(64)); });
  heed::TransformerBlock own(block);
  std::cout << "own layer: " << own->forward(torch::randn({2, 10, 64})).sizes() << '\n';
}

/// A norm of one's own: x / (1 + the largest |x|), times a weight.
class MyNormImpl : public torch::nn::Cloneable<MyNormImpl> {
 public:
  explicit MyNormImpl(int64_t width) : width(width) { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({width})); }
  at::Tensor forward(const at::Tensor& x) {
    return x / (1 + x.abs().amax(-1, /*keepdim=*/true)) * weight;
  }

  int64_t width;
  at::Tensor weight;
};
TORCH_MODULE(MyNorm);

void norms_and_memories() {
  heed::TransformerBlockOptions options(heed::GroupQueryAttentionOptions(64, 4, 2));
  auto configure = [](heed::TransformerBlockOptions& block) {
    block.norm([] { return torch::nn::AnyModule(MyNorm(64)); });
    heed::GroupQueryAttentionOptions cross(/*emb_dim=*/64, /*head_num=*/8, /*group_num=*/8);
    block.cross_attention(cross.key_emb_dim(96).value_emb_dim(96));  // memory [B, S, 96]
  };
  configure(options);
  heed::TransformerBlock block(options);
  auto* norm = block->norm_module("attention_norm")->as<MyNorm>();
  auto memory = heed::TransformerInputs().memory(torch::randn({2, 5, 96}));
  auto y = block->forward(torch::randn({2, 10, 64}), memory);
  std::cout << "own norm: " << norm->weight.sizes() << ' ' << y.sizes() << '\n';
}

void attention_layers() {
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::LatentAttentionOptions latent(/*emb_dim=*/64, /*head_num=*/4, /*key_rank=*/16);
  block.attention(latent);
  heed::TransformerBlock own(block);
  auto y = own->forward(torch::randn({2, 10, 64}));
}

void latent_attention_in_a_block() {
  heed::TransformerBlock block(heed::LatentAttentionOptions(64, 4, 16));
  auto* latent = block->attention_module()->as<heed::LatentAttention>();
  latent->reset_parameters();
}

void mixture_of_experts() {
  auto expert = heed::FeedForwardOptions(64).hidden_dim(96).activation(heed::Activation::swiglu);
  heed::MixtureOfExpertsOptions options(expert, /*expert_num=*/8, /*top_k=*/2);
  heed::MixtureOfExperts layer(options);
  auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void routing_record() {
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(64, 4, 2));
  block.feed_forward(heed::MixtureOfExpertsOptions(64, 8, 2));
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, block, /*num_layers=*/2));
  auto text = torch::randint(100, {2, 11});
  heed::RoutingRecord record;
  auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
  loss = loss + 0.01 * heed::load_balancing_loss(record.routings());
  loss.backward();
}

void mixture_in_a_block() {
  heed::TransformerBlockOptions options(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::TransformerBlock block(options.feed_forward(heed::MixtureOfExpertsOptions(64, 8, 2)));
  auto* mixture = block->feed_forward_module()->as<heed::MixtureOfExperts>();
  std::cout << "experts: " << mixture->experts->size() << '\n';
}

void feed_forward() {
  auto options = heed::FeedForwardOptions(64).activation(heed::Activation::swiglu);
  heed::FeedForward layer(options);
  auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

at::Tensor loss_of(heed::FeedForward& model, const at::Tensor& x) {
  heed::Autocast autocast(torch::kCPU, torch::kHalf);
  return model->forward(x).to(torch::kFloat).square().mean();
}

void clip_grad_norm() {
  heed::FeedForward model(64);
  model->forward(torch::randn({2, 10, 64})).sum().backward();
  heed::clip_grad_norm_(model->parameters(), /*max_norm=*/1.0);
}

void fused_adamw() {
  heed::FeedForward model(64);
  auto x = torch::randn({2, 10, 64});
  heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    loss_of(model, x).backward();
    optimizer.step_clipped(/*max_norm=*/1.0);  // or step()
  }
}

void grad_scaler() {
  heed::FeedForward model(64);
  auto x = torch::randn({2, 10, 64});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  heed::GradScaler scaler;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    scaler.scale(loss_of(model, x)).backward();
    scaler.unscale_(optimizer);  // only if gradients are clipped or looked at
    heed::clip_grad_norm_(model->parameters(), 1.0);
    scaler.step(optimizer);
    scaler.update();
  }
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

void add_adapter() {
  heed::FeedForward layer(heed::FeedForwardOptions(/*emb_dim=*/64));
  heed::add_adapter(*layer, heed::LoraOptions(/*rank=*/4).alpha(8.0));
  heed::FusedAdamW optimizer(heed::adapter_parameters(*layer), torch::optim::AdamWOptions(1e-3));
}

void pack_weights() {
  heed::MultiHeadAttention attention(64, 4);
  attention->eval();
  heed::pack_weights(*attention, heed::PackFormat::int8);
  auto y = attention->forward(torch::randn({2, 10, 64}));
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

void linear() {
  torch::nn::Linear fc(64, 128);
  auto y = heed::linear(fc, torch::randn({2, 10, 64}));  // [2, 10, 128]
}

void linear_cross_entropy() {
  auto x = torch::randn({6, 16}).requires_grad_();
  auto weight = torch::randn({100, 16}).requires_grad_();
  auto targets = torch::tensor({3, 1, 4, 1, -100, 9});  // the fifth row is ignored
  auto loss = heed::linear_cross_entropy(x, weight, targets);
  loss.backward();
}

void masks() {
  auto query = heads(), key = heads(), value = heads();
  auto causal = heed::causal_mask(/*query_length=*/10, /*key_length=*/10);  // [L, S]
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);            // [B, 1, 1, S]
  auto mask = heed::combine_masks({causal, padding});                       // [B, 1, L, S]
  auto output = heed::attend(query, key, value, heed::AttendOptions().mask(mask));
}

void model_cost() {
  heed::Decoder model(heed::DecoderOptions(100, heed::GroupQueryAttentionOptions(64, 4, 2), 2));
  std::cout << heed::model_cost(*model, /*batch=*/1, /*length=*/1024);
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

/// Reads the file that the guide of weights has written.
void name_maps() {
  // Three matrices in the file, one in the module; the module has no output projection.
  auto names = heed::NameMap().pack({"query", "key", "value"}, "qkv").drop("dense");
  heed::AttentionV1 attention(/*emb_dim=*/64);
  auto options = heed::LoadOptions().name_map(names);
  heed::load_weights(*attention, "other.safetensors", options);
}

void save_weights() {
  heed::MultiHeadAttention attention(64, 4);
  heed::save_weights(*attention, "attention.safetensors");
  heed::load_weights(*attention, "attention.safetensors");
}

void save_tensors() {
  heed::MultiHeadAttention attention(64, 4);
  auto x = torch::randn({2, 10, 64});  // [B, L, E]
  auto [output, weights] = attention->forward_with_weights(x);
  heed::save_weights({{"output", output}, {"weights", weights}}, "maps.safetensors");
}

void load_weights_of_a_stream() {
  heed::MultiHeadAttention attention(64, 4);
  std::ifstream file("attention.safetensors", std::ios::binary);
  std::string bytes_of_a_file(std::istreambuf_iterator<char>(file), {});
  std::istringstream stream(bytes_of_a_file);
  heed::load_weights(*attention, stream);
}

void named_tensors() {
  heed::NamedTensors tensors = heed::read_weights("attention.safetensors");
  std::cout << tensors.at("fc_q.weight").sizes() << '\n';
}

void norm() {
  heed::Norm norm(heed::NormOptions(/*dim=*/64).kind(heed::NormKind::rms_norm));
  auto y = norm->forward(torch::randn({2, 10, 64}));
}

void position_embedding() {
  heed::PositionEmbedding positions(/*emb_dim=*/64);
  auto y = positions->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void projected_memory() {
  heed::MultiHeadAttention attention(64, 4);
  auto source = torch::randn({2, 20, 64}), query = torch::randn({2, 10, 64});
  auto memory = attention->project_memory(source, source);  // source [B, S, E]
  auto y = attention->forward(query, memory);               // query [B, L, E]
}

void qk_norm() {
  auto norm = heed::QkNormOptions().kind(heed::NormKind::layer_norm);
  auto options = heed::GroupQueryAttentionOptions(64, 4, 2).qk_norm(norm);
  heed::GroupQueryAttention attention(options);
}

void relative_position_bias() {
  heed::RelativePositionBias bias(/*head_num=*/4);
  auto [table, positions] = bias->relative();
  auto options = heed::AttendOptions().relative_bias(table).relative_positions(positions);
  auto x = torch::randn({2, 4, 10, 16});
  auto output = heed::attend(x, x, x, options);
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

void sampling() {
  auto scores = torch::randn({2, 100});  // [N, V]
  auto tokens = heed::sample(scores, heed::SamplingOptions().temperature(0.8).top_p(0.95));

  // Each sequence with options and a seed of its own.
  std::vector<heed::SamplingOptions> options(2);
  options[0].temperature(0);
  options[1].top_k(40).min_p(0.05);
  std::vector<at::Generator> generators = {at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1),
                                           at::make_generator<at::CPUGeneratorImpl>(/*seed=*/2)};
  tokens = heed::sample(scores, options, generators);

  // With the tokens so far: tokens that have come already are less likely.
  std::vector<int64_t> first = {12, 7, 80}, second = {3, 3};
  std::vector<heed::TokenHistory> histories = {{first, /*generated=*/1}, {second, 1}};
  const auto penalized = heed::SamplingOptions().repetition_penalty(1.2).frequency_penalty(0.5);
  tokens = heed::sample(scores, penalized, generators, histories);
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

void transformer_block() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::TransformerBlock block(heed::TransformerBlockOptions(attention).dropout(0.1));
  auto y = block->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void transformer_inputs() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::Decoder decoder(heed::DecoderOptions(/*vocab_size=*/100, attention, /*num_layers=*/2));
  auto tokens = torch::randint(100, {2, 10}), positions = torch::arange(10).remainder(5);
  auto documents = torch::arange(10).floor_divide(5);
  auto inputs = heed::TransformerInputs().documents(documents).positions(positions);
  auto scores = decoder->forward(tokens, inputs);
}

void encoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::Encoder encoder(heed::EncoderOptions(attention, /*num_layers=*/2));
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
  auto y = encoder->forward(torch::randn({2, 10, 64}), padding);  // [B, L, E]
}

void load_weights() {
  heed::MultiHeadAttention attention(/*emb_dim=*/64, /*head_nums=*/4);
  auto options = heed::LoadOptions().strict(false);
  auto report = heed::load_weights(*attention, "attention.safetensors", options);
  std::cout << report.loaded.size() << " loaded, " << report.missing.size() << " missing\n";
}

}  // namespace

void text_encoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::TextEncoder encoder(heed::TextEncoderOptions(/*vocab_size=*/100, stack));
  auto tokens = torch::randint(100, {2, 10});  // [B, L]
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
  auto y = encoder->forward(tokens, padding);  // [B, L, E]
}

void head_transform() {
  auto options = heed::HeadTransformOptions(64).activation(heed::Activation::tanh);
  heed::HeadTransform pooler(options);
  auto y = pooler->forward(torch::randn({2, 64}));  // [B, E]
}

void sequence_classifier() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
  heed::SequenceClassifier model(heed::SequenceClassifierOptions(encoder, /*num_labels=*/3));
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
  auto scores = model->forward(torch::randint(100, {2, 10}), padding);  // [B, C]
}

void token_classifier() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
  heed::TokenClassifier model(heed::TokenClassifierOptions(encoder, /*num_labels=*/9));
  auto scores = model->forward(torch::randint(100, {2, 10}));  // [B, L, C]
}

void encoder_decoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::PositionEmbeddingOptions positions(64);
  auto encoder = heed::TextEncoderOptions(/*vocab_size=*/100, stack)
                     .token_embedding(false)  // that of the decoder
                     .positions(positions);
  auto decoder = heed::DecoderOptions(/*vocab_size=*/100, stack).positions(positions);
  heed::EncoderDecoder model(heed::EncoderDecoderOptions(encoder, decoder));
  auto source = torch::randint(100, {2, 12});  // [B, S]
  auto target = torch::randint(100, {2, 10});  // [B, L]
  auto padding = heed::padding_mask(torch::tensor({12, 7}), 12);
  auto scores = model->forward(source, target, padding);  // [B, L, V]

  torch::NoGradGuard no_grad;
  auto inputs = heed::TransformerInputs()
                    .projected_memory(model->project_memory(model->encode(source, padding)))
                    .memory_mask(padding);
  auto caches = model->make_caches(/*batch=*/2, /*capacity=*/20);
  auto tokens = torch::zeros({2, 1}, torch::kLong);  // the token that every target begins with
  for (int i = 0; i < 20; ++i) {
    auto next = model->forward_cached(tokens, caches, {}, inputs);  // [B, 1, V]
    tokens = next.argmax(2);
  }
}

void frame_encoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::FrameEncoder encoder(heed::FrameEncoderOptions(/*mels=*/80, /*positions=*/50, stack));
  auto y = encoder->forward(torch::randn({2, 80, 100}));  // [B, mels, T] -> [B, T / 2, E]
}

void masked_language_model() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
  heed::MaskedLanguageModel model{heed::MaskedLanguageModelOptions(encoder)};
  auto scores = model->forward(torch::randint(100, {2, 10}));  // [B, L, V]
}

void pool_tokens() {
  heed::EncoderOptions stack(heed::GroupQueryAttentionOptions(64, 4, 4), 2);
  heed::TextEncoder encoder(heed::TextEncoderOptions(100, stack));
  auto tokens = torch::randint(100, {2, 10});
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
  auto states = encoder->forward(tokens, padding);                         // [B, L, E]
  auto vectors = heed::pool_tokens(states, heed::Pooling::mean, padding);  // [B, E]
}

void image_encoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::EncoderOptions stack(attention, /*num_layers=*/2);
  heed::ImageEncoderOptions options(/*image_size=*/32, /*patch_size=*/8, stack);
  heed::ImageEncoder encoder(options);
  auto y = encoder->forward(torch::randn({2, 3, 32, 32}));              // [B, 1 + N, E]
  auto of_image = y.select(1, 0);                                       // [B, E]
  auto pooled = encoder->forward_pooled(torch::randn({2, 3, 32, 32}));  // [B, E]
}

void attention_pooling() {
  heed::GroupQueryAttentionOptions heads(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::AttentionPooling pooling{heed::AttentionPoolingOptions(heads)};
  auto vectors = pooling->forward(torch::randn({2, 10, 64}));  // [B, E]
}

void run_all() {
  run(add_adapter, alibi, attend, attend_varlen, attend_options, attend_path, attention,
      attention_inputs, autocast, beam_search, beam_search_of_targets, block_mask, checkpoint, cost,
      decoder, differential_attention, feed_forward, feed_forward_of_ones_own, feed_forward_layers,
      norms_and_memories, attention_layers, latent_attention_in_a_block, mixture_of_experts,
      routing_record, mixture_in_a_block, clip_grad_norm, fused_adamw, grad_scaler,
      group_query_attention, kv_cache, fixed_kv_cache, paged_kv_cache, memory_rows, quantize,
      latent_attention, deepseek_attention, linear, linear_cross_entropy, masks, merge_attention,
      model_cost, multi_head_attention_function, multi_head_attention, multi_head_attention_base,
      name_maps, pack_weights, save_weights, save_tensors, load_weights_of_a_stream, named_tensors,
      norm, position_embedding, projected_memory, qk_norm, relative_position_bias,
      residual_attention, rotary_embedding, sampling, scaled_dot_product_attention, self_attention,
      transformer_block, transformer_inputs, encoder, text_encoder, head_transform,
      sequence_classifier, token_classifier, masked_language_model, encoder_decoder, frame_encoder,
      pool_tokens, image_encoder, attention_pooling, load_weights);
}

}  // namespace header

void headers() { header::run_all(); }

}  // namespace guide
