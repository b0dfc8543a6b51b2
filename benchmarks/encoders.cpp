// SPDX-License-Identifier: BSD-3-Clause
// Runs one encoder of texts or images for encoders.py, which times other engines in turns with it:
//
//     heed_encoders FOLDER THREADS FORMAT
//
// FOLDER and FORMAT are those of heed_models; see models.cpp. Each line on standard input is
// answered with a number:
//
//     batch 32 128   sentences a second, 32 at once of 128 tokens each
//     batch 8 224    images a second, 8 at once of 224 x 224 pixels
//     value 8 224    the first number that the model returns
//     start          seconds from the files to the first result
#include <ATen/ops/arange.h>
#include <c10/core/InferenceMode.h>
#include <heed/pretrained.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include "support/answer_lines.h"
#include "support/pack_formats.h"
#include "support/throughput.h"

namespace {

class Encoder {
 public:
  Encoder(const std::string& folder, const std::string& format) {
    const auto options = heed::bench::pretrained_options(format);
    const auto name = std::filesystem::path(folder).filename().string();
    if (name.rfind("ViT", 0) == 0)
      images_ = heed::load_pretrained<heed::ImageEncoder>(folder, options);
    else
      texts_ = heed::load_pretrained<heed::TextEncoder>(folder, options);
    constexpr int64_t kWarmUpTokens = 32;
    run(inputs(1, images_ ? (*images_)->options.image_size() : kWarmUpTokens));
  }

  double answer(const std::string& work) {
    int64_t count = 0, size = 0;
    std::cin >> count >> size;
    const auto batch = inputs(count, size);
    if (work == "value") return run(batch).flatten()[0].item<double>();
    return heed::bench::throughput([&] {
      run(batch);
      return count;
    });
  }

 private:
  /// Returns tokens [count, size] or images [count, 3, size, size] in the model's dtype;
  /// encoders_peers.py makes them by the same rule.
  at::Tensor inputs(int64_t count, int64_t size) const {
    constexpr int64_t kTokens = 30000, kColors = 256, kFactor = 7919;
    if (!images_)
      return at::arange(count * size).mul(kFactor).remainder(kTokens).view({count, size});
    const auto numbers = at::arange(count * 3 * size * size).mul(kFactor).remainder(kColors);
    const auto dtype = (*images_)->class_token.scalar_type();
    return numbers.view({count, 3, size, size}).to(at::kFloat).div(kColors / 2).sub(1).to(dtype);
  }

  at::Tensor run(const at::Tensor& batch) {
    const c10::InferenceMode inference;
    return images_ ? (*images_)->forward(batch) : (*texts_)->forward(batch);
  }

  std::optional<heed::TextEncoder> texts_;
  std::optional<heed::ImageEncoder> images_;
};

}  // namespace

int main(int argc, char** argv) {
  return heed::bench::answer_lines<Encoder>("heed_encoders", argc, argv);
}
