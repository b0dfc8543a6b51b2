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
  /// Reads elements from the archive's records in `folder`.
  explicit PickledTensors(const Archive& archive, std::string folder = "data/")
      : archive_(&archive), folder_(std::move(folder)) {}

  /// Makes the tensor that `value` describes, or says what it is if heed cannot hold it. Throws
  /// c10::ValueError, beginning with `place`, when a tensor's elements do not lie in the archive.
  std::variant<at::Tensor, Unheld> operator()(const PickleValue& value, const std::string& place);

  /// Like operator(), but does not check that the elements lie in the archive.
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

/// Unwraps a list or dict that C++ or TorchScript has put into a call that gives it a type;
/// returns any other value as it is.
const PickleValue& untagged(const PickleValue& value);
const PickleValue& untagged(PickleValue&& value) = delete;

/// Whether the value is any kind of tensor or parameter of Python.
bool is_tensor(const PickleValue& value);

/// Describes a value for errors: "an integer", "a dict", "a my.Model".
std::string describe(const PickleValue& value);

}  // namespace heed::detail
