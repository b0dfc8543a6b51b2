// SPDX-License-Identifier: BSD-3-Clause
#include "weights/packed_weights.h"

#include <ATen/ops/isfinite.h>
#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/checks.h"
#include "cpu/layers/packed_memory.h"
#include "modules/layers/packable.h"
#include "weights/formats/bytes.h"
#include "weights/formats/file_tensors.h"
#include "weights/formats/safetensors.h"
#include "weights/formats/safetensors_dtypes.h"
#include "weights/formats/weight_file.h"

namespace heed::detail {

namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 3> kTensors = {".values", ".scales", ".offsets"};
constexpr std::string_view kWeight = ".weight";
constexpr int64_t kMost = int64_t{1} << 40;  // outputs or inputs

struct Description {
  PackedLayout layout{};
  at::ScalarType dtype = at::kFloat;
  int64_t outputs = 0, depth = 0;
};

std::optional<int64_t> size_in(const Json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  const auto size = json.get<int64_t>();
  return size >= 0 && size <= kMost ? std::optional(size) : std::nullopt;
}

/// Reads what a file says of a packed weight; none if heed does not write such a text.
std::optional<Description> parsed(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  for (const auto* field : {"format", "dtype"}) {
    if (!json.contains(field) || !json[field].is_string()) return std::nullopt;
  }
  if (!json.contains("shape") || json["shape"].size() != 2 || !json.contains("group")) {
    return std::nullopt;
  }
  const auto format = packed_format(json["format"].get<std::string>());
  const auto dtype = safetensors_dtype(json["dtype"].get<std::string>());
  const auto outputs = size_in(json["shape"][0]), depth = size_in(json["shape"][1]);
  const auto group = size_in(json["group"]);
  if (!format || !dtype || !outputs || !depth || !group) return std::nullopt;
  const auto quantizes = json.value("quantize_activations", Json(false));
  if (!quantizes.is_boolean()) return std::nullopt;
  PackedLayout layout{*format, *group};
  layout.quantize_activations = quantizes.get<bool>();
  // Until version 0.3, heed wrote all offsets.
  const auto zero_point = json.value("zero_point", Json(*format == PackedFormat::int4));
  if (!zero_point.is_boolean()) return std::nullopt;
  layout.zero_point = zero_point.get<bool>();
  if (layout.quantize_activations && !can_quantize_activations(*format)) return std::nullopt;
  const bool has_dtype = *dtype == at::kFloat || *dtype == at::kBFloat16 || *dtype == at::kHalf;
  const bool has_group = is_group(*format, *group) && (*group == 0 || *depth % *group == 0);
  if (!has_dtype || !has_group || *outputs == 0 || *depth == 0) return std::nullopt;
  return Description{layout, *dtype, *outputs, *depth};
}

std::string described(const PackedShape& shape) {
  return fmt::format("{} {}", c10::toString(shape.dtype), c10::str(at::IntArrayRef(shape.sizes)));
}

/// Takes the tensors of a packed weight out of the file's.
at::Tensor take(const std::string& name, const std::string& text, FileEntries& file) {
  const auto source = source_of(file);
  const auto found = parsed(text);
  HEED_CHECK(found,
             "load_weights: {}: {} must be packed by this version of heed or an older one; its "
             "metadata is {}",
             source, in_quotes(name), in_quotes(text));
  const auto& [layout, dtype, outputs, depth] = *found;
  PackedWeight weight{
      layout.format, outputs, depth, layout.group, {}, {}, {}, layout.quantize_activations};
  const auto shapes = packed_shapes(layout, outputs, depth);
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].sizes.empty()) continue;
    const auto held = file.tensors.find(name + kTensors[i]);
    const bool is_there = held != file.tensors.end();
    HEED_CHECK(is_there && held->second.sizes() == at::IntArrayRef(shapes[i].sizes) &&
                   held->second.scalar_type() == shapes[i].dtype,
               "load_weights: {}: {} must be {}, as {} is packed; {}", source,
               in_quotes(name + kTensors[i]), described(shapes[i]), in_quotes(text),
               is_there ? fmt::format("it is {} {}", c10::toString(held->second.scalar_type()),
                                      shape(held->second))
                        : "it is missing");
    *weight.tensors()[i] = held->second;
    file.tensors.erase(held);
  }
  return packed_tensor(std::make_shared<const PackedWeight>(std::move(weight)), dtype);
}

