#include "weights/formats/pickled_tensors.h"

#include <algorithm>
#include <optional>

#define HEED_CHECK_TENSOR(condition, text, ...) \
  HEED_CHECK_FILE(condition, archive_.bytes(), "PyTorch", "{}: " text, place_, __VA_ARGS__)

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;
using Values = std::vector<PickleValue>;

struct PickledDtype {
  std::string_view storage, name;
  at::ScalarType type;
};

constexpr PickledDtype kPickledDtypes[] = {
    {"torch.DoubleStorage", "torch.float64", at::kDouble},
    {"torch.FloatStorage", "torch.float32", at::kFloat},
    {"torch.HalfStorage", "torch.float16", at::kHalf},
    {"torch.BFloat16Storage", "torch.bfloat16", at::kBFloat16},
    {"torch.Float8_e4m3fnStorage", "torch.float8_e4m3fn", at::kFloat8_e4m3fn},
    {"torch.Float8_e4m3fnuzStorage", "torch.float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
    {"torch.Float8_e5m2Storage", "torch.float8_e5m2", at::kFloat8_e5m2},
    {"torch.Float8_e5m2fnuzStorage", "torch.float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
    {"torch.ComplexDoubleStorage", "torch.complex128", at::kComplexDouble},
    {"torch.ComplexFloatStorage", "torch.complex64", at::kComplexFloat},
    {"torch.LongStorage", "torch.int64", at::kLong},
    {"torch.IntStorage", "torch.int32", at::kInt},
    {"torch.ShortStorage", "torch.int16", at::kShort},
    {"torch.CharStorage", "torch.int8", at::kChar},
    {"torch.UInt64Storage", "torch.uint64", at::kUInt64},
    {"torch.UInt32Storage", "torch.uint32", at::kUInt32},
    {"torch.UInt16Storage", "torch.uint16", at::kUInt16},
    {"torch.ByteStorage", "torch.uint8", at::kByte},
    {"torch.BoolStorage", "torch.bool", at::kBool},
};

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

  at::Tensor tensor(const PickleValue& value) const {
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
    return tensor(storage.place, *dtype, integer(arguments[1], "offset"),
                  integers(arguments[2], "sizes"), integers(arguments[3], "strides"));
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

  at::Tensor tensor(const Place& storage, at::ScalarType dtype, int64_t offset,
                    const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) const {
    const auto width = c10::elementSize(dtype);
    const auto stored = static_cast<int64_t>(storage.size / width);
    const auto count = element_count(sizes);
    HEED_CHECK_TENSOR(sizes.size() == strides.size() && count && offset <= stored,
                      "sizes {}, strides {} and offset {} must fit its storage of {} elements",
                      c10::str(at::IntArrayRef(sizes)), c10::str(at::IntArrayRef(strides)), offset,
                      stored);
    int64_t left = stored - offset;  // elements after the last one that is reached
    if (*count > 0) --left;
    for (size_t i = 0; *count > 0 && left >= 0 && i < sizes.size(); ++i) {
      const bool fits = strides[i] == 0 || sizes[i] - 1 <= left / strides[i];
      left = fits ? left - (sizes[i] - 1) * strides[i] : -1;
    }
    HEED_CHECK_TENSOR(
        left >= 0, "sizes {}, strides {} and offset {} must fit its storage of {} elements",
        c10::str(at::IntArrayRef(sizes)), c10::str(at::IntArrayRef(strides)), offset, stored);
    // Strides of 0 repeat elements: whoever copies such a tensor needs room for all of them.
    HEED_CHECK_TENSOR(static_cast<size_t>(*count) <= memory_limit(archive_.bytes()) / width,
                      "sizes {} must not repeat elements so often",
                      c10::str(at::IntArrayRef(sizes)));
    const auto first = storage.offset + static_cast<size_t>(offset) * width;
    return tensor_at(archive_.bytes(), {first, dtype, sizes, strides}, "PyTorch", place_);
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

  static std::optional<at::ScalarType> dtype_of_storage(const std::string& type) {
    for (const auto& dtype : kPickledDtypes) {
      if (dtype.storage == type) return dtype.type;
    }
    return std::nullopt;
  }

  static std::optional<at::ScalarType> dtype_named(const std::string& name) {
    for (const auto& dtype : kPickledDtypes) {
      if (dtype.name == name) return dtype.type;
    }
    return std::nullopt;
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

at::Tensor PickledTensors::operator()(const PickleValue& value, const std::string& place) const {
  return Reader(archive_, place).tensor(value);
}

}  // namespace heed::detail
