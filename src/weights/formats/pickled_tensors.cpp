// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pickled_tensors.h"

#include <map>
#include <optional>

#include "weights/formats/pytorch_dtypes.h"

#define HEED_CHECK_TENSOR(condition, text, ...) \
  HEED_CHECK_STORED(condition, bytes_, place_, text, __VA_ARGS__)

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;
using Values = std::vector<PickleValue>;

/// A call of a function that rebuilds a tensor: the function's name and its arguments.
struct Call {
  std::string_view function;
  const Values* arguments;
};

const PickleObject* object_of_kind(const PickleValue& value, Kind kind) {
  const auto* object = object_of(value);
  return object != nullptr && object->kind == kind ? object : nullptr;
}

std::string_view global_name(const PickleValue& value) {
  const auto* global = object_of_kind(value, Kind::global);
  return global == nullptr ? std::string_view() : global->name;
}

bool is_plain_type(std::string_view type) {
  return type == "torch.Tensor" || type == "torch.nn.parameter.Parameter" ||
         type == "torch.nn.parameter.Buffer";
}

/// Finds the call that rebuilds the tensor itself, inside calls that make a parameter or a
/// subclass of it. Its arguments are null if the value is not a tensor.
Call rebuild_call(const PickleValue& value) {
  const auto* object = object_of_kind(value, Kind::call);
  Call call{callee_of(value), object == nullptr ? nullptr : &object->items};
  constexpr int kMostLayers = 4;
  for (int layer = 0; layer < kMostLayers && call.arguments != nullptr; ++layer) {
    const auto& arguments = *call.arguments;
    if (call.function == "torch._utils._rebuild_tensor" ||
        call.function == "torch._utils._rebuild_tensor_v2" ||
        call.function == "torch._utils._rebuild_tensor_v3") {
      return call;
    }
    if ((call.function == "torch._utils._rebuild_parameter" ||
         call.function == "torch._utils._rebuild_parameter_with_state") &&
        !arguments.empty()) {
      object = object_of_kind(arguments[0], Kind::call);
      call = {callee_of(arguments[0]), object == nullptr ? nullptr : &object->items};
    } else if (call.function == "torch._tensor._rebuild_from_type_v2" && arguments.size() >= 3 &&
               is_plain_type(global_name(arguments[1]))) {
      object = object_of_kind(arguments[2], Kind::tuple);
      call = {global_name(arguments[0]), object == nullptr ? nullptr : &object->items};
    } else {
      break;
    }
  }
  return {};
}

/// Whether a conjugation or negation was put off: the argument number `metadata`, a dict, then has
/// flags.
bool is_put_off(const Values& arguments, size_t metadata) {
  if (arguments.size() <= metadata) return false;
  const auto* flags = object_of_kind(arguments[metadata], Kind::dict);
  return !std::holds_alternative<std::monostate>(arguments[metadata]) &&
         (flags == nullptr || !flags->entries.empty());
}

bool is_untyped(std::string_view storage) {
  return storage == "torch.storage.UntypedStorage" || storage == "torch.UntypedStorage";
}

/// A storage in a file, whose elements have the dtype that its type names.
struct Storage {
  std::string_view type;
  std::optional<at::ScalarType> dtype;  // none where the type names bytes, or what heed lacks
  Place place{};
};

/// Reads one tensor. Errors begin with `place`.
class Reader {
 public:
  Reader(const Bytes& bytes, const PickledTensors::FindStorage& find, const std::string& place)
      : bytes_(bytes), find_(find), place_(place) {}

  std::variant<StoredTensor, Unheld> tensor(const PickleValue& value) const {
    const auto call = rebuild_call(value);
    if (call.arguments == nullptr) return Unheld{describe(value)};
    const auto& arguments = *call.arguments;
    const bool with_dtype = call.function == "torch._utils._rebuild_tensor_v3";
    const size_t least = with_dtype ? 7 : 4;
    HEED_CHECK_TENSOR(arguments.size() >= least, "{} must be given {} arguments", call.function,
                      least);
    if (is_put_off(arguments, with_dtype ? 7 : 6)) {
      return Unheld{"a tensor whose resolve_conj() or resolve_neg() is put off"};
    }
    const auto storage = storage_of(arguments[0]);
    const auto type = with_dtype ? global_name(arguments[6]) : storage.type;
    const auto dtype = with_dtype ? dtype_named(type) : storage.dtype;
    if (!dtype) return Unheld{"a tensor of " + in_quotes(type)};
    return StoredTensor{storage.place, *dtype, integer(arguments[1], "offset"),
                        integers(arguments[2], "sizes"), integers(arguments[3], "strides")};
  }

 private:
  Storage storage_of(const PickleValue& value) const {
    const auto* persistent = object_of_kind(value, Kind::persistent);
    const auto id = persistent == nullptr ? std::nullopt : storage_id(*persistent);
    HEED_CHECK_TENSOR(id, "it must have a {}", "storage");
    const auto count = integer(*id->count, "storage size");
    Storage storage{id->type, dtype_of_storage(id->type)};
    if (!storage.dtype && !is_untyped(id->type)) return storage;
    const auto width = static_cast<int64_t>(storage_width(id->type));
    storage.place = find_(std::string(id->key));
    const auto size = static_cast<int64_t>(storage.place.size);
    HEED_CHECK_TENSOR(size % width == 0 && size / width == count,
                      "storage {} ({} bytes) must hold its {} elements of {} bytes",
                      in_quotes(id->key), size, count, width);
    if (id->view != nullptr && !std::holds_alternative<std::monostate>(*id->view)) {
      storage.place = view_of(storage.place, *id->view, width);
    }
    return storage;
  }

