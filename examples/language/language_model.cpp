// SPDX-License-Identifier: BSD-3-Clause
#include "language_model.h"

#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <heed/adapters.h>

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "gpt.h"
#include "published.h"
#include "support/files.h"

namespace heed::examples {

namespace {

LanguageModel load_trained(const std::string& folder, const PretrainedOptions& with) {
  const auto options = read_gpt_options(folder);
  LanguageModel language_model;
  language_model.model = load_gpt(options, folder);
  if (with.dtype()) language_model.model->to(*with.dtype());
  if (with.weights()) pack_weights(*language_model.model, *with.weights());
  language_model.context = options.context;
  language_model.slides = true;
  language_model.codec = byte_codec();
  language_model.start = language_model.codec->encode("\n");
  return language_model;
}

bool crosses_length_trained_for(const TransformerBlockOptions& block, int64_t read,
                                int64_t length) {
  const auto rotary =
      std::visit([](const auto& attention) { return attention.rotary(); }, block.attention_layer());
  if (!rotary || !rotary->scaling()) return false;
  const auto* longrope = std::get_if<LongRopeScaling>(&*rotary->scaling());
  return longrope && read <= longrope->original_length() && length > longrope->original_length();
}

}  // namespace

torch::nn::Module& LanguageModel::whole() const {
  if (has_encoder()) return *encoder_decoder.ptr();
  return *model.ptr();
}

int64_t LanguageModel::vocabulary() const {
  if (!has_encoder()) return model->options.vocab_size();
  return std::get<TextEncoderOptions>(encoder_decoder->options.encoder()).vocab_size();
}

std::vector<int64_t> LanguageModel::window_of(const std::vector<int64_t>& prompt) const {
  const auto& tokens = beginning(prompt);
  if (tokens.empty()) {
    throw std::runtime_error("give a prompt: the model names no token that begins a text");
  }
  if (!slides && static_cast<int64_t>(tokens.size()) > context) {
    throw std::runtime_error(fmt::format("the prompt has {} tokens, and the model's context {}",
                                         tokens.size(), context));
  }
  const auto count = vocabulary();
  for (const auto token : tokens) {
    if (token < 0 || token >= count) {
      throw std::runtime_error(
          fmt::format("the prompt has token {}, and the model's last is {}", token, count - 1));
    }
  }
  std::vector<int64_t> window;
  append(tokens, window);
  return window;
}

bool LanguageModel::append(const std::vector<int64_t>& tokens, std::vector<int64_t>& window) const {
  window.insert(window.end(), tokens.begin(), tokens.end());
  const auto size = static_cast<int64_t>(window.size());
  if (size <= context) return false;
  window.erase(window.begin(), window.end() - (context + 1) / 2);
  return true;
}

TransformerInputs LanguageModel::inputs_of(const std::vector<int64_t>& source) const {
  const auto memory = encoder_decoder.ptr()->encode(to_tensor(source));
  return TransformerInputs().projected_memory(encoder_decoder->project_memory(memory));
}

at::Tensor LanguageModel::to_tensor(const std::vector<int64_t>& tokens) const {
  return at::tensor(tokens).unsqueeze(0).to(model->token_embedding->weight.device());
}

bool LanguageModel::is_end(int64_t token) const {
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

int64_t LanguageModel::room_after(const std::vector<int64_t>& window) const {
  return context - static_cast<int64_t>(window.size()) + 1;
}

bool LanguageModel::is_full(const std::vector<int64_t>& window) const {
  return !slides && static_cast<int64_t>(window.size()) >= context;
}

bool LanguageModel::must_read_again(int64_t read, int64_t length) const {
  const auto crosses = [&](const TransformerBlockOptions& block) {
    return crosses_length_trained_for(block, read, length);
  };
  const auto& stack = model->options.stack();
  const auto& blocks = stack.blocks();
  return read > 0 && (crosses(stack.block()) || std::any_of(blocks.begin(), blocks.end(), crosses));
}

LanguageModel load_language_model(const std::string& folder, const PretrainedOptions& options,
                                  const std::string& adapter) {
  if (exists(folder + "/model.json")) {
    if (adapter.empty()) return load_trained(folder, options);
    throw std::runtime_error(folder +
                             " is a model of train_gpt, which --adapter cannot change: "
                             "give one in Hugging Face's format with --model");
  }
  if (exists(folder + "/config.json")) {
    auto published = load_published(folder, options);
    if (adapter.empty()) return published;
    auto& module = published.whole();
    const bool packed = adapter_parameters(module).empty();  // of which none is trained
    load_adapter(module, adapter, AdapterOptions().source(folder));
    if (!packed) merge_adapter(module);
    return published;
  }
  throw std::runtime_error("cannot read " + folder + ": it has " +
                           (exists(folder + "/adapter_config.json")
                                ? "an adapter: give it with --adapter, and its model with --model"
                                : "neither model.json nor config.json"));
}

}  // namespace heed::examples
