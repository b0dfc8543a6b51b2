#include <heed/model_cost.h>

#include <heed/cost.h>

#include <utility>

#include "core/checks.h"
#include "modules/count.h"

namespace heed {

namespace {

using detail::Count;
using Part = ModelCost::Part;

Part operator+(const Part& a, const Part& b) {
  return {a.name, (Count(a.count) + b.count).value(), (Count(a.parameters) + b.parameters).value(),
          (Count(a.macs) + b.macs).value(), (Count(a.kv_cache_bytes) + b.kv_cache_bytes).value()};
}

Part part_of(const std::string& name, const torch::nn::Module& module, Count macs = 0) {
  return {name, 1, detail::parameter_count(module), macs.value(), 0};
}

Part part_of(const std::string& name, const AttentionCost& cost) {
  return {name, 1, cost.parameters, (Count(cost.projection_macs) + cost.attention_macs).value(),
          cost.kv_cache_bytes};
}

struct Sizes {
  int64_t batch, length, memory_length;
  Count tokens() const { return Count(batch) * length; }
};

/// Parts of one name are one row.
void add(std::vector<Part>& parts, const Part& part) {
  for (auto& present : parts) {
    if (present.name == part.name) {
      present = present + part;
      return;
    }
  }
  parts.push_back(part);
}

void add_stack(std::vector<Part>& parts, const EncoderImpl& stack, const Sizes& sizes) {
  for (const auto& child : *stack.blocks) {
    const auto& block = *child->as<TransformerBlockImpl>();
    add(parts, part_of("attention", attention_cost(*block.attention, sizes.batch, sizes.length)));
    for (const auto* norm : {&block.attention_norm, &block.attention_output_norm,
                             &block.cross_attention_norm, &block.cross_attention_output_norm,
                             &block.feed_forward_norm, &block.feed_forward_output_norm}) {
      if (*norm) add(parts, part_of("norm", **norm));
    }
    if (block.cross_attention) {
      add(parts, part_of("cross-attention", attention_cost(*block.cross_attention, sizes.batch,
                                                           sizes.length, sizes.memory_length)));
    }
    const auto& layer = *block.feed_forward;
    const auto weights = detail::weight_count({&layer.fc_in, &layer.fc_gate, &layer.fc_out});
    add(parts, part_of("feed-forward", layer, sizes.tokens() * weights));
  }
  if (stack.final_norm) add(parts, part_of("norm", *stack.final_norm));
}

ModelCost with_total(std::vector<Part> parts) {
  Part total{"total"};
  for (const auto& part : parts) total = total + part;
  parts.push_back(total);
  return {std::move(parts)};
}

void check_sizes(const Sizes& sizes) {
  for (const auto& [name, size] : {std::pair{"batch", sizes.batch},
                                   {"length", sizes.length},
                                   {"memory_length", sizes.memory_length}}) {
    HEED_CHECK(size >= 0, "model_cost: {} ({}) must be at least 0", name, size);
  }
}

}  // namespace

ModelCost model_cost(const EncoderImpl& model, int64_t batch, int64_t length,
                     int64_t memory_length) {
  const Sizes sizes{batch, length, memory_length};
  check_sizes(sizes);
  std::vector<Part> parts;
  add_stack(parts, model, sizes);
  return with_total(std::move(parts));
}

ModelCost model_cost(const DecoderImpl& model, int64_t batch, int64_t length,
                     int64_t memory_length) {
  const Sizes sizes{batch, length, memory_length};
  check_sizes(sizes);
  std::vector<Part> parts = {part_of("token embedding", *model.token_embedding)};
  if (model.position_embedding) {
    add(parts, part_of("position embedding", *model.position_embedding));
  }
  add_stack(parts, *model.stack, sizes);
  const auto head_macs = sizes.tokens() * model.token_embedding->weight.numel();
  if (model.head) {
    add(parts, part_of("head", *model.head, head_macs));
  } else {
    add(parts, {"head, tied", 1, 0, head_macs.value(), 0});
  }
  return with_total(std::move(parts));
}

std::ostream& operator<<(std::ostream& stream, const ModelCost& cost) {
  stream << fmt::format("{:<20}{:>6}{:>16}{:>20}{:>20}\n", "part", "count", "parameters",
                        "multiply-adds", "kv cache bytes");
  for (const auto& part : cost.parts) {
    stream << fmt::format("{:<20}{:>6}{:>16}{:>20}{:>20}\n", part.name, part.count, part.parameters,
                          part.macs, part.kv_cache_bytes);
  }
  return stream;
}

}  // namespace heed
