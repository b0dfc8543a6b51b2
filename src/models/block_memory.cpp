// SPDX-License-Identifier: BSD-3-Clause
#include "models/block_memory.h"

#include "core/attend_checks.h"
#include "core/checks.h"
#include "models/block_attention.h"
#include "models/block_options.h"
#include "modules/attentions/given_inputs.h"
#include "modules/layers/stand_in.h"
#include "modules/module_checks.h"

namespace heed::detail {

namespace {

/// Checked here so that the error says memory_mask: attention would call it mask. Attention itself
/// refuses tensors other than [B, L, E].
void check_memory_mask(const at::Tensor& x, const TransformerInputs& inputs, int64_t heads,
                       int64_t sequence_parts, bool in_step) {
  if (!inputs.memory_mask()) return;
  HEED_CHECK(inputs.memory() || !inputs.projected_memory().empty(),
             "{}: memory_mask must be absent where there is no memory", kBlock);
  const auto has_rank = [](const at::Tensor& tensor, int64_t rank) {
    return tensor.defined() && !tensor.is_nested() && tensor.dim() == rank;
  };
  const bool is_projected = !inputs.memory();
  const auto& memory = is_projected ? inputs.projected_memory()[0].key : *inputs.memory();
  if (!has_rank(x, 3) || !has_rank(memory, is_projected ? 4 : 3)) return;
  const auto batch = in_step ? memory.size(0) : x.size(0);
  const auto length = in_step ? 1 : x.size(1) * sequence_parts;
  check_mask(kBlock, "memory_mask", *inputs.memory_mask(),
             {x, memory, batch, heads, length, memory.size(is_projected ? 2 : 1)},
             /*takes_bias=*/false);
}

}  // namespace

// The error says memory: attention would call it key.
void check_given_memory(const at::Tensor& memory, const GroupQueryAttention& cross_attention) {
  if (memory.defined() && memory.is_nested()) return;
  check_input(kBlock, "memory", memory, cross_attention->fc_k->weight);
}

void check_block_memory(const TransformerBlockImpl& block, const at::Tensor& x,
                        const TransformerInputs& inputs, bool in_step) {
  const auto& attention = block.cross_attention;
  const bool is_given = inputs.memory() || !inputs.projected_memory().empty();
  HEED_CHECK(is_given == !attention.is_empty(), "{}: memory must be {}", kBlock,
             attention ? "given: there is cross-attention" : "absent: there is no cross-attention");
  HEED_CHECK(!inputs.memory() || inputs.projected_memory().empty(),
             "{}: memory must be absent beside projected_memory", kBlock);
  HEED_CHECK(inputs.projected_memory().size() <= 1,
             "{}: projected_memory size ({}) must equal 1, the number of blocks", kBlock,
             inputs.projected_memory().size());
  if (inputs.memory()) {
    check_given_memory(*inputs.memory(), attention);
    const bool has_batch =
        x.defined() && !x.is_nested() && !inputs.memory()->is_nested() && x.dim() == 3;
    if (has_batch && !in_step) check_same_dim(kBlock, "memory", *inputs.memory(), "x", x, 0);
  }
  const auto heads = attention ? cross_attention_options(block.options).head_num() : 0;
  check_memory_mask(x, inputs, heads, sharing(*first_linear(block)).sequence_parts(), in_step);
}

void check_self_attention_inputs(const TransformerBlockImpl& block,
                                 const TransformerInputs& inputs) {
  if (block.options.self_attention()) return;
  visit_tensors(inputs, [](const char* name, const at::Tensor&) {
    HEED_CHECK(false, "{}: {} must be absent: there is no self-attention", kBlock, name);
  });
}

}  // namespace heed::detail
