// SPDX-License-Identifier: BSD-3-Clause
#include <heed/image_encoder.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "core/checks.h"
#include "models/norm_options.h"
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
  return images.narrow(2, 0, rows * size)
      .narrow(3, 0, columns * size)
      .unflatten(3, {columns, size})
      .unflatten(2, {rows, size})   // [B, C, rows, P, columns, P]
      .permute({0, 2, 4, 1, 3, 5})  // [B, rows, columns, C, P, P]
      .flatten(3)
      .flatten(1, 2);
}

}  // namespace

ImageEncoderImpl::ImageEncoderImpl(const ImageEncoderOptions& options) : options(options) {
  reset();
}

void ImageEncoderImpl::check_options() const {
  const auto width = options.stack().block().emb_dim();
  const auto size = options.patch_size();
  detail::check_positive(kImageEncoder, "image_size", options.image_size());
  detail::check_positive(kImageEncoder, "patch_size", size);
  if (!options.crop()) {
    detail::check_divisible(kImageEncoder, "image_size", options.image_size(), "patch_size", size);
  }
  HEED_CHECK(options.image_size() >= size, "{}: image_size ({}) must be at least patch_size ({})",
             kImageEncoder, options.image_size(), size);
  detail::check_positive(kImageEncoder, "channels", options.channels());
  detail::check_positive(kImageEncoder, "emb_dim", width);
  detail::check_not_negative(kImageEncoder, "register_num", options.register_num());
  detail::check_probability(kImageEncoder, "dropout", options.dropout());
  const auto& pooling = options.attention_pooling();
  HEED_CHECK(!pooling || pooling->attention().emb_dim() == width,
             "{}: attention_pooling emb_dim ({}) must equal attention emb_dim ({})", kImageEncoder,
             pooling ? pooling->attention().emb_dim() : 0, width);
  const auto dim = options.projection_dim();
  if (dim) detail::check_positive(kImageEncoder, "projection_dim", *dim);
  const bool is_pooled = options.class_token() || pooling;
  HEED_CHECK(is_pooled || (!dim && !options.pooled_norm()),
             "{}: {} must not be given without class_token and attention_pooling", kImageEncoder,
             dim ? "projection_dim" : "pooled_norm");
}

void ImageEncoderImpl::reset() {
  check_options();
  const auto& block = options.stack().block();
  const auto width = block.emb_dim();
  const auto side = options.image_size() / options.patch_size();
  patch_embedding = register_module(
      "patch_embedding", detail::make_patch_embedding(options.channels(), width,
                                                      options.patch_size(), options.patch_bias()));
  auto positions = detail::Count(side) * side;
  if (options.class_token()) {
    class_token = register_parameter("class_token", detail::empty_parameter({1, 1, width}));
    positions = positions + 1;
  }
  if (options.register_num() > 0) {
    registers = register_parameter("registers",
                                   detail::empty_parameter({1, options.register_num(), width}));
  }
  position_embedding = register_parameter("position_embedding",
                                          detail::empty_parameter({1, positions.value(), width}));
  if (options.embedding_norm()) {
    embedding_norm = register_module("embedding_norm", Norm(detail::norm_options(block)));
  }
  stack = register_module("stack", Encoder(options.stack()));
  if (const auto& pooling = options.attention_pooling()) {
    attention_pooling = register_module("attention_pooling", AttentionPooling(*pooling));
  }
  if (options.pooled_norm()) {
    pooled_norm = register_module("pooled_norm", Norm(detail::norm_options(block)));
  }
  if (const auto dim = options.projection_dim()) {
    projection = register_module("projection", detail::make_linear(width, *dim, /*bias=*/false));
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void ImageEncoderImpl::reset_parameters() {
  detail::draw_initial(patch_embedding->weight);
  if (patch_embedding->bias.defined()) torch::nn::init::zeros_(patch_embedding->bias);
  if (class_token.defined()) detail::draw_initial(class_token);
  if (registers.defined()) detail::draw_initial(registers);
  detail::draw_initial(position_embedding);
  if (embedding_norm) embedding_norm->reset_parameters();
  stack->reset_parameters();
  if (attention_pooling) attention_pooling->reset_parameters();
  if (pooled_norm) pooled_norm->reset_parameters();
  if (projection) detail::initialize_linears(*projection);
}

void ImageEncoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kImageEncoder)
      .show("image_size", options.image_size())
      .show("patch_size", options.patch_size())
      .option("channels", options.channels(), int64_t{3})
      .option("dropout", options.dropout(), 0.0)
      .option("crop", options.crop(), false)
      .option("patch_bias", options.patch_bias(), true)
      .option("class_token", options.class_token(), true)
      .option("register_num", options.register_num(), int64_t{0})
      .option("embedding_norm", options.embedding_norm(), false)
      .option("pooled_norm", options.pooled_norm(), false)
      .option("projection_dim", options.projection_dim());
}

void ImageEncoderImpl::check_images(const at::Tensor& images) const {
  const auto side = options.image_size();
  detail::check_defined(kImageEncoder, "images", images);
  HEED_CHECK(images.dim() == 4 && images.size(1) == options.channels() && images.size(2) == side &&
                 images.size(3) == side,
             "{}: images must be [B, {}, {}, {}]; images {}", kImageEncoder, options.channels(),
             side, side, detail::shape(images));
  detail::check_module_dtype(kImageEncoder, "images", images, patch_embedding->weight);
}

at::Tensor ImageEncoderImpl::embed(const at::Tensor& images) const {
  const auto patches = detail::linear(patches_of(images, options.patch_size()),
                                      patch_embedding->weight.flatten(1), patch_embedding->bias);
  const auto of_all = [&](const at::Tensor& learned) {
    return learned.to(patches.scalar_type()).expand({images.size(0), -1, -1});
  };
  const bool has_class = class_token.defined();
  auto x = has_class ? at::cat({of_all(class_token), patches}, 1) : patches;
  x = x + position_embedding;
  if (registers.defined()) {
    const int64_t first = has_class ? 1 : 0;
    x = at::cat({x.narrow(1, 0, first), of_all(registers).to(x.scalar_type()),
                 x.narrow(1, first, patches.size(1))},
                1);
  }
  if (embedding_norm) x = embedding_norm.ptr()->forward(x);
  return detail::drop_out(x, options.dropout(), is_training());
}

at::Tensor ImageEncoderImpl::forward(const at::Tensor& images) {
  check_images(images);
  return stack->forward(embed(images));
}

at::Tensor ImageEncoderImpl::forward_pooled(const at::Tensor& images) {
  HEED_CHECK(class_token.defined() || attention_pooling,
             "{}: forward_pooled must have a class_token or attention_pooling", kImageEncoder);
  const auto states = forward(images);
  auto x = attention_pooling ? attention_pooling->forward(states) : states.select(1, 0);
  if (pooled_norm) x = pooled_norm->forward(x);
  return projection ? detail::project(projection, x) : x;
}

}  // namespace heed