/// The values of a tensor that may not have been read yet.
at::Tensor in_packed_memory(const at::Tensor& tensor) {
  auto result = packed_memory(tensor.sizes(), tensor.scalar_type());
  ValueCopies copies;
  copies.add(tensor, result);
  copies.prepare();
  copies.run();
  return result;
}

/// The layer whose weight has this name; null if there is none.
torch::nn::Module* layer_of(torch::nn::Module& module, const std::string& name) {
  if (name == kWeight.substr(1)) return &module;
  if (!ends_with(name, kWeight)) return nullptr;
  const auto children = module.named_modules("", /*include_self=*/false);
  const auto* found = children.find(name.substr(0, name.size() - kWeight.size()));
  return found != nullptr ? found->get() : nullptr;
}

/// Whether nothing of a weight that has been read is infinite or NaN, except numbers that are kept
/// as floats: those show in outputs. A bfloat16 weight of an odd depth ends with zeros.
bool is_sound(const PackedWeight& weight) {
  for (const auto* tensor : {&weight.scales, &weight.offsets}) {
    if (tensor->defined() && !at::isfinite(*tensor).all().item<bool>()) return false;
  }
  if (weight.format != PackedFormat::bfloat16 || weight.depth % 2 == 0) return true;
  const auto last = weight.values.select(1, -1);
  return last.bitwise_right_shift(16).eq(0).all().item<bool>();
}

}  // namespace

FileEntries with_packed(FileEntries file) {
  for (const auto& [name, text] : file.packed) {
    auto weight = take(name, text, file);
    const bool added = file.tensors.emplace(name, std::move(weight)).second;
    HEED_CHECK(added && file.others.count(name) == 0,
               "load_weights: {}: {} must be there once, packed or as it is", source_of(file),
               in_quotes(name));
  }
  return file;
}

void add_packed(const std::string& name, const at::Tensor& weight, NamedTensors& tensors,
                std::map<std::string, std::string>& metadata) {
  const auto& packed = *packed_weight_of(weight);
  Json text = {{"format", name_of(packed.format)},
               {"dtype", safetensors_name(weight.scalar_type()).value_or("")},
               {"shape", {packed.outputs, packed.depth}},
               {"group", packed.group}};
  if (packed.quantize_activations) text["quantize_activations"] = true;
  if (packed.format == PackedFormat::int4) text["zero_point"] = packed.offsets.defined();
  metadata.emplace(std::string(kPackedKey) + name, text.dump());
  for (size_t i = 0; i < kTensors.size(); ++i) {
    const auto& tensor = *packed.tensors()[i];
    if (tensor.defined()) tensors.emplace(name + kTensors[i], tensor);
  }
}

PackedLoads::PackedLoads(torch::nn::Module& module, const FileEntries& file,
                         const std::vector<std::string>& names, const LoadOptions& options)
    : module_(module), source_(source_of(file)) {
  if (file.packed.empty()) return;
  HEED_CHECK(options.name_map().empty() && options.shards().empty(),
             "load_weights: name_map and shards must not be given for {}, whose weights are packed",
             source_);
  HEED_CHECK(!options.device() || options.device()->is_cpu(),
             "load_weights: device ({}) must be the CPU for {}, whose weights are packed",
             options.device()->str(), source_);
  for (const auto& name : names) {
    const auto* packed = packed_weight_of(file.tensors.at(name));
    if (packed == nullptr) continue;
    auto* layer = layer_of(module, name);
    auto* weight = layer != nullptr ? packable_weight(*layer) : nullptr;
    HEED_CHECK(weight != nullptr,
               "load_weights: {} must be the weight of a Linear or an Embedding of LibTorch: it is "
               "packed in {}",
               name, source_);
    HEED_CHECK(weight->is_cpu(),
               "load_weights: {} must be on the CPU, as it is packed in {}; device {}", name,
               source_, weight->device().str());
    loads_.push_back({name, layer, weight, *packed});
  }
}

void PackedLoads::read() {
  for (auto& load : loads_) {
    for (auto* tensor : load.weight.tensors()) {
      if (tensor->defined()) *tensor = in_packed_memory(*tensor);
    }
    HEED_CHECK(is_sound(load.weight), "load_weights: {}: {} must have finite scales and offsets",
               source_, in_quotes(load.name));
  }
}

void PackedLoads::install() {
  for (auto& load : loads_) {
    set_packed_weight(*load.layer, *load.to, std::move(load.weight));
  }
  if (loads_.empty()) return;
  for (const auto& parameter : module_.parameters()) parameter.set_requires_grad(false);
}

}  // namespace heed::detail
