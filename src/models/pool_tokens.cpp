// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <heed/pool_tokens.h>

#include "core/attend_checks.h"
#include "core/checks.h"

namespace heed {

namespace {

constexpr auto kPoolTokens = "pool_tokens";

/// Which tokens of x [B, L, E] count: bool [B, L].
at::Tensor mask_of_counted(const at::Tensor& x, const at::Tensor& mask) {
  detail::check_mask_dtype(kPoolTokens, "mask", mask, /*takes_bias=*/false);
  const auto rank = mask.dim();
  const bool is_row = rank == 2 || (rank == 4 && mask.size(1) == 1 && mask.size(2) == 1);
  const bool fits =
      is_row && mask.size(-1) == x.size(1) && (mask.size(0) == 1 || mask.size(0) == x.size(0));
  HEED_CHECK(fits, "{}: mask {} must be [B or 1, L] or [B or 1, 1, 1, L]; x {}", kPoolTokens,
             detail::shape(mask), detail::shape(x));
  detail::check_same_device(kPoolTokens, "mask", mask, "x", x);
  const auto row = rank == 4 ? mask.squeeze(1).squeeze(1) : mask;
  return row.ne(0).expand({x.size(0), x.size(1)});
}

/// The vectors of the tokens [B] of x [B, L, E], 0 where the index is not in [0, L).
at::Tensor vectors_at(const at::Tensor& x, const at::Tensor& index) {
  const auto is_none = index.lt(0).logical_or(index.ge(x.size(1)));
  const auto place = index.masked_fill(is_none, 0).view({-1, 1, 1}).expand({-1, 1, x.size(2)});
  return x.gather(1, place).squeeze(1).masked_fill(is_none.unsqueeze(1), 0.0);
}

at::Tensor mean_of_counted(const at::Tensor& x, const at::Tensor& counts) {
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto sums = x.masked_fill(counts.logical_not().unsqueeze(2), 0.0).sum({1}, false, dtype);
  const auto numbers = counts.sum({1}, /*keepdim=*/true).clamp_min(1);
  return (sums / numbers).to(x.scalar_type());
}

/// Pools where all tokens count, of which there is at least one.
at::Tensor pool_all(const at::Tensor& x, Pooling pooling) {
  switch (pooling) {
    case Pooling::first:
      return x.select(1, 0);
    case Pooling::last:
      return x.select(1, x.size(1) - 1);
    case Pooling::mean:
      return x.mean({1});
  }
  TORCH_INTERNAL_ASSERT(false, "unknown Pooling");
}

}  // namespace

std::string_view to_string(Pooling pooling) {
  switch (pooling) {
    case Pooling::first:
      return "first";
    case Pooling::last:
      return "last";
    case Pooling::mean:
      return "mean";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown Pooling");
}

at::Tensor pool_tokens(const at::Tensor& x, Pooling pooling,
                       const std::optional<at::Tensor>& mask) {
  detail::check_defined(kPoolTokens, "x", x);
  detail::check_rank(kPoolTokens, "x", x, 3);
  detail::check_floating(kPoolTokens, "x", x);
  const auto counts = mask ? mask_of_counted(x, *mask) : at::Tensor();
  const auto length = x.size(1);
  if (length == 0) return x.sum({1});
  if (!mask) return pool_all(x, pooling);
  if (pooling == Pooling::mean) return mean_of_counted(x, counts);
  const auto places = at::arange(length, x.options().dtype(at::kLong));
  const auto index = pooling == Pooling::first ? at::where(counts, places, length).amin({1})
                                               : at::where(counts, places, -1).amax({1});
  return vectors_at(x, index);
}

}  // namespace heed
