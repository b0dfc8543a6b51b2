#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"
#include "weights/formats/stored_tensor.h"

namespace heed::detail {

/// Makes the tensors that an archive's pickle describes.
class PickledTensors {
 public:
  /// Elements are in the archive's records of this folder.
  explicit PickledTensors(const Archive& archive, std::string folder = "data/")
      : archive_(&archive), folder_(std::move(folder)) {}

  /// Throws c10::ValueError, beginning with `place`, when a tensor's elements do not lie in the
  /// archive.
  std::variant<at::Tensor, Unheld> operator()(const PickleValue& value, const std::string& place);

  /// The same, before it is known whether the elements lie in the archive.
  std::variant<StoredTensor, Unheld> stored(const PickleValue& value,
                                            const std::string& place) const;

 private:
  const Archive* archive_;
  std::string folder_;
  std::unordered_map<const PickleObject*, at::Tensor> made_;  // many names may have one tensor
};

/// The object, or null if the value is not an object.
const PickleObject* object_of(const PickleValue& value);

/// The name of the class or function that was called; empty if the value is not a call.
std::string_view callee_of(const PickleValue& value);

/// The list or dict to which C++ and TorchScript give a type, in a call; any other value as it is.
const PickleValue& untagged(const PickleValue& value);
const PickleValue& untagged(PickleValue&& value) = delete;

/// Whether the value is any kind of tensor or parameter of Python.
bool is_tensor(const PickleValue& value);

/// For errors: "an integer", "a dict", "a my.Model".
std::string describe(const PickleValue& value);

}  // namespace heed::detail
