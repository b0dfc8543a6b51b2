#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"
#include "weights/formats/stored_tensor.h"

namespace heed::detail {

/// Makes the tensors that an archive's pickle describes.
class PickledTensors {
 public:
  explicit PickledTensors(const Archive& archive) : archive_(archive) {}

  /// Throws c10::ValueError, beginning with `place`, unless `value` is a strided tensor or a
  /// parameter, of a dtype that LibTorch has, whose elements lie in the archive.
  at::Tensor operator()(const PickleValue& value, const std::string& place) const;

  /// The same, before it is known whether the elements lie in the archive.
  StoredTensor stored(const PickleValue& value, const std::string& place) const;

 private:
  const Archive& archive_;
};

/// The object, or null if the value is not an object.
const PickleObject* object_of(const PickleValue& value);

/// The name of the class or function that was called; empty if the value is not a call.
std::string callee_of(const PickleValue& value);

/// Whether the value is any kind of tensor or parameter of Python.
bool is_tensor(const PickleValue& value);

/// For errors: "an integer", "a dict", "a my.Model".
std::string describe(const PickleValue& value);

}  // namespace heed::detail
