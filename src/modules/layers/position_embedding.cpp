// SPDX-License-Identifier: BSD-3-Clause
#include <heed/position_embedding.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/stack.h>

#include <cmath>

#include "core/checks.h"
#include "core/dtypes.h"
#include "modules/layers/cos_and_sin.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kPositionEmbedding = "PositionEmbedding";
constexpr double kBase = 10000.0;

/// The name of the number of positions in errors.
const char* limit_name(const PositionEmbeddingOptions& options) {
  return options.offset() == 0 ? "max_length" : "max_length - offset";
}

}  // namespace

PositionEmbeddingImpl::PositionEmbeddingImpl(const PositionEmbeddingOptions& options)
    : options(options) {
  reset();
}

void PositionEmbeddingImpl::reset() {
  const auto width = options.emb_dim();
  detail::check_positive(kPositionEmbedding, "emb_dim", width);
  if (options.kind() == PositionKind::sinusoidal) {
    HEED_CHECK(width % 2 == 0, "{}: emb_dim ({}) must be even for sinusoidal positions",
               kPositionEmbedding, width);
    HEED_CHECK(options.offset() == 0, "{}: offset ({}) must be 0 for sinusoidal positions",
               kPositionEmbedding, options.offset());
    return;
  }
  HEED_CHECK(options.interleaved(), "{}: interleaved must be true for learned positions",
             kPositionEmbedding);
  HEED_CHECK(options.max_length(), "{}: max_length must be given for learned positions",
             kPositionEmbedding);
  const auto length = options.max_length().value_or(0);
  detail::check_positive(kPositionEmbedding, "max_length", length);
  HEED_CHECK(options.offset() >= 0 && options.offset() < length,
             "{}: offset ({}) must be at least 0 and below max_length ({})", kPositionEmbedding,
             options.offset(), length);
  weight = register_parameter("weight", detail::empty_parameter({length, width}));
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void PositionEmbeddingImpl::reset_parameters() {
  if (weight.defined()) detail::draw_initial(weight);
}

void PositionEmbeddingImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kPositionEmbedding)
      .show("emb_dim", options.emb_dim())
      .show("kind", weight.defined() ? "learned" : "sinusoidal")
      .option("max_length", options.max_length())
      .option("offset", options.offset(), int64_t{0})
      .option("interleaved", options.interleaved(), true);
}

at::Tensor PositionEmbeddingImpl::vectors(const at::Tensor& positions, at::ScalarType dtype) const {
  if (weight.defined()) return at::embedding(weight, positions.to(at::kLong) + options.offset());
  const auto precise = detail::compute_dtype(dtype);
  const auto real = at::device(positions.device()).dtype(at::kDouble);
  const auto exponents = at::arange(0, options.emb_dim(), 2, real) *
                         (-std::log(kBase) / static_cast<double>(options.emb_dim()));
  // Angles are float64, because for distant positions they are large and their fractions matter.
  const auto angles = positions.to(at::kDouble).unsqueeze(-1) * exponents.exp();
  const auto [cos, sin] = detail::cos_and_sin(angles);
  const auto waves = {sin.to(precise), cos.to(precise)};
  return (options.interleaved() ? at::stack(waves, -1).flatten(-2) : at::cat(waves, -1)).to(dtype);
}

std::shared_ptr<torch::nn::Module> PositionEmbeddingImpl::clone(
    const std::optional<at::Device>& device) const {
  detail::check_no_subclass(kPositionEmbedding, *this);
  return Cloneable::clone(device);
}

at::Tensor PositionEmbeddingImpl::forward(const at::Tensor& x,
                                          const std::optional<at::Tensor>& positions) {
  HEED_CHECK(x.defined() && x.dim() == 3 && x.size(2) == options.emb_dim(),
             "{}: x must be [B, L, {}]; x {}", kPositionEmbedding, options.emb_dim(),
             x.defined() ? detail::shape(x) : "undefined");
  HEED_CHECK(x.is_floating_point(), "{}: x dtype ({}) must be floating", kPositionEmbedding,
             c10::toString(x.scalar_type()));
  if (weight.defined()) detail::check_module_dtype(kPositionEmbedding, "x", x, weight);
  const auto limit = weight.defined() ? weight.size(0) - options.offset() : 0;
  if (!positions) {
    HEED_CHECK(!weight.defined() || x.size(1) <= limit,
               "{}: x dim 1 ({}) must be at most {} ({}); x {}", kPositionEmbedding, x.size(1),
               limit_name(options), limit, detail::shape(x));
    const auto counted = at::arange(x.size(1), at::device(x.device()).dtype(at::kLong));
    return x + vectors(counted, x.scalar_type());
  }
  detail::check_positions(kPositionEmbedding, *positions);
  HEED_CHECK(positions->size(-1) == x.size(1) &&
                 (positions->dim() == 1 || positions->size(0) == x.size(0)),
             "{}: positions must be [{}] or [{}, {}]; positions {}", kPositionEmbedding, x.size(1),
             x.size(0), x.size(1), detail::shape(*positions));
  detail::check_same_device(kPositionEmbedding, "positions", *positions, "x", x);
  if (weight.defined()) {
    detail::check_range(kPositionEmbedding, "positions", *positions, limit_name(options), limit);
  }
  return x + vectors(*positions, x.scalar_type());
}

}  // namespace heed
