#include <heed/heed.h>
#include <torch/torch.h>

#include <iostream>

#include "guide.h"

namespace guide {

namespace {

void scaled_dot_product_attention() {
  auto query = torch::randn({2, 8, 10, 16});
  auto key = torch::randn({2, 2, 10, 16}), value = torch::randn({2, 2, 10, 16});

  // F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
  auto output = heed::attend(query, key, value, heed::AttendOptions().causal(true));

  auto theirs = at::scaled_dot_product_attention(query, key, value, {}, /*dropout_p=*/0.0,
                                                 /*is_causal=*/true, /*scale=*/{},
                                                 /*enable_gqa=*/true);
  std::cout << "like scaled_dot_product_attention: " << torch::allclose(output, theirs, 1e-4, 1e-5)
            << '\n';

  // With L != S, is_causal is top-left; causal is bottom-right.
  auto some = query.slice(2, 0, 4);
  auto top_left =
      heed::attend(some, key, value, heed::AttendOptions().mask(heed::causal_mask(4, 10, 0)));
  std::cout << "top left: " << torch::allclose(top_left, output.slice(2, 0, 4), 1e-4, 1e-5) << '\n';

  // add_zero_attn=True: one more key and value, both 0.
  auto zero = torch::zeros({2, 2, 1, 16});
  auto appended = heed::attend(query, torch::cat({key, zero}, 2), torch::cat({value, zero}, 2));
  auto sinks = heed::attend(query, key, value, heed::AttendOptions().sinks(torch::zeros({8})));
  std::cout << "add_zero_attn: " << torch::allclose(sinks, appended, 1e-4, 1e-5) << '\n';
}

heed::DecoderOptions llama_options() {
  auto attention = heed::GroupQueryAttentionOptions(/*hidden_size*/ 64, /*num_attention_heads*/ 4,
                                                    /*num_key_value_heads*/ 2)
                       .input_bias(false)  // attention_bias
                       .output_bias(false)
                       .rotary(heed::RotaryEmbeddingOptions(/*head_dim*/ 16).base(10000.0));
  auto feed_forward = heed::FeedForwardOptions(64)
                          .hidden_dim(96)  // intermediate_size
                          .activation(heed::Activation::swiglu)
                          .bias(false);
  auto block = heed::TransformerBlockOptions(attention)
                   .feed_forward(feed_forward)
                   .norm(heed::NormKind::rms_norm)
                   .norm_eps(1e-6);  // rms_norm_eps
  return heed::DecoderOptions(/*vocab_size*/ 199, block, /*num_hidden_layers*/ 3)
      .tied_head(false);  // tie_word_embeddings
}

}  // namespace

void load_llama(const std::string& checkpoint) {
  heed::Decoder model(llama_options());
  auto report = heed::load_weights(*model, checkpoint,
                                   heed::LoadOptions().name_map(heed::name_maps::llama()));
  std::cout << report.loaded.size() << " tensors loaded\n";
}

void from_python() { scaled_dot_product_attention(); }

}  // namespace guide
