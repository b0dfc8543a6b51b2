#include <heed/image_encoder.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "core/checks.h"
#include "modules/count.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kImageEncoder = "ImageEncoder";

/// [B, C, I, I] to [B, N, C * P * P]: the pixels of each patch.
at::Tensor patches_of(const at::Tensor& images, int64_t size) {
  const auto rows = images.size(2) / size, columns = images.size(3) / size;
  return images.unflatten(3, {columns, size})
      .unflatten(2, {rows, size})   // [B, C, rows, P, columns, P]
      .permute({0, 2, 4, 1, 3, 5})  // [B, rows, columns, C, P, P]
      .flatten(3)
      .flatten(1, 2);
}

}  // namespace

ImageEncoderImpl::ImageEncoderImpl(const ImageEncoderOptions& options) : options(options) {
  reset();
}

void ImageEncoderImpl::reset() {
  const auto width = options.stack().block().emb_dim();
  const auto size = options.patch_size();
  detail::check_positive(kImageEncoder, "image_size", options.image_size());
  detail::check_positive(kImageEncoder, "patch_size", size);
  detail::check_divisible(kImageEncoder, "image_size", options.image_size(), "patch_size", size);
  detail::check_positive(kImageEncoder, "channels", options.channels());
  detail::check_positive(kImageEncoder, "emb_dim", width);
  detail::check_probability(kImageEncoder, "dropout", options.dropout());
  const auto side = options.image_size() / size;
  patch_embedding = register_module("patch_embedding",
                                    detail::make_patch_embedding(options.channels(), width, size));
  class_token = register_parameter("class_token", detail::empty_parameter({1, 1, width}));
  const auto patches = detail::Count(side) * side;
  position_embedding = register_parameter(
      "position_embedding", detail::empty_parameter({1, (patches + 1).value(), width}));
  stack = register_module("stack", Encoder(options.stack()));
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void ImageEncoderImpl::reset_parameters() {
  detail::draw_initial(patch_embedding->weight);
  torch::nn::init::zeros_(patch_embedding->bias);
  detail::draw_initial(class_token);
  detail::draw_initial(position_embedding);
  stack->reset_parameters();
}

void ImageEncoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kImageEncoder)
      .show("image_size", options.image_size())
      .show("patch_size", options.patch_size())
      .option("channels", options.channels(), int64_t{3})
      .option("dropout", options.dropout(), 0.0);
}

at::Tensor ImageEncoderImpl::forward(const at::Tensor& images) {
  const auto side = options.image_size();
  detail::check_defined(kImageEncoder, "images", images);
  HEED_CHECK(images.dim() == 4 && images.size(1) == options.channels() && images.size(2) == side &&
                 images.size(3) == side,
             "{}: images must be [B, {}, {}, {}]; images {}", kImageEncoder, options.channels(),
             side, side, detail::shape(images));
  detail::check_module_dtype(kImageEncoder, "images", images, patch_embedding->weight);
  const auto patches = detail::linear(patches_of(images, options.patch_size()),
                                      patch_embedding->weight.flatten(1), patch_embedding->bias);
  const auto first = class_token.to(patches.scalar_type()).expand({images.size(0), 1, -1});
  const auto x = at::cat({first, patches}, 1) + position_embedding;
  return stack->forward(detail::drop_out(x, options.dropout(), is_training()));
}

}  // namespace heed
