#pragma once

#include <heed/weights.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weights/formats/pytorch_file.h"

/// What several processes need to load and save a module of which each holds a part.

namespace heed::detail {

/// A tensor of a module that a weight file has.
struct HeldTensor {
  std::string name;
  at::Tensor tensor;
  at::Tensor whole;                  // its shape, on the meta device
  std::optional<TensorShard> shard;  // none: the process holds all of it
};

/// The tensors that a weight file has of a module, in the order of their registration. Throws
/// c10::ValueError, beginning with `function`, when a shard does not fit its tensor.
HEED_API std::vector<HeldTensor> held_tensors(const char* function, const torch::nn::Module& module,
                                              const TensorShards& shards);

/// The same by name, as shapes of the whole tensors.
ModuleTensors whole_shapes(const std::vector<HeldTensor>& tensors);

/// The rows or columns of a whole tensor that a shard is.
at::Tensor part_of(const at::Tensor& whole, const TensorShard& shard);

/// A tensor with the same shape and dtype on the meta device.
at::Tensor shape_alone(const at::Tensor& tensor);

/// heed::load_weights. Calls `before_change` when all checks have passed and nothing has been
/// changed; it may throw.
HEED_API LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                                 const LoadOptions& options,
                                 const std::function<void()>& before_change);

/// heed::load_weights of a file that has been read already.
LoadReport load_weights(torch::nn::Module& module, const std::string& path, const FileEntries& file,
                        const LoadOptions& options);

/// The dtypes of the file's floating-point tensors that the module has places for.
std::set<at::ScalarType> floating_dtypes(const torch::nn::Module& module, const FileEntries& file,
                                         const LoadOptions& options);

/// heed::save_weights of the whole tensors that `values` returns by name, each when it is written.
HEED_API void save_weights(const std::vector<HeldTensor>& tensors, const std::string& path,
                           const SaveOptions& options,
                           const std::function<at::Tensor(const std::string&)>& values);

}  // namespace heed::detail
