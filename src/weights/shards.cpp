// SPDX-License-Identifier: BSD-3-Clause
#include "weights/shards.h"

#include <ATen/ops/empty.h>

#include "core/checks.h"
#include "weights/module_tensors.h"

namespace heed::detail {

namespace {

void check_shard(const char* function, const std::string& name, const at::Tensor& tensor,
                 const TensorShard& shard) {
  const auto [dim, first, size, whole] = shard;
  HEED_CHECK(dim >= 0 && dim < tensor.dim(),
             "{}: shards: {}: dim ({}) must be a dimension of the module's tensor {}", function,
             name, dim, shape(tensor));
  HEED_CHECK(size == tensor.size(dim),
             "{}: shards: {}: size ({}) must equal dim {} of the module's tensor {}", function,
             name, size, dim, shape(tensor));
  HEED_CHECK(first >= 0 && whole >= size && first <= whole - size,
             "{}: shards: {}: first ({}) must be from 0 to whole - size ({} - {})", function, name,
             first, whole, size);
}

}  // namespace

std::vector<HeldTensor> held_tensors(const char* function, const torch::nn::Module& module,
                                     const TensorShards& shards) {
  const auto tensors = weights_of(module);
  const auto buffers = module.named_buffers();
  const auto computed = computed_buffers(module);
  for (const auto& [name, shard] : shards) {
    HEED_CHECK(tensors.contains(name) || computed.count(name) > 0,
               "{}: shards: {} must be a parameter or buffer of the module", function, name);
  }
  std::vector<HeldTensor> held;
  for (const auto& item : tensors) {
    const auto& tensor = item.value();
    auto whole = shape_alone(tensor);
    std::optional<TensorShard> own;
    if (const auto shard = shards.find(item.key()); shard != shards.end()) {
      own = shard->second;
      check_shard(function, item.key(), tensor, *own);
      auto sizes = tensor.sizes().vec();
      sizes[static_cast<size_t>(own->dim)] = own->whole;
      whole = at::empty(sizes, whole.options());
    }
    held.push_back({item.key(), tensor, whole, own, buffers.contains(item.key())});
  }
  return held;
}

ModuleTensors whole_shapes(const std::vector<HeldTensor>& tensors) {
  ModuleTensors shapes;
  for (const auto& held : tensors) shapes.insert(held.name, held.whole);
  return shapes;
}

at::Tensor part_of(const at::Tensor& whole, const TensorShard& shard) {
  return whole.narrow(shard.dim, shard.first, shard.size);
}

at::Tensor shape_alone(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::device(at::kMeta).dtype(tensor.scalar_type()));
}

}  // namespace heed::detail
