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

bool takes(AttendPath path, const Problem& problem) {
  switch (path) {
    case AttendPath::decode:
      return decode_path::takes(problem);
    case AttendPath::fused:
      return fused_path::takes(problem);
    case AttendPath::block:
      return block_path::takes(problem);
    case AttendPath::flash:
      return flash_path::takes(problem);
    case AttendPath::efficient:
      return efficient_path::takes(problem);
    case AttendPath::query_blocks:
      return query_blocks_path::takes(problem);
    case AttendPath::math:
      return true;
  }
  return false;
}

/// Query rows a key/value head up to which decoding was measured to be faster than blocks.
int64_t few_rows(const Problem& problem) {
  if (problem.key_length() < 1024) return 8;
  // Blocks of few rows keep one thread busy, where decoding splits the keys.
  if (problem.batch() * problem.groups() == 1) return 32;
  return multiplies_pairs(problem.query.scalar_type()) ? 8 : 16;
}

/// So few queries that reading keys and values takes longer than their products.
bool prefers_decode(const Problem& problem) {
  return problem.heads() / problem.groups() * problem.query_length() <= few_rows(problem);
}

/// What LibTorch's fused CPU kernel does only with an L x S mask, padded copies or the math path.
bool exceeds_fused(const Problem& problem) {
  const bool needs_mask = problem.causal && (problem.query_length() != problem.key_length() ||
                                             problem.mask.defined() || problem.bias.defined());
  return problem.alibi_slopes.defined() || problem.documents.defined() || problem.padded ||
         needs_mask || problem.window || problem.dropout > 0.0 ||
         (problem.bias.defined() && problem.bias.requires_grad()) ||
         problem.head_dim() != problem.value_head_dim();
}

/// Rows so many and so wide that nearly all is products, at which a fast BLAS is ahead.
bool suits_blas(const Problem& problem) {
  return blas_properties().wide_vectors && problem.head_dim() >= 512 &&
         problem.query_length() >= 512;
}

/// Where our kernel was measured to be faster than LibTorch's at the same work.
bool outruns_fused(const Problem& problem) {
  const auto& set = instruction_set();
  const bool products_are_fast = set.registers >= 32;
  // LibTorch's kernel is behind there on every instruction set, and its gradients of bfloat16 and
  // float16 come from outputs that it has rounded.
  if (problem.needs_grad()) return true;
  // So few keys are less than LibTorch's kernel has in a vector.
  if (set.vector_bytes >= 32 && problem.key_length() < 16) return true;
  switch (problem.query.scalar_type()) {
    case at::kDouble:
      return problem.causal || set.vector_bytes >= 32 || products_are_fast;
    case at::kFloat:
      return problem.causal || (products_are_fast && !suits_blas(problem));
    case at::kHalf:
      return set.converts_half;
    case at::kBFloat16:
      return products_are_fast && !blas_properties().bfloat16_tiles;
    default:
      return false;
  }
}

bool prefers_block(const Problem& problem) {
  if (problem.wanted == Wanted::output_and_weights) {  // math is what else there is
    constexpr int64_t kEnoughQueries = 32;             // for fewer, keys are packed too often
    return problem.query_length() >= kEnoughQueries && outruns_fused(problem);
  }
  return !fused_path::takes(problem) || exceeds_fused(problem) || outruns_fused(problem);
}

/// LibTorch's fastest kernel that takes the problem; else its operators on some queries at a time.
AttendPath choose_cuda_path(const Problem& problem) {
  for (const auto path :
       {AttendPath::fused, AttendPath::flash, AttendPath::efficient, AttendPath::query_blocks}) {
    if (takes(path, problem)) return path;
  }
  return AttendPath::math;
}

/// The same on the CPU, where heed has no kernels. LibTorch's kernel has no second derivative, and
/// rounds scores of half precision on some processors.
AttendPath choose_path_of_operators(const Problem& problem) {
  const auto dtype = problem.query.scalar_type();
  const bool suits = compute_dtype(dtype) == dtype && !problem.needs_grad();
  return suits && takes(AttendPath::fused, problem) ? AttendPath::fused : AttendPath::math;
}

/// Functorch, tracing and modes of Python understand LibTorch's operators alone.
bool reaches_kernels(const Problem& problem) {
  return calls_reach_kernels() &&
         std::all_of(std::begin(kProblemTensors), std::end(kProblemTensors),
                     [&](auto member) { return is_unwrapped(problem.*member); });
}

/// The path that reads int8 keys and values as they are; none if they must be converted first.
std::optional<AttendPath> int8_path(const Problem& problem) {
  if (!reaches_kernels(problem)) return std::nullopt;
  const auto forced = forced_path();
  const auto may_be = [&](AttendPath path) {
    return forced.value_or(path) == path && takes(path, problem);
  };
  if (may_be(AttendPath::decode) && (forced || prefers_decode(problem))) return AttendPath::decode;
  if (may_be(AttendPath::block)) return AttendPath::block;
  return std::nullopt;
}

Attended run_on(AttendPath path, const Problem& problem) {
  switch (path) {
    case AttendPath::decode:
      return decode_path::attend(problem);
    case AttendPath::fused:
      return fused_path::attend(problem);
    case AttendPath::block:
      return block_path::attend(problem);
    case AttendPath::flash:
      return flash_path::attend(problem);
    case AttendPath::efficient:
      return efficient_path::attend(problem);
    case AttendPath::query_blocks:
      return query_blocks_path::attend(problem);
    case AttendPath::math:
      return math_path::attend(problem);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown AttendPath");
}

}  // namespace

AttendPath choose_path(const Problem& problem) {
  if (problem.is_quantized()) {
    const auto path = int8_path(problem);
    return path ? *path : choose_path(dequantized(problem));
  }
  if (!reaches_kernels(problem)) return AttendPath::math;
  const auto forced = forced_path();
  if (forced && takes(*forced, problem)) return *forced;
  if (problem.query.is_cuda()) return choose_cuda_path(problem);
  if (!has_kernels()) return choose_path_of_operators(problem);
  if (decode_path::takes(problem) && prefers_decode(problem)) return AttendPath::decode;
  if (block_path::takes(problem) && prefers_block(problem)) return AttendPath::block;
  return fused_path::takes(problem) ? AttendPath::fused : AttendPath::math;
}

Problem without_unseen_keys(const Problem& problem) {
  const bool has_some = problem.query.is_cuda() && problem.query_length() == 1 && problem.window &&
                        !problem.packed && !problem.padded && !problem.part &&
                        problem.wanted != Wanted::output_and_weights;
  if (!has_some) return problem;
  const auto seen = problem.visible_keys(0);
  auto own = problem;
  const auto keep = [&](at::Tensor& tensor, int64_t dim) {
    if (tensor.defined()) tensor = tensor.narrow(dim, seen.first, seen.last - seen.first);
  };
  keep(own.key, 2);
  keep(own.value, 2);
  keep(own.mask, 3);
  keep(own.bias, 3);
  keep(own.key_documents, 1);
  own.window.reset();
  return own;
}

Attended run(const Problem& problem) {
  if (problem.is_quantized()) {
    const auto path = int8_path(problem);
    return path ? run_on(*path, problem) : run(dequantized(problem));
  }
  if (!problem.query.is_cuda()) return run_on(choose_path(problem), problem);
  // LibTorch chooses by the properties of the present device. Autocast would round the scores.
  const c10::DeviceGuard device(problem.query.device());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto simple = without_unseen_keys(problem);
  return run_on(choose_path(simple), simple);
}

}  // namespace heed::detail
