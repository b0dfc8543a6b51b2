// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "attend/paths/recorded.h"
#include "attend/score_mask.h"
#include "attend/sequences.h"
#include "core/dtypes.h"
#include "core/random_state.h"

/// The path query_blocks: calls that LibTorch's kernels for CUDA do not compute. It loops over
/// blocks of queries and computes each by the path math; the backward pass computes the scores
/// again. Memory besides the result: the scores of one block, at most 2^25, or those of 16
/// queries. It neither returns weights nor takes tangents. See "Routes" in docs/gpu.md.

namespace heed::detail::query_blocks_path {

namespace {

constexpr int64_t kFewestRows = 16;  // with fewer, products are too narrow to be fast

/// The largest number of scores of a block: 2^25, which are 128 MB of float32. All threads share
/// it, because the two passes may run in different threads.
std::atomic<int64_t>& scores_of_block() {
  static std::atomic<int64_t> scores = int64_t{1} << 25;
  return scores;
}

/// A block: the queries [first, first + count), and the keys that they may see by causal and
/// window.
struct Block {
  int64_t first, count;
  KeyRange keys;
  int64_t key_count() const { return keys.last - keys.first; }
};

KeyRange keys_of(const Problem& problem, int64_t first, int64_t count) {
  const auto keys = problem.key_length();
  if (problem.positions.defined() || problem.global_keys.defined()) return {0, keys};
  const KeyRange range{problem.visible_keys(first).first,
                       problem.visible_keys(first + count - 1).last};
  return range.empty() ? KeyRange{0, 1} : range;  // a block needs a key, even a hidden one
}

std::vector<Block> blocks_of(const Problem& problem) {
  const auto row = problem.batch() * problem.heads() * problem.key_length();
  const auto rows = std::max(scores_of_block() / row, kFewestRows);
  std::vector<Block> blocks;
  for (int64_t first = 0; first < problem.query_length(); first += rows) {
    const auto count = std::min(rows, problem.query_length() - first);
    blocks.push_back({first, count, keys_of(problem, first, count)});
  }
  return blocks;
}

/// Selects a block's queries and keys from `tensor`, which has the shape of the member `member` of
/// a problem. Returns a view.
at::Tensor part_of(at::Tensor Problem::*member, const at::Tensor& tensor, const Block& block) {
  const auto queries = [&](const at::Tensor& x, int64_t dim) {
    return x.size(dim) == 1 ? x : x.narrow(dim, block.first, block.count);
  };
  const auto keys = [&](const at::Tensor& x, int64_t dim) {
    return x.narrow(dim, block.keys.first, block.key_count());
  };
  if (!tensor.defined()) return tensor;
  if (member == &Problem::query) return queries(tensor, 2);
  if (member == &Problem::key || member == &Problem::value) return keys(tensor, 2);
  if (member == &Problem::mask || member == &Problem::bias) return keys(queries(tensor, 2), 3);
  for (const auto of_queries :
       {&Problem::documents, &Problem::positions, &Problem::relative_rows, &Problem::global_rows}) {
    if (member == of_queries) return queries(tensor, 1);
  }
  for (const auto of_keys :
       {&Problem::key_documents, &Problem::relative_keys, &Problem::global_keys}) {
    if (member == of_keys) return keys(tensor, 1);
  }
  return tensor;  // numbers for each head
}

Problem problem_of(const Problem& problem, const Block& block) {
  auto own = problem;
  for (const auto member : kProblemTensors) own.*member = part_of(member, problem.*member, block);
  own.mask =
      with_block_mask(own.mask, problem, {block.first, block.first + block.count}, block.keys);
  own.block_mask.reset();
  auto place = problem.place();
  place.first_query += block.first;
  place.first_key += block.keys.first;
  own.sequences = place;
  return own;
}

Attended forward(const Problem& problem) {
  const auto options = problem.query.options();
  const auto sizes = problem.query.sizes();
  Attended attended;
  attended.output = at::empty({sizes[0], sizes[2], sizes[1], problem.value_head_dim()},
                              options.dtype(problem.result_dtype()))
                        .transpose(1, 2);  // so that heads merge without a copy
  if (problem.wanted == Wanted::output_and_lse) {
    attended.lse =
        at::empty(sizes.slice(0, 3), options.dtype(compute_dtype(problem.query.scalar_type())));
  }
  for (const auto& block : blocks_of(problem)) {
    const auto found = math_path::attend(problem_of(problem, block));
    attended.output.narrow(2, block.first, block.count).copy_(found.output);
    if (attended.lse.defined()) attended.lse.narrow(2, block.first, block.count).copy_(found.lse);
  }
  return attended;
}

/// Sums the gradients that of_block(problem of a block, block) returns for each block.
template <typename OfBlock>
Gradients sum_over_blocks(const Problem& problem, const WantedGradients& wanted,
                          const OfBlock& of_block) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Gradients sums;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& tensor = problem.*kProblemTensors[i];
    if (wanted[i]) sums[i] = at::zeros_like(tensor, compute_dtype(tensor.scalar_type()));
  }
  for (const auto& block : blocks_of(problem)) {
    const auto found = of_block(problem_of(problem, block), block);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (found[i].defined()) part_of(kProblemTensors[i], sums[i], block).add_(found[i]);
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) sums[i] = sums[i].to((problem.*kProblemTensors[i]).scalar_type());
  }
  return sums;
}

