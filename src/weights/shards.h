// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/weights.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weights/formats/file_entries.h"

/// Loading and saving of a module of which each of several processes holds a part.

namespace heed::detail {

/// A tensor of a module that a weight file has.
struct HeldTensor {
  std::string name;
  at::Tensor tensor;
  at::Tensor whole;                  // the whole tensor's shape, on the meta device
  std::optional<TensorShard> shard;  // none: the process holds all of it
  bool keeps_dtype = false;          // whether it has a dtype of its own, as buffers have
};

/// The tensors that a weight file has of a module, in the order of their registration. Throws
/// c10::ValueError, beginning with `function`, when a shard does not fit its tensor.
HEED_API std::vector<HeldTensor> held_tensors(const char* function, const torch::nn::Module& module,
                                              const TensorShards& shards);

/// The shapes of the whole tensors, by name.
ModuleTensors whole_shapes(const std::vector<HeldTensor>& tensors);

/// The rows or columns of a whole tensor that a shard is.
at::Tensor part_of(const at::Tensor& whole, const TensorShard& shard);

/// A tensor with the same shape and dtype on the meta device.
at::Tensor shape_alone(const at::Tensor& tensor);

/// Does what heed::load_weights does, and calls `before_change` when all checks have passed and
/// nothing has been changed. `before_change` may throw.
HEED_API LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                                 const LoadOptions& options,
                                 const std::function<void()>& before_change);

/// Does what heed::load_weights does, with a file that has been read already. If `after_each` is
/// given, loads one tensor of the module after the other, and calls it with the name of each.
LoadReport load_weights(torch::nn::Module& module, const FileEntries& file,
                        const LoadOptions& options,
                        const std::function<void(const std::string&)>& after_each = {});

/// The dtypes of the file's floating-point tensors that the module has places for, without those
/// of tensors that keep their dtype.
std::set<at::ScalarType> floating_dtypes(const torch::nn::Module& module, const FileEntries& file,
                                         const LoadOptions& options);

/// Does what heed::save_weights does, with whole tensors that `values` returns by name, each when
/// it is written.
HEED_API void save_weights(const std::vector<HeldTensor>& tensors, const std::string& path,
                           const SaveOptions& options,
                           const std::function<at::Tensor(const std::string&)>& values);

}  // namespace heed::detail
