// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <heed/decoder.h>
#include <heed/encoder_decoder.h>
#include <heed/image_encoder.h>
#include <heed/named_tensors.h>
#include <heed/pretrained.h>
#include <heed/text_encoder.h>
#include <heed/weights.h>
#include <torch/nn/module.h>

#include <string>
#include <variant>
#include <vector>

#include "fixture.h"

namespace heed::test::pretrained {

/// Where pretrained.py writes its models.
std::string folder_of(const std::string& name);

/// A model that pretrained.py or encoder_decoders.py wrote.
struct Case {
  std::string name;                 // "llama-plain"
  std::string kind;                 // "decoder", "text_encoder", "image_encoder", "encoder_decoder"
  std::vector<std::string> fields;  // of its config.json, that are not as in the family's default
  std::string above;                // the folder of the case's: "" or "encoder_decoders/"

  std::string family() const { return name.substr(0, name.rfind('-')); }
  std::string folder() const { return folder_of(above + name); }
  Fixture expected() const { return Fixture(folder() + "/expected.pt"); }
};

/// The cases of cases.txt whose kind is `kind` or any.
std::vector<Case> cases(const std::string& kind = "");

/// The models that encoder_decoders.py wrote.
std::vector<Case> pair_cases();

/// The lines of a file, split at tabs.
std::vector<std::vector<std::string>> read_rows(const std::string& path);

using AnyModel = std::variant<Decoder, TextEncoder, ImageEncoder, EncoderDecoder>;

AnyModel load(const std::string& kind, const std::string& folder,
              const PretrainedOptions& options = {});
void save(const AnyModel& model, const std::string& folder, const std::string& source);
torch::nn::Module& module_of(const AnyModel& model);

/// The scores of a decoder or the hidden states of an encoder for the first `sequences` inputs.
at::Tensor compute(AnyModel& model, const Fixture& expected, int64_t sequences = 2);

/// The loss of pretrained.py.
at::Tensor loss_of(const at::Tensor& output, const Fixture& expected);

/// The gradients of a model's parameters, in their place and so by the names that save_pretrained
/// gives these.
template <typename Model>
NamedTensors saved_gradients(const Model& model, const std::string& folder,
                             const std::string& source) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    const auto& gradient = parameter.grad();
    parameter.set_data(gradient.defined() ? gradient : at::zeros_like(parameter));
  }
  save_pretrained(model, folder, source);
  return read_weights(folder + "/model.safetensors");
}

/// Runs a script of Python's, which compares what was saved below the folder.
void expect_python_reads(const std::string& script, const std::string& folder);

/// The gradients of the loss by the names that save_pretrained gives their parameters.
NamedTensors gradients(AnyModel& model, const Case& c);

/// The largest difference in proportion to the largest number.
double difference(const at::Tensor& actual, const at::Tensor& expected);

/// The largest difference of a gradient, in proportion to the model's largest. Fails where one is
/// missing, or far from its own size.
double check_gradients(const NamedTensors& actual, const Fixture& expected);

// Three or four layers of sums of up to 100 float32 terms, and softmax between them: Python itself
// differs by 3e-6 of the largest score from what it computes in float64, and by 1e-5 of a tensor's
// largest gradient.
constexpr double kScores = 1e-5, kGradients = 1e-4;

}  // namespace heed::test::pretrained
