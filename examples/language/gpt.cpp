// SPDX-License-Identifier: BSD-3-Clause
#include "gpt.h"

#include <fmt/core.h>
#include <heed/weights.h>

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "support/checks.h"
#include "support/files.h"
#include "support/json_file.h"

namespace heed::examples {

namespace {

std::string weights_in(const std::string& folder) { return folder + "/model.safetensors"; }
std::string options_in(const std::string& folder) { return folder + "/model.json"; }

/// Counts the parameters of attention, without keys and values, of the feed-forward layers and of
/// the embedding.
double least_parameters(const GptOptions& options) {
  const auto width = static_cast<double>(options.width);
  return static_cast<double>(options.layers) * 10 * width * width + kBytes * width;
}

}  // namespace

void check_memory(const GptOptions& options, int copies) {
  constexpr double kBlock = 16e3;  // bytes of a block's modules, beside its parameters
  const auto layers = static_cast<double>(options.layers);
  check_memory(fmt::format("{} layers of width {}", options.layers, options.width),
               layers * kBlock + least_parameters(options) * sizeof(float) * copies);
}

void check_file(const GptOptions& options, const std::string& path) {
  constexpr double kNames = 500;  // bytes of a block's names, at least
  std::error_code ignored;
  const auto size = std::filesystem::file_size(path, ignored);
  const auto needed =
      static_cast<double>(options.layers) * kNames + least_parameters(options) * sizeof(float);
  if (ignored || static_cast<double>(size) >= needed) return;
  throw std::runtime_error(fmt::format("{} ({} bytes) is too small for {} layers of width {}", path,
                                       size, options.layers, options.width));
}

Decoder make_gpt(const GptOptions& options, double dropout) {
  if (options.heads < 1 || options.width % options.heads != 0) {
    throw std::runtime_error(
        fmt::format("the heads ({}) must divide the width ({})", options.heads, options.width));
  }
  if (options.context < 1) {
    throw std::runtime_error(fmt::format("the context ({}) must be at least 1", options.context));
  }
  check_memory(options, 1);
  const auto attention = GroupQueryAttentionOptions(options.width, options.heads, options.groups)
                             .input_bias(false)
                             .output_bias(false)
                             .dropout(dropout)
                             .rotary(RotaryEmbeddingOptions(options.width / options.heads));
  const auto block =
      TransformerBlockOptions(attention)
          .norm(NormKind::rms_norm)
          .feed_forward(
              FeedForwardOptions(options.width).activation(Activation::swiglu).bias(false))
          .dropout(dropout);
  return Decoder(DecoderOptions(kBytes, block, options.layers).dropout(dropout));
}

void save_gpt(const Decoder& model, const GptOptions& options, const std::string& folder) {
  save_weights(*model, weights_in(folder));
  write_atomically(options_in(folder), nlohmann::json(options).dump(2) + "\n");
}

GptOptions read_gpt_options(const std::string& folder) {
  const auto path = options_in(folder);
  auto file = open_file(path);
  try {
    return read_json(file).get<GptOptions>();
  } catch (const std::exception& error) {
    throw std::runtime_error("cannot read " + path + ": " + error.what());
  }
}

Decoder load_gpt(const GptOptions& options, const std::string& folder) {
  check_file(options, weights_in(folder));
  auto model = make_gpt(options);
  load_weights(*model, weights_in(folder));
  return model;
}

}  // namespace heed::examples
