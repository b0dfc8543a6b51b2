// SPDX-License-Identifier: BSD-3-Clause
#include "attend/choose_path.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "attend/quantize.h"
#include "core/dtypes.h"
#include "core/forced_path.h"
#include "core/plain.h"
#include "cpu/block/block.h"
#include "cpu/capability.h"

namespace heed::detail {

namespace {

bool takes(AttendPath path, const Problem& problem) { return path_of(path).takes(problem); }

/// The number of query rows per key/value head up to which the decode path was measured to be
/// faster than the block path.
int64_t few_rows(const Problem& problem) {
  if (problem.key_length() < 1024) return 8;
  // The block path would keep one thread busy. The decode path splits the keys among threads.
  if (problem.batch() * problem.groups() == 1) return 32;
  return multiplies_pairs(problem.query.scalar_type()) ? 8 : 16;
}

/// Whether there are so few queries that reading keys and values takes longer than the products.
bool prefers_decode(const Problem& problem) {
  return problem.heads() / problem.groups() * problem.query_length() <= few_rows(problem);
}

/// Whether LibTorch's fused CPU kernel would need an L x S mask or padded copies, or leave the
/// call to LibTorch's math path.
bool exceeds_fused(const Problem& problem) {
  const bool needs_mask =
      problem.causal && (problem.query_length() != problem.key_length() || problem.has_scores());
  return problem.alibi_slopes.defined() || problem.relative_bias.defined() || problem.block_mask ||
         problem.documents.defined() || problem.padded() || needs_mask || problem.has_window() ||
         problem.dropout > 0.0 || problem.mask_batch != MaskBatch::each ||
         (problem.bias.defined() && problem.bias.requires_grad()) ||
         problem.head_dim() != problem.value_head_dim();
}

/// Whether there are so many and so wide rows that the products take nearly all of the time, and
/// LibTorch's BLAS is fast at these.
bool suits_blas(const Problem& problem) {
  return blas_properties().wide_vectors && problem.head_dim() >= 512 &&
         problem.query_length() >= 512;
}

/// Whether heed's block kernel was measured to be faster than LibTorch's kernel at this call.
bool outruns_fused(const Problem& problem) {
  const auto& set = instruction_set();
  const bool products_are_fast = set.registers >= 32;
  // In training, LibTorch's kernel is slower on every instruction set. Its gradients of bfloat16
  // and float16 are less exact, because they are computed from the rounded output.
  if (problem.needs_grad()) return true;
  // LibTorch's kernel is slow if there are fewer keys than elements in its vectors.
  if (set.vector_bytes >= 32 && problem.key_length() < 16) return true;
  switch (problem.query.scalar_type()) {
    case at::kDouble:
      return problem.causal || set.vector_bytes >= 32 || products_are_fast;
    case at::kFloat:
      return problem.causal || (products_are_fast && !suits_blas(problem));
    case at::kHalf:
      return set.converts_half;
    case at::kBFloat16:
      return products_are_fast && (set.has_tile_registers || !blas_properties().bfloat16_tiles);
    default:
      return false;
  }
}

bool prefers_block(const Problem& problem) {
  if (problem.wanted == Wanted::output_and_weights) {  // the other choice is math
    constexpr int64_t kEnoughQueries = 32;             // with fewer, packing keys takes too long
    return problem.query_length() >= kEnoughQueries && outruns_fused(problem);
  }
  return !takes(AttendPath::fused, problem) || exceeds_fused(problem) || outruns_fused(problem);
}

/// Chooses a path on CUDA: the first of LibTorch's kernels that takes the problem, from the
/// fastest on; if none does, LibTorch's operators.
AttendPath choose_cuda_path(const Problem& problem) {
  for (const auto path :
       {AttendPath::fused, AttendPath::flash, AttendPath::efficient, AttendPath::query_blocks}) {
    if (takes(path, problem)) return path;
  }
  return AttendPath::math;
}

/// Chooses a path on a CPU for which heed has no kernels. LibTorch's fused kernel has no second
/// derivative, and on some processors rounds scores of half precision.
AttendPath choose_path_of_operators(const Problem& problem) {
  const auto dtype = problem.query.scalar_type();
  const bool suits = compute_dtype(dtype) == dtype && !problem.needs_grad();
  return suits && takes(AttendPath::fused, problem) ? AttendPath::fused : AttendPath::math;
}

/// Whether heed may call kernels. Functorch, tracing and modes of Python see only LibTorch's
/// operators.
bool reaches_kernels(const Problem& problem) {
  return calls_reach_kernels() &&
         std::all_of(std::begin(kProblemTensors), std::end(kProblemTensors),
                     [&](auto member) { return is_unwrapped(problem.*member); });
}

/// The path that reads quantized keys and values directly; nullopt if they must be converted first.
std::optional<AttendPath> quantized_path(const Problem& problem) {
  if (!reaches_kernels(problem)) return std::nullopt;
  const auto forced = forced_path();
  const auto may_be = [&](AttendPath path) {
    return forced.value_or(path) == path && takes(path, problem);
  };
  if (may_be(AttendPath::decode) && (forced || prefers_decode(problem))) return AttendPath::decode;
  if (may_be(AttendPath::block)) return AttendPath::block;
  return std::nullopt;
}

}  // namespace

AttendPath choose_path(const Problem& problem) {
  if (problem.is_quantized()) {
    const auto path = quantized_path(problem);
    return path ? *path : choose_path(dequantized(problem));
  }
  if (!reaches_kernels(problem)) return AttendPath::math;
  const auto forced = forced_path();
  if (forced && takes(*forced, problem)) return *forced;
  if (problem.query.is_cuda()) return choose_cuda_path(problem);
  if (!has_kernels()) return choose_path_of_operators(problem);
  if (takes(AttendPath::decode, problem) && prefers_decode(problem)) return AttendPath::decode;
  if (takes(AttendPath::block, problem) && prefers_block(problem)) return AttendPath::block;
  return takes(AttendPath::fused, problem) ? AttendPath::fused : AttendPath::math;
}

Problem without_unseen_keys(const Problem& problem) {
  const bool is_single = problem.query_length() == 1;
  const bool may_leave_out = problem.query.is_cuda() &&
                             (problem.top_left || (is_single && problem.has_window())) &&
                             !problem.is_empty() && !problem.has_lengths() && !problem.part() &&
                             !problem.global_keys.defined() && !problem.relative_keys.defined() &&
                             !problem.block_mask && problem.wanted != Wanted::output_and_weights;
  if (!may_leave_out) return problem;
  const KeyRange seen{problem.visible_keys(0).first,
                      problem.visible_keys(problem.query_length() - 1).last};
  const auto count = seen.last - seen.first;
  // The last query must be at the last of the keys that are left.
  if (count - problem.query_length() != problem.position(0) - seen.first) return problem;
  auto own = problem;
  const auto keep = [&](at::Tensor& tensor, int64_t dim) {
    if (tensor.defined()) tensor = tensor.narrow(dim, seen.first, count);
  };
  keep(own.key, 2);
  keep(own.value, 2);
  keep(own.mask, 3);
  keep(own.bias, 3);
  keep(own.key_documents, 1);
  own.top_left = false;
  if (is_single) {  // it sees all of them
    own.causal = false;
    own.left_window = own.right_window = std::nullopt;
  }
  return own;
}

Attended attend_problem(const Problem& problem) {
  if (problem.is_quantized()) {
    const auto path = quantized_path(problem);
    return path ? path_of(*path).attend(problem) : attend_problem(dequantized(problem));
  }
  if (!problem.query.is_cuda()) return path_of(choose_path(problem)).attend(problem);
  // LibTorch chooses its kernel by the properties of the current device. Autocast would round the
  // scores.
  const c10::DeviceGuard device(problem.query.device());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto simple = without_unseen_keys(problem);
  return path_of(choose_path(simple)).attend(simple);
}

}  // namespace heed::detail
