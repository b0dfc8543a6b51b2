#include <heed/name_maps.h>

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "weights/dotted_names.h"
#include "weights/module_tensors.h"
#include "weights/translation.h"

namespace heed {

namespace {

using detail::find_part;
using detail::Surroundings;
using detail::transposed;

bool has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto bits = [](const at::Tensor& tensor) { return tensor.detach().cpu().contiguous(); };
  const auto first = bits(a), second = bits(b);
  const auto* bytes = static_cast<const char*>(first.const_data_ptr());
  return std::equal(bytes, bytes + first.nbytes(),
                    static_cast<const char*>(second.const_data_ptr()));
}

}  // namespace

/// A map at work in the other direction: what the module holds, and what it has become.
struct NameMap::Inverted {
  const detail::ModuleTensors& module;
  const std::vector<std::pair<std::string, std::string>>& paths;
  std::set<std::string> used = {};  // names in the module
  NamedTensors theirs = {};

  void invert(const Entry& entry) {
    if (entry.kind == Kind::drop || entry.kind == Kind::tied) return;
    for (const auto& item : module) {
      const auto where = find_part(entry.ours[0], item.key());
      if (where && used.count(item.key()) == 0) invert(entry, *where, item.key());
    }
  }

  void invert(const Entry& entry, const Surroundings& where, const std::string& name) {
    HEED_CHECK(entry.kind != Kind::pack,
               "name map: {} -> {}: it cannot be turned around: how many rows of {} are whose is "
               "not known",
               c10::Join(", ", entry.theirs), c10::Join(", ", entry.ours), name);
    std::vector<at::Tensor> parts;
    for (const auto& ours : entry.ours) {
      const auto* const part = module.find(where.around(ours));
      HEED_CHECK(part, "name map: {} -> {}: the module holds no {}", c10::Join(", ", entry.theirs),
                 c10::Join(", ", entry.ours), where.around(ours));
      used.insert(where.around(ours));
      parts.push_back(part->detach());
    }
    const bool by_column = entry.kind == Kind::transpose || entry.kind == Kind::transpose_split;
    const auto whole = parts.size() == 1 ? parts[0] : at::cat(parts);
    add(where.around(entry.theirs[0]), by_column ? transposed(whole) : whole);
  }

  void keep_others() {
    for (const auto& item : module) {
      if (used.count(item.key()) == 0) add(item.key(), item.value().detach());
    }
  }

  void add(std::string name, const at::Tensor& tensor) {
    for (const auto& [from, to] : paths) {
      if (const auto where = find_part(to, name)) name = where->around(from);
    }
    HEED_CHECK(theirs.emplace(name, tensor).second, "name map: two tensors would be called {}",
               name);
  }

  /// The first of the originals that there is, under its second name.
  void tie(const Entry& entry) {
    for (const auto& original : entry.ours) {
      NamedTensors tied;
      for (const auto& [name, tensor] : theirs) {
        const auto where = find_part(original, name);
        if (where) tied.emplace(where->around(entry.theirs[0]), tensor);
      }
      theirs.insert(tied.begin(), tied.end());
      if (!tied.empty()) return;
    }
  }
};

NamedTensors NameMap::invert(const torch::nn::Module& module) const {
  const auto tensors = detail::weights_of(module);
  Inverted inverted{tensors, paths_};
  const auto is_outermost = [](const Entry& entry) {
    return entry.ours == std::vector{std::string()};
  };
  for (const bool outermost : {false, true}) {  // the empty name is in every other
    for (const auto& entry : entries_) {
      if (is_outermost(entry) == outermost) inverted.invert(entry);
    }
  }
  inverted.keep_others();
  for (const auto& entry : entries_) {
    if (entry.kind == Kind::tied) inverted.tie(entry);
  }
  const auto back = apply(inverted.theirs, module);
  for (const auto& item : tensors) {
    const auto found = back.find(item.key());
    HEED_CHECK(found != back.end() && has_same_bits(found->second, item.value()),
               "name map: it cannot be turned around: {} does not come back as it is", item.key());
  }
  return inverted.theirs;
}

}  // namespace heed
