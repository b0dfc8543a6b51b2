// SPDX-License-Identifier: BSD-3-Clause
#include <heed/named_tensors.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "weights/formats/bytes.h"
#include "weights/similar_names.h"

namespace heed {

namespace {

using Names = std::vector<std::string>;

constexpr size_t kMostNearest = 3;

/// The names that are most similar to `name`.
Names similar_names(const NamedTensors& tensors, const std::string& name) {
  if (tensors.size() > detail::kMostComparedNames) return {};
  std::vector<std::tuple<size_t, std::string>> found;
  for (const auto& [other, tensor] : tensors) {
    const auto distance = detail::unlikeness(name, other, detail::least_unlike(name));
    if (distance) found.emplace_back(*distance, detail::in_quotes(other));
  }
  std::sort(found.begin(), found.end());
  Names names;
  for (size_t i = 0; i < std::min(found.size(), kMostNearest); ++i) {
    names.push_back(std::get<1>(found[i]));
  }
  return names;
}

/// Some names, if possible those that begin with as many parts of `name` as any does.
Names some_beside(const NamedTensors& tensors, const std::string& name) {
  for (auto prefix = name;;) {
    prefix.resize(prefix.size() < 2 ? 0 : prefix.rfind('.', prefix.size() - 2) + 1);
    Names names;
    for (auto item = tensors.lower_bound(prefix); item != tensors.end(); ++item) {
      if (names.size() == kMostNearest || item->first.compare(0, prefix.size(), prefix) != 0) break;
      names.push_back(detail::in_quotes(item->first));
    }
    if (!names.empty() || prefix.empty()) return names;
  }
}

/// Throws an error that shows names near `name`, which is not among the tensors.
[[noreturn]] void refuse_name(const NamedTensors& tensors, const std::string& name) {
  const auto nearest = similar_names(tensors, name);
  const auto names = nearest.empty() ? some_beside(tensors, name) : nearest;
  const auto* shown = tensors.empty() ? "" : nearest.empty() ? "; among them: " : "; nearest: ";
  HEED_CHECK(false, "NamedTensors::at: name {} must be one of the {} names{}{}",
             detail::in_quotes(name), tensors.size(), shown, c10::Join(", ", names));
}

}  // namespace

at::Tensor& NamedTensors::at(const std::string& name) {
  const auto found = find(name);
  if (found == end()) refuse_name(*this, name);
  return found->second;
}

const at::Tensor& NamedTensors::at(const std::string& name) const {
  const auto found = find(name);
  if (found == end()) refuse_name(*this, name);
  return found->second;
}

}  // namespace heed