/// Selects a block's queries from a tensor [B, H, L, ..], which may be undefined.
at::Tensor rows_of(const at::Tensor& tensor, const Block& block) {
  return tensor.defined() ? tensor.narrow(2, block.first, block.count) : tensor;
}

/// The path query_blocks, recorded for autograd. Returns {output}, or {output, lse} if the lse is
/// wanted.
struct QueryBlocks : public torch::autograd::Function<QueryBlocks> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Problem& problem) {
    context->set_materialize_grads(false);
    c10::intrusive_ptr<torch::CustomClassHolder> random;
    if (problem.dropout > 0.0)
      random = c10::make_intrusive<Held<RandomState>>(RandomState(problem.query.device()));
    const auto attended = query_blocks_path::forward(problem);
    save_problem(context, problem, {}, std::move(random));
    if (attended.lse.defined()) return {attended.output, attended.lse};
    return {attended.output};
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = saved_problem(context);
    const auto& problem = saved.problem;
    const auto wanted = wanted_gradients(context, problem);
    const auto compute = [&](const variable_list& slices) {
      const auto of_lse = slices.size() > 1 ? slices[1] : at::Tensor();
      const auto find = [&] { return gradients(problem, wanted, slices[0], of_lse); };
      return saved.rest ? static_cast<const Held<RandomState>&>(*saved.rest).value.replay(find)
                        : find();
    };
    const auto computed = recorded_gradients(problem, wanted, of_results, compute);
    return gradients_of_inputs(problem, computed, /*others=*/1);
  }
};

}  // namespace

ScopedScores::ScopedScores(int64_t scores) : previous_(scores_of_block().exchange(scores)) {}

ScopedScores::~ScopedScores() { scores_of_block() = previous_; }

bool takes(const Problem& problem) {
  return !problem.is_empty() && !problem.has_tangent() && !problem.query.is_meta() &&
         problem.wanted != Wanted::output_and_weights;
}

Attended attend(const Problem& problem) {
  const auto own = with_documents(problem);
  if (!own.needs_grad()) return forward(own);
  const auto inputs = inputs_of(own);
  const auto results = QueryBlocks::apply(at::TensorList(inputs), own);
  return {results[0], {}, results.size() > 1 ? results[1] : at::Tensor()};
}

Gradients gradients(const Problem& problem, const WantedGradients& wanted,
                    const at::Tensor& of_output, const at::Tensor& of_lse) {
  return sum_over_blocks(problem, wanted, [&](const Problem& own, const Block& block) {
    // The problem of a block has results in the dtype of the computation.
    const auto of_rows = rows_of(of_output, block);
    return math_path::gradients(own, wanted,
                                of_rows.defined() ? of_rows.to(own.result_dtype()) : of_rows,
                                rows_of(of_lse, block));
  });
}

Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted) {
  return sum_over_blocks(problem, wanted, [&](const Problem& own, const Block& block) {
    return math_path::gradients_of_part(
        own, {rows_of(whole.output, block), {}, rows_of(whole.lse, block)},
        rows_of(output_gradient, block), wanted);
  });
}

}  // namespace heed::detail::query_blocks_path
