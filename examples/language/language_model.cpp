#include "language_model.h"

#include <heed/weights.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "support/atomic_write.h"

namespace heed::examples {

namespace {

std::string weights_in(const std::string& folder) { return folder + "/model.safetensors"; }
std::string options_in(const std::string& folder) { return folder + "/model.json"; }

LanguageModelOptions read_options(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno));
  try {
    return nlohmann::json::parse(file).get<LanguageModelOptions>();
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error("cannot read " + path + ": " + error.what());
  }
}

}  // namespace

Decoder make_language_model(const LanguageModelOptions& options, double dropout) {
  if (options.heads < 1 || options.width % options.heads != 0) {
    throw std::runtime_error("the heads (" + std::to_string(options.heads) +
                             ") must divide the width (" + std::to_string(options.width) + ")");
  }
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

void save_language_model(const LanguageModel& language_model, const std::string& folder) {
  save_weights(*language_model.model, weights_in(folder));
  write_atomically(options_in(folder), nlohmann::json(language_model.options).dump(2) + "\n");
}

LanguageModel load_language_model(const std::string& folder) {
  const auto options = read_options(options_in(folder));
  LanguageModel language_model{options, make_language_model(options)};
  load_weights(*language_model.model, weights_in(folder));
  return language_model;
}

}  // namespace heed::examples