  /// The part of a storage that a view of it has: (key, first element, element count).
  Place view_of(const Place& storage, const PickleValue& view, int64_t width) const {
    const auto* fields = object_of_kind(view, Kind::tuple);
    HEED_CHECK_TENSOR(fields != nullptr && fields->items.size() == 3,
                      "the view of its storage must have {} fields", 3);
    const auto first = integer(fields->items[1], "view's first element");
    const auto count = integer(fields->items[2], "view's size");
    const auto whole = static_cast<int64_t>(storage.size) / width;
    HEED_CHECK_TENSOR(first <= whole && count <= whole - first,
                      "its view of {} elements from {} on must fit its storage of {} elements",
                      count, first, whole);
    return {storage.offset + static_cast<size_t>(first * width),
            static_cast<size_t>(count * width)};
  }

  int64_t integer(const PickleValue& value, const char* what) const {
    const auto* number = std::get_if<int64_t>(&value);
    HEED_CHECK_TENSOR(number != nullptr && *number >= 0, "its {} must be integers of 0 or more",
                      what);
    return *number;
  }

  std::vector<int64_t> integers(const PickleValue& value, const char* what) const {
    const auto* numbers = object_of_kind(value, Kind::tuple);
    if (callee_of(value) == "torch.Size" && object_of(value)->items.size() == 1) {
      numbers = object_of_kind(object_of(value)->items[0], Kind::tuple);
    }
    HEED_CHECK_TENSOR(numbers != nullptr && numbers->items.size() <= kMostDims,
                      "its {} must be a tuple of at most {}", what, kMostDims);
    std::vector<int64_t> result;
    result.reserve(numbers->items.size());
    for (const auto& number : numbers->items) result.push_back(integer(number, what));
    return result;
  }

  const Bytes& bytes_;
  const PickledTensors::FindStorage& find_;
  const std::string& place_;
};

}  // namespace

const PickleObject* object_of(const PickleValue& value) {
  auto* const* object = std::get_if<PickleObject*>(&value);
  return object == nullptr ? nullptr : *object;
}

std::string_view callee_of(const PickleValue& value) {
  const auto* call = object_of_kind(value, Kind::call);
  return call == nullptr ? std::string_view() : global_name(call->callee);
}

const PickleValue& untagged(const PickleValue& value) {
  constexpr std::string_view kTags = "torch.jit._pickle.";
  const bool is_tagged = callee_of(value).substr(0, kTags.size()) == kTags;
  return is_tagged && !object_of(value)->items.empty() ? object_of(value)->items[0] : value;
}

bool is_tensor(const PickleValue& value) {
  const auto function = callee_of(value);
  return function.rfind("torch._utils._rebuild_", 0) == 0 ||
         function.rfind("torch._tensor._rebuild_", 0) == 0;
}

std::string describe(const PickleValue& value) {
  const auto* object = object_of(value);
  if (object == nullptr) {
    constexpr const char* kNames[] = {"None", "a bool", "an integer", "a float", "a string"};
    return kNames[value.index()];
  }
  switch (object->kind) {
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::dict:
      return "a dict";
    case Kind::number:
      return "an integer";
    case Kind::persistent:
      return "a storage";
    case Kind::global:
      return in_quotes(object->name);
    case Kind::call:
      return "a call of " + in_quotes(callee_of(value)) + ", which is not run";
  }
  return "unknown";
}

std::optional<StorageId> storage_id(const PickleObject& persistent) {
  const auto* id = object_of_kind(persistent.items[0], Kind::tuple);
  // Before version 1.6, torch.save wrote a sixth item, the view.
  if (id == nullptr || id->items.size() < 5 || id->items.size() > 6) return std::nullopt;
  const auto* kind = std::get_if<std::string_view>(id->items.data());
  const auto* key = std::get_if<std::string_view>(&id->items[2]);
  if (kind == nullptr || *kind != "storage" || key == nullptr) return std::nullopt;
  return StorageId{global_name(id->items[1]), *key, &id->items[4],
                   id->items.size() == 6 ? &id->items[5] : nullptr};
}

size_t storage_width(std::string_view type) {
  if (is_untyped(type)) return 1;
  if (const auto dtype = dtype_of_storage(type)) return c10::elementSize(*dtype);
  static const std::map<std::string_view, size_t> quantized = {{"torch.QInt8Storage", 1},
                                                               {"torch.QUInt8Storage", 1},
                                                               {"torch.QInt32Storage", 4},
                                                               {"torch.QUInt4x2Storage", 1},
                                                               {"torch.QUInt2x4Storage", 1}};
  const auto found = quantized.find(type);
  return found == quantized.end() ? 0 : found->second;
}

PickledTensors::PickledTensors(const Archive& archive, const std::string& folder)
    : PickledTensors(archive.bytes(), [&archive, folder](const std::string& key) {
        return archive.place(folder + key);
      }) {}

std::variant<StoredTensor, Unheld> PickledTensors::stored(const PickleValue& value,
                                                          const std::string& place) const {
  return Reader(bytes_, find_, place).tensor(value);
}

std::variant<at::Tensor, Unheld> PickledTensors::operator()(const PickleValue& value,
                                                            const std::string& place) {
  auto& made = made_[object_of(value)];
  if (made.defined()) return made;
  auto tensor = stored(value, place);
  if (auto* unheld = std::get_if<Unheld>(&tensor)) return std::move(*unheld);
  return made = tensor_in(bytes_, std::get<StoredTensor>(tensor), place);
}

}  // namespace heed::detail
