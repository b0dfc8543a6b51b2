// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

/// One function for each header, with the examples in its comments.
namespace header {

namespace {

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

void run_models() {
  run(beam_search, beam_search_of_targets, decoder, sampling, text_encoder, head_transform,
      sequence_classifier, token_classifier, encoder_decoder, frame_encoder, masked_language_model,
      pool_tokens, image_encoder);
}

}  // namespace

}  // namespace header

void headers_of_models() { header::run_models(); }

}  // namespace guide
