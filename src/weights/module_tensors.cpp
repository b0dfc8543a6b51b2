// SPDX-License-Identifier: BSD-3-Clause
#include "weights/module_tensors.h"

#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>

#include "core/error.h"
#include "cpu/layers/packed_weight.h"

namespace heed::detail {

namespace {

bool has_slopes(const torch::nn::Module& module) {
  const auto* multi_head = module.as<MultiHeadAttentionImpl>();
  const auto* grouped = module.as<GroupQueryAttentionImpl>();
  return (multi_head != nullptr && multi_head->alibi_slopes.defined()) ||
         (grouped != nullptr && grouped->alibi_slopes.defined());
}

void add_computed(const torch::nn::Module& module, const std::string& prefix,
                  std::set<std::string>& names) {
  if (has_slopes(module)) names.insert(prefix + "alibi_slopes");
  for (const auto& child : module.named_children()) {
    add_computed(*child.value(), prefix + child.key() + ".", names);
  }
}

}  // namespace

std::set<std::string> computed_buffers(const torch::nn::Module& module) {
  std::set<std::string> names;
  add_computed(module, "", names);
  return names;
}

ModuleTensors weights_of(const torch::nn::Module& module) {
  auto tensors = module.named_parameters();
  const auto computed = computed_buffers(module);
  for (const auto& buffer : module.named_buffers()) {
    if (computed.count(buffer.key()) == 0) tensors.insert(buffer.key(), buffer.value());
  }
  return tensors;
}

void check_holds_values(const char* function, const std::string& name, const at::Tensor& tensor) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", function, name);
  HEED_CHECK(tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized(),
             "{}: {} must be a strided tensor", function, name);
  HEED_CHECK(packed_weight_of(tensor) == nullptr, "{}: {} must not be packed by pack_weights",
             function, name);
  HEED_CHECK(!tensor.is_meta(), "{}: {} must not be on the meta device", function, name);
}

}  // namespace heed::detail
