#include "weights/formats/pickled_tensors.h"

#include <algorithm>
#include <optional>

#include "weights/formats/pytorch_dtypes.h"

#define HEED_CHECK_TENSOR(condition, text, ...) \
  HEED_CHECK_STORED(condition, archive_.bytes(), place_, text, __VA_ARGS__)

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;
using Values = std::vector<PickleValue>;

/// What a call of a function that rebuilds a tensor gave it.
struct Call {
  std::string function;
  const Values* arguments;
};

const PickleObject* object_of_kind(const PickleValue& value, Kind kind) {
  const auto* object = object_of(value);
  return object != nullptr && object->kind == kind ? object : nullptr;
}

std::string global_name(const PickleValue& value) {
  const auto* global = object_of_kind(value, Kind::global);
  return global == nullptr ? "" : global->name;
}

/// A storage as a pickle names it: ("storage", torch.FloatStorage, key, device, element count).
struct StorageRecord {
  std::optional<at::ScalarType> dtype;  // none where it is but bytes
  Place place;
};

/// Reads one tensor; holds what its errors name.
class Reader {
 public:
  Reader(const Archive& archive, const std::string& place) : archive_(archive), place_(place) {}

  StoredTensor tensor(const PickleValue& value) const {
    const auto call = rebuild_call(value);
    const auto& arguments = *call.arguments;
    const bool with_dtype = call.function == "torch._utils._rebuild_tensor_v3";
    const size_t least = with_dtype ? 7 : 4;
    HEED_CHECK_TENSOR(arguments.size() >= least, "{} must be given {} arguments", call.function,
                      least);
    check_not_lazy(arguments, with_dtype ? 7 : 6);
    const auto storage = storage_of(arguments[0]);
    const auto dtype = with_dtype ? dtype_named(global_name(arguments[6])) : storage.dtype;
    HEED_CHECK_TENSOR(dtype, "its dtype must be one of LibTorch's; it is {}",
                      in_quotes(global_name(arguments[with_dtype ? 6 : 0])));
    return {storage.place, *dtype, integer(arguments[1], "offset"), integers(arguments[2], "sizes"),
            integers(arguments[3], "strides")};
  }

 private:
  /// The call that makes the tensor itself, inside those that make a parameter or a subclass of it.
  Call rebuild_call(const PickleValue& value) const {
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
                 is_plain(global_name(arguments[1]))) {
        object = object_of_kind(arguments[2], Kind::tuple);
        call = {global_name(arguments[0]), object == nullptr ? nullptr : &object->items};
      } else {
        break;
      }
    }
    HEED_CHECK_TENSOR(false, "it must be a tensor; it is {}", describe(value));
  }

  static bool is_plain(const std::string& type) {
    return type == "torch.Tensor" || type == "torch.nn.parameter.Parameter" ||
           type == "torch.nn.parameter.Buffer";
  }

  /// Conjugates and negatives that were put off are flags in the last argument.
  void check_not_lazy(const Values& arguments, size_t metadata) const {
    if (arguments.size() <= metadata) return;
    const auto* flags = object_of_kind(arguments[metadata], Kind::dict);
    HEED_CHECK_TENSOR(std::holds_alternative<std::monostate>(arguments[metadata]) ||
                          (flags != nullptr && flags->entries.empty()),
                      "{} must not be put off: save resolve_conj() and resolve_neg() of it",
                      "its conjugation");
  }

  StorageRecord storage_of(const PickleValue& value) const {
    const auto* persistent = object_of_kind(value, Kind::persistent);
    const auto* id =
        persistent == nullptr ? nullptr : object_of_kind(persistent->items[0], Kind::tuple);
    HEED_CHECK_TENSOR(id != nullptr && id->items.size() == 5, "it must have a {}", "storage");
    const auto type = global_name(id->items[1]);
    const auto* key = std::get_if<std::string_view>(&id->items[2]);
    HEED_CHECK_TENSOR(key != nullptr, "its storage must have a {}", "name");
    const auto count = integer(id->items[4], "storage size");
    StorageRecord storage;
    int64_t width = 1;
    if (type != "torch.storage.UntypedStorage" && type != "torch.UntypedStorage") {
      storage.dtype = dtype_of_storage(type);
      HEED_CHECK_TENSOR(storage.dtype, "its storage must be of a dtype of LibTorch's; it is {}",
                        in_quotes(type));
      width = static_cast<int64_t>(c10::elementSize(*storage.dtype));
    }
    const auto record = "data/" + std::string(*key);
    storage.place = archive_.place(record);
    const auto size = static_cast<int64_t>(storage.place.size);
    HEED_CHECK_TENSOR(size % width == 0 && size / width == count,
                      "record {} ({} bytes) must hold its {} elements of {} bytes",
                      in_quotes(record), size, count, width);
    return storage;
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

  const Archive& archive_;
  const std::string& place_;
};

}  // namespace

const PickleObject* object_of(const PickleValue& value) {
  auto* const* object = std::get_if<PickleObject*>(&value);
  return object == nullptr ? nullptr : *object;
}

std::string callee_of(const PickleValue& value) {
  const auto* call = object_of_kind(value, Kind::call);
  return call == nullptr ? "" : global_name(call->callee);
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

StoredTensor PickledTensors::stored(const PickleValue& value, const std::string& place) const {
  return Reader(archive_, place).tensor(value);
}

at::Tensor PickledTensors::operator()(const PickleValue& value, const std::string& place) const {
  return tensor_in(archive_.bytes(), stored(value, place), place);
}

}  // namespace heed::detail
