// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

#include <deque>
#include <vector>

namespace guide {

namespace {

heed::Decoder small_model() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  attention.rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/16));
  heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, attention, /*num_layers=*/2));
  model->eval();
  return model;
}

void come_and_go(heed::Decoder& model) {
  torch::NoGradGuard no_grad;
  auto cache = model->make_paged_cache(/*pages=*/100);
  const auto first = cache.add(), second = cache.add();

  // Prompts of 5 and 3 tokens in one step, one sequence after the other: tokens [1, 8].
  auto prompts = cache.append({first, second}, {5, 3});
  auto scores = model->forward_cached(torch::randint(100, {1, 8}), prompts);  // [1, 8, V]

  // A token for the first, and four more for the second.
  auto mixed = cache.append({first, second}, {1, 4});
  scores =
      model->forward_cached(torch::randint(100, {1, 5}), mixed, /*last_only=*/true);  // [1, 2, V]

  cache.remove(first);
  std::cout << "scores of a step " << scores.sizes() << '\n';
}

void share_a_prompt(heed::Decoder& model) {
  torch::NoGradGuard no_grad;
  auto cache = model->make_paged_cache(/*pages=*/100);
  const auto prompt = cache.add();
  auto step = cache.append({prompt}, {640});
  model->forward_cached(torch::randint(100, {1, 640}), step);  // once

  std::vector<int64_t> answers;
  for (int i = 0; i < 50; ++i) answers.push_back(cache.fork(prompt));
  auto next = cache.append(answers, std::vector<int64_t>(50, 1));
  model->forward_cached(torch::randint(100, {1, 50}), next);
  std::cout << "pages of 50 answers: " << 100 - cache.pages_free() << '\n';
}

struct Request {
  std::vector<int64_t> tokens;  // of the prompt, then of the answer too
  int64_t wanted;               // tokens in the end
  int64_t sequence = -1;        // in the cache
};

/// Answers each request by its most probable tokens, as many at once as have room.
void serve(heed::Decoder& model, std::deque<Request> waiting) {
  torch::NoGradGuard no_grad;
  constexpr int64_t kPages = 8, kPageSize = 16;
  auto cache = model->make_paged_cache(kPages, heed::PagedCacheOptions().page_size(kPageSize));
  auto pages_of = [](const Request& request) { return request.wanted / kPageSize + 1; };
  std::vector<Request> running;
  int64_t reserved = 0;
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && reserved + pages_of(waiting.front()) <= kPages) {
      reserved += pages_of(waiting.front());
      running.push_back(waiting.front());
      running.back().sequence = cache.add();
      waiting.pop_front();
    }
    // The tokens that are new to the cache: a whole prompt, or the last token of an answer.
    std::vector<int64_t> sequences, counts, tokens;
    for (auto& request : running) {
      sequences.push_back(request.sequence);
      counts.push_back(request.tokens.size() - cache.length(request.sequence));
      tokens.insert(tokens.end(), request.tokens.end() - counts.back(), request.tokens.end());
    }
    auto step = cache.append(sequences, counts);
    auto scores = model->forward_cached(torch::tensor(tokens).unsqueeze(0), step,
                                        /*last_only=*/true);  // [1, N, V]
    auto next = scores.argmax(2);
    std::vector<Request> unfinished;
    for (size_t n = 0; n < running.size(); ++n) {
      auto& request = running[n];
      request.tokens.push_back(next[0][n].item<int64_t>());
      if (request.tokens.size() < static_cast<size_t>(request.wanted)) {
        unfinished.push_back(request);
        continue;
      }
      std::cout << "answered " << request.tokens.size() << " tokens\n";
      cache.remove(request.sequence);
      reserved -= pages_of(request);
    }
    running = unfinished;
  }
}

void keep_int8(heed::Decoder& model) {
  auto cache = model->make_paged_cache(100, heed::PagedCacheOptions().dtype(torch::kChar));
  torch::NoGradGuard no_grad;
  auto step = cache.append({cache.add()}, {5});
  std::cout << "with int8 " << model->forward_cached(torch::randint(100, {1, 5}), step).sizes()
            << '\n';
}

/// One step of the model for a draft of three tokens.
void check_a_draft(heed::Decoder& model) {
  torch::NoGradGuard no_grad;
  auto cache = model->make_paged_cache(/*pages=*/100);
  const auto sequence = cache.add();
  // The newest token is 7. After it a draft: 1 and then 2, or 3.
  auto tokens = torch::tensor({7, 1, 2, 3});
  std::vector<int64_t> parents = {-1, 0, 1, 0};
  const auto first = cache.length(sequence);
  auto step = cache.append({sequence}, {4}, parents);
  auto scores = model->forward_cached(tokens.unsqueeze(0), step)[0];  // [4, V]
  auto accepted = heed::accept_draft(tokens, parents, scores.argmax(1));
  for (auto& token : accepted.path) token += first;
  cache.keep(sequence, accepted.path);  // the next step begins with accepted.next
  std::cout << "kept " << cache.length(sequence) << " of 4 tokens\n";
}

void own_pages() {
  // Sequences of 20 and 40 keys, in pages of 16; the second has 3 queries.
  auto key_pages = torch::randn({8, 2, 16, 64}), value_pages = torch::randn({8, 2, 16, 64});
  auto page_table = torch::tensor({{5, 0, 0}, {1, 7, 2}});
  auto query = torch::randn({4, 8, 64});
  auto output = heed::attend_paged(query, key_pages, value_pages, page_table,
                                   /*query_offsets=*/torch::tensor({0, 1, 4}),
                                   /*key_lengths=*/torch::tensor({20, 40}),
                                   heed::AttendOptions().causal(true));
  std::cout << "own pages " << output.sizes() << '\n';
}

}  // namespace

void serving() {
  auto model = small_model();
  come_and_go(model);
  share_a_prompt(model);
  serve(model, {{{1, 2, 3}, 10}, {{4, 5}, 60}, {{6}, 50}, {{7, 8, 9, 10}, 20}});
  keep_int8(model);
  check_a_draft(model);
  own_pages();
}

}  // namespace guide
