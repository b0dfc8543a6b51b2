// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"
#include "weights/formats/stored_tensor.h"

namespace heed::detail {

/// A storage as a pickle names it: ("storage", torch.FloatStorage, key, device, element count).
struct StorageId {
  std::string_view type, key;
  const PickleValue* count;
  const PickleValue* view;  // null, None, or the part of the storage that is meant
};

/// The storage that a persistent object names; none if it names something else.
std::optional<StorageId> storage_id(const PickleObject& persistent);

/// The bytes of one element of a storage of this type; 0 if the type is not known.
size_t storage_width(std::string_view type);

/// Makes the tensors that a file's pickle describes.
class PickledTensors {
 public:
  /// Returns the place of the storage with a key. Throws c10::ValueError when there is none.
  using FindStorage = std::function<Place(const std::string& key)>;

  PickledTensors(const Bytes& bytes, FindStorage find) : bytes_(bytes), find_(std::move(find)) {}
  /// Reads elements from the archive's records in `folder`. Refers to `archive`.
  explicit PickledTensors(const Archive& archive, const std::string& folder = "data/");

  /// Makes the tensor that `value` describes, or says what it is if heed cannot hold it. Throws
  /// c10::ValueError, beginning with `place`, when a tensor's elements do not lie in the file.
  std::variant<at::Tensor, Unheld> operator()(const PickleValue& value, const std::string& place);

  /// Like operator(), but does not check that the elements lie in the file.
  std::variant<StoredTensor, Unheld> stored(const PickleValue& value,
                                            const std::string& place) const;

 private:
  Bytes bytes_;
  FindStorage find_;
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
