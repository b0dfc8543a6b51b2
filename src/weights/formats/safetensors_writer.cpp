// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "weights/formats/safetensors_dtypes.h"

namespace heed::detail {

namespace {

using Item = NamedTensors::value_type;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kAlignment = 8;

/// Sorts the tensors as other writers do: wide elements first, so that every tensor is aligned,
/// then by name.
std::vector<const Item*> in_file_order(const NamedTensors& tensors) {
  std::vector<const Item*> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return a->second.element_size() > b->second.element_size();
  });
  return order;
}

std::string header(const std::vector<const Item*>& order,
                   const std::map<std::string, std::string>& metadata) {
  OrderedJson json;
  json["__metadata__"] = {{"format", "pt"}};  // programs that use PyTorch look for it
  for (const auto& [key, text] : metadata) json["__metadata__"][key] = text;
  size_t end = 0;
  for (const auto* item : order) {
    const auto& [name, tensor] = *item;
    const auto dtype = safetensors_name(tensor.scalar_type());
    HEED_CHECK(dtype, "{} dtype ({}) must be one that safetensors has", name,
               c10::toString(tensor.scalar_type()));
    HEED_CHECK(name != "__metadata__", "{} must have another name in safetensors", name);
    const auto begin = end;
    end += tensor.nbytes();
    json[name] = {
        {"dtype", *dtype}, {"shape", tensor.sizes().vec()}, {"data_offsets", {begin, end}}};
  }
  try {
    auto text = json.dump();
    text.append(kAlignment - text.size() % kAlignment, ' ');
    return text;
  } catch (const OrderedJson::type_error& error) {
    HEED_CHECK(false, "names must be UTF-8 in safetensors; {}", error.what());
  }
}

std::string little_endian(uint64_t value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

}  // namespace

void write_safetensors(const NamedTensors& shapes,
                       const std::function<at::Tensor(const std::string&)>& values,
                       const std::function<void(std::string_view)>& write,
                       const std::map<std::string, std::string>& metadata) {
  const auto order = in_file_order(shapes);
  const auto text = header(order, metadata);
  write(little_endian(text.size()));
  write(text);
  for (const auto* item : order) {
    const auto tensor = values(item->first).cpu().resolve_conj().resolve_neg().contiguous();
    write({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
}

}  // namespace heed::detail
