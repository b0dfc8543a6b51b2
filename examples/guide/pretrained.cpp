// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

namespace guide {

namespace {

void task_heads() {
  auto reranker = heed::load_pretrained<heed::SequenceClassifier>("ms-marco-MiniLM-L6-v2");
  auto pair = torch::tensor({{2, 12, 7, 3, 80, 9, 3}});  // [B, L]: a question and a text
  auto types = torch::tensor({{0, 0, 0, 0, 1, 1, 1}});   // [B, L]
  auto relevance = reranker->forward(pair, {}, types);   // [B, 1]

  auto without_head = heed::PretrainedOptions().head(false);
  auto embedder = heed::load_pretrained("Qwen3-Embedding-0.6B", without_head);
  auto tokens = torch::tensor({{12, 7, 80}, {9, 3, 0}});  // [B, L]
  auto padding = heed::padding_mask(torch::tensor({3, 2}), 3);
  auto states = embedder->forward(tokens, padding);                           // [B, L, E]
  auto embeddings = heed::pool_tokens(states, heed::Pooling::last, padding);  // [B, E]
  std::cout << "relevance " << relevance.sizes() << ", embeddings " << embeddings.sizes() << '\n';

  auto names = heed::load_pretrained<heed::TokenClassifier>("bert-base-NER");
  auto labels = names->forward(tokens, padding).argmax(-1);  // [B, L]
  auto bert = heed::load_pretrained<heed::MaskedLanguageModel>("bert-base-uncased");
  auto guesses = bert->forward(tokens, padding).argmax(-1);  // [B, L]
  std::cout << "labels " << labels.sizes() << ", guesses " << guesses.sizes() << '\n';
}

void texts_and_images() {
  auto tokens = torch::tensor({{12, 7, 60}, {9, 60, 0}});  // [B, L]: 60 ends a text
  auto padding = heed::padding_mask(torch::tensor({3, 2}), 3);
  auto pixels = torch::randn({4, 3, 12, 12});  // [N, C, I, I]

  auto texts = heed::load_pretrained<heed::TextEncoder>("clip-vit-base-patch32");
  auto images = heed::load_pretrained<heed::ImageEncoder>("clip-vit-base-patch32");
  namespace F = torch::nn::functional;
  auto of_texts = F::normalize(texts->forward_pooled(tokens, padding));  // [B, P]
  auto of_images = F::normalize(images->forward_pooled(pixels));         // [N, P]
  auto file = heed::read_weights("clip-vit-base-patch32/model.safetensors");
  auto scores = of_images.matmul(of_texts.t()) * file["logit_scale"].exp();  // [N, B]
  std::cout << "scores of images and texts " << scores.sizes() << '\n';
}

/// The example in the header.
void header_example() {
  auto model = heed::load_pretrained("Llama-3.2-1B");
  auto scores = model->forward(torch::tensor({{12, 7, 80}}));  // [B, L, V]

  auto options = heed::PretrainedOptions().dtype(torch::kBFloat16);
  auto encoder = heed::load_pretrained<heed::TextEncoder>("all-MiniLM-L6-v2", options);
  auto vectors = encoder->forward(torch::tensor({{12, 7, 80}}));  // [B, L, E]

  auto packed = heed::PretrainedOptions().weights(heed::PackFormat::int8);
  auto small = heed::load_pretrained("Llama-3.2-1B", packed);
  std::cout << "scores " << scores.sizes() << ", vectors " << vectors.scalar_type() << '\n';

  heed::save_pretrained(small, "Llama-3.2-1B-int8", "Llama-3.2-1B");
  auto again = heed::load_pretrained("Llama-3.2-1B-int8");
  auto rounded = heed::PackOptions(heed::PackFormat::int8).quantize_activations(true);
  auto fast = heed::load_pretrained("Llama-3.2-1B", heed::PretrainedOptions().weights(rounded));
  const torch::NoGradGuard no_grad;
  std::cout << "rounded " << fast->forward(torch::zeros({1, 9}, torch::kLong)).sizes() << '\n';
  auto tokens = torch::tensor({{12, 7, 80}});
  std::cout << "packed, the same: " << again->forward(tokens).equal(small->forward(tokens)) << '\n';
}

void write_adapter() {
  auto model = heed::load_pretrained("Llama-3.2-1B");
  heed::add_adapter(*model);
  heed::save_adapter(*model, "adapter", heed::AdapterOptions().source("Llama-3.2-1B"));
}

void adapter() {
  auto model = heed::load_pretrained("Llama-3.2-1B");
  auto source = heed::AdapterOptions().source("Llama-3.2-1B");
  heed::load_adapter(*model, "adapter", source);
  heed::merge_adapter(*model);  // as fast as without an adapter
}

}  // namespace

void pretrained(const std::string& folder) {
  header_example();
  write_adapter();
  adapter();
  task_heads();
  texts_and_images();

  heed::Decoder model = heed::load_pretrained(folder);
  {
    // Generate: the prompt at once, then token by token, with what a cache keeps.
    torch::NoGradGuard no_grad;
    auto tokens = torch::tensor({{12, 7, 80}});
    auto caches = model->make_caches(/*batch=*/1, /*capacity=*/23);
    auto sampling = heed::SamplingOptions().temperature(0.8);
    for (int i = 0; i < 20; ++i) {
      auto scores = model->forward_cached(tokens, caches, {}, /*last_only=*/true);  // [1, 1, V]
      tokens = heed::sample(scores[0], sampling).unsqueeze(1);                      // [1, 1]
      std::cout << tokens.item<int64_t>() << ' ';
    }
  }

  // Fine-tune: here on tokens that count to 40, over and over.
  auto text = torch::arange(8 * 41).view({8, 41}) % 41;
  auto input = text.slice(1, 0, 40), next = text.slice(1, 1, 41);
  heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  model->train();
  double first = 0.0, last = 0.0;
  for (int step = 0; step < 20; ++step) {
    auto loss = model->loss(input, next);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  std::cout << "\nlearns: " << (last < first) << '\n';

  // Save it for transformers, and for heed.
  heed::save_pretrained(model, "tuned", folder);
  auto tuned = heed::load_pretrained("tuned");
  model->eval();
  std::cout << "the same: " << tuned->forward(input).equal(model->forward(input)) << '\n';
}

}  // namespace guide
