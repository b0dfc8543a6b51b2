// SPDX-License-Identifier: BSD-3-Clause
#include <heed/name_maps.h>

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/checks.h"
#include "weights/dotted_names.h"
#include "weights/module_tensors.h"
#include "weights/stacks.h"
#include "weights/translation.h"

namespace heed {

namespace {

using detail::find_part;
using detail::Surroundings;
using detail::transposed;
using detail::without_leading;

bool is_same_part(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

bool are_same_parts(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same_part);
}

}  // namespace

/// The state of a map that is applied from the module's names to the file's: the module's tensors,
/// and the compositions of the file's. All tensors are shapes alone.
struct NameMap::Inverted {
  const detail::ModuleTensors& module;
  const NameMap& map;
  // For each name in the module: the rows of the file's tensor that its tensor becomes.
  std::map<std::string, std::vector<at::Tensor>> used = {};
  std::map<std::string, detail::Composition> theirs = {};
  std::set<std::string> spelled = {};  // names that tied tensors would have in the module

  void invert(const Entry& entry) {
    if (entry.kind == Kind::drop || entry.kind == Kind::tied) return;
    for (const auto& item : module) {
      if (used.count(item.key()) > 0) continue;
      const auto own = name_within(entry.within, item.key());
      const auto where = own ? find_ours(entry, entry.ours[0], *own) : std::nullopt;
      if (!where) continue;
      if (entry.kind == Kind::unstack) {
        invert_stack(entry, *where);
      } else {
        invert(entry, *where, item.key());
      }
    }
  }

  /// The name in the submodule `within` of a name in the module; none if it is not there.
  static std::optional<std::string> name_within(const std::string& within,
                                                const std::string& name) {
    if (within.empty()) return name;
    if (name.rfind(within + ".", 0) != 0) return std::nullopt;
    return name.substr(within.size() + 1);
  }

  void invert(const Entry& entry, const Surroundings& where, const std::string& name) {
    HEED_CHECK(entry.kind != Kind::pack,
               "name map: {} -> {}: it cannot be turned around: how many rows of {} are whose is "
               "not known",
               c10::Join(", ", entry.theirs), c10::Join(", ", entry.ours), name);
    std::vector<at::Tensor> parts;
    std::vector<std::string> ours;
    for (const auto& each : entry.ours) {
      ours.push_back((entry.within.empty() ? "" : entry.within + ".") + where.around(each));
      const auto* const part = module.find(ours.back());
      HEED_CHECK(part, "name map: {} -> {}: the module holds no {}", c10::Join(", ", entry.theirs),
                 c10::Join(", ", entry.ours), ours.back());
      parts.push_back(*part);
    }
    const bool by_column = entry.kind == Kind::transpose || entry.kind == Kind::transpose_split;
    const auto whole = parts.size() == 1 ? parts[0] : at::cat(parts);
    if (entry.kind == Kind::unsqueeze) {
      const auto squeezed = without_leading(whole, entry.heads);
      HEED_CHECK(squeezed.dim() + entry.heads == whole.dim(),
                 "name map: {} -> {}: the first {} of the dimensions of {} {} must be 1",
                 entry.theirs[0], entry.ours[0], entry.heads, name, detail::shape(whole));
      used[ours[0]] = {whole};
      return add(entry.within, where.around(entry.theirs[0]),
                 {ours, false, squeezed, 0, 0, {}, entry.heads});
    }
    if (entry.kind == Kind::split_heads) {
      use_heads(entry, ours, parts, whole);
    } else {
      use_rows(ours, parts, whole);
    }
    add(entry.within, where.around(entry.theirs[0]),
        {ours, by_column, by_column ? transposed(whole) : whole, entry.heads});
  }

  void invert_stack(const Entry& entry, const Surroundings& where) {
    const auto text = c10::Join(", ", entry.theirs) + " -> " + c10::Join(", ", entry.ours);
    const auto name_of = [&](int64_t index, const std::string& part) {
      return (entry.within.empty() ? "" : entry.within + ".") +
             where.around(detail::name_in_list(entry.list, index, part));
    };
    int64_t count = 0;
    std::vector<at::Tensor> parts;
    std::vector<std::string> ours;
    for (; module.contains(name_of(count, entry.ours[0])); ++count) {
      for (size_t i = 0; i < entry.ours.size(); ++i) {
        ours.push_back(name_of(count, entry.ours[i]));
        const auto* const part = module.find(ours.back());
        HEED_CHECK(part, "name map: {}: the module holds no {}", text, ours.back());
        const auto like = entry.layout.interleaved() ? 0 : i;
        parts.push_back(*part);
        HEED_CHECK(part->sizes() == parts[like].sizes(), "name map: {}: {} {} must equal {} {}",
                   text, ours.back(), detail::shape(*part), ours[like], detail::shape(parts[like]));
      }
    }
    if (count == 0) return;
    const auto stack = detail::stacked(parts, count, entry.layout);
    use_stack(entry, ours, parts, stack);
    add(entry.within, where.around(entry.theirs[0]), {ours, false, stack, 0, count, entry.layout});
  }

  void use_stack(const Entry& entry, const std::vector<std::string>& ours,
                 const std::vector<at::Tensor>& parts, const at::Tensor& stack) {
    const auto size = entry.ours.size();
    for (size_t first = 0; first < ours.size(); first += size) {
      std::vector<int64_t> rows;
      rows.reserve(size);
      for (size_t i = 0; i < size; ++i) rows.push_back(parts[first + i].size(0));
      const auto index = static_cast<int64_t>(first / size);
      const auto views = detail::unstacked(stack, index, rows, entry.layout);
      for (size_t i = 0; i < size; ++i) used[ours[first + i]] = {views[i]};
    }
  }

  void use_rows(const std::vector<std::string>& ours, const std::vector<at::Tensor>& parts,
                const at::Tensor& whole) {
    int64_t row = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      if (parts.size() == 1) {
        used[ours[i]] = {whole};
      } else {
        used[ours[i]] = {whole.narrow(0, row, parts[i].size(0))};
        row += parts[i].size(0);
      }
    }
  }

  void use_heads(const Entry& entry, const std::vector<std::string>& ours,
                 const std::vector<at::Tensor>& parts, const at::Tensor& whole) {
    for (size_t i = 0; i < ours.size(); ++i) {
      HEED_CHECK(parts[i].sizes() == parts[0].sizes() && parts[i].size(0) % entry.heads == 0,
                 "name map: {} -> {}: {} {} must be the rows of {} heads, as many as those of {}",
                 c10::Join(", ", entry.theirs), c10::Join(", ", entry.ours), ours[i],
                 detail::shape(parts[i]), entry.heads, ours[0]);
    }
    auto heads = detail::head_parts(whole, entry.heads, static_cast<int64_t>(ours.size()));
    for (size_t i = 0; i < ours.size(); ++i) used[ours[i]] = std::move(heads[i]);
  }

  void keep_others() {
    for (const auto& item : module) {
      if (!used.emplace(item.key(), std::vector{item.value()}).second) continue;
      const auto own = name_within(map.submodule_, item.key());
      const std::string within = own ? map.submodule_ : "";
      add(within, own.value_or(item.key()), {{item.key()}, false, item.value()});
    }
  }

  void add(const std::string& within, const std::string& name_here,
           const detail::Composition& composition) {
    const auto name = map.in_file(within, name_here);
    HEED_CHECK(theirs.emplace(name, composition).second, "name map: two tensors would be called {}",
               name);
  }

  /// Throws unless the map, applied to the file's names, takes every tensor of the module from the
  /// rows that it has become.
  void check_back() const {
    NamedTensors shapes;
    for (const auto& [name, composition] : theirs) shapes.emplace(name, composition.shape);
    const auto back = detail::translate(map, shapes, module);
    detail::check_tied(back, shapes, {});
    for (const auto& item : module) {
      const auto found = back.tensors.find(item.key());
      const auto packed = back.packed.find(item.key());
      const bool same =
          found != back.tensors.end() &&
          found->second.scalar_type() == item.value().scalar_type() &&
          are_same_parts(packed != back.packed.end() ? packed->second : std::vector{found->second},
                         used.at(item.key()));
      HEED_CHECK(same, "name map: it cannot be turned around: {} does not come back as it is",
                 item.key());
    }
  }

  /// Adds tied tensors: the first original that exists gets its second name, too. If several
  /// entries spell this name, the first one counts.
  void tie(const Entry& entry) {
    for (const auto& original : entry.ours) {
      std::map<std::string, detail::Composition> tied;
      for (const auto& [name, composition] : theirs) {
        const auto where = find_part(original, name);
        if (!where) continue;
        const auto second = where->around(entry.theirs[0]);
        const bool is_new = spelled.insert(map.in_module(entry.within, second)).second;
        if (is_new) tied.emplace(second, composition);
      }
      theirs.insert(tied.begin(), tied.end());
      if (!tied.empty()) return;
    }
  }
};

/// The name in a file of a name of the submodule `within` to which all entries have been applied,
/// in the other direction: only paths are left to replace.
std::string NameMap::in_file(const std::string& within, std::string name) const {
  for (const auto& path : paths_) {
    if (path.within != within) continue;
    if (const auto where = find_part(path.ours, name)) name = where->around(path.theirs);
  }
  return name;
}

NamedTensors NameMap::invert(const torch::nn::Module& module) const {
  const auto tensors = detail::weights_of(module);
  const auto compositions =
      detail::invert(*this, whole_shapes(detail::held_tensors("NameMap::invert", module, {})));
  NamedTensors theirs;
  for (const auto& [name, composition] : compositions) {
    theirs[name] = make(composition, [&](const auto& ours) { return tensors[ours].detach(); });
  }
  return theirs;
}

namespace detail {

std::map<std::string, Composition> invert(const NameMap& map, const ModuleTensors& module) {
  NameMap::Inverted inverted{module, map};
  const auto is_outermost = [](const auto& entry) {
    return entry.ours == std::vector{std::string()};
  };
  for (const bool outermost : {false, true}) {  // the empty name is in every other: it comes last
    for (const auto& entry : map.entries_) {
      if (is_outermost(entry) == outermost) inverted.invert(entry);
    }
  }
  inverted.keep_others();
  for (const auto& entry : map.entries_) {
    if (entry.kind == NameMap::Kind::tied) inverted.tie(entry);
  }
  inverted.check_back();
  return std::move(inverted.theirs);
}

at::Tensor make(const Composition& composition,
                const std::function<at::Tensor(const std::string&)>& tensor_of) {
  std::vector<at::Tensor> parts;
  parts.reserve(composition.ours.size());
  for (const auto& name : composition.ours) parts.push_back(tensor_of(name));
  if (composition.stacked > 0) return stacked(parts, composition.stacked, composition.layout);
  if (composition.heads > 0) {
    for (auto& part : parts) part = part.unflatten(0, {composition.heads, -1});
    return at::cat(parts, 1).flatten(0, 1);
  }
  const auto whole = parts.size() == 1 ? parts[0] : at::cat(parts);
  return composition.transposed ? transposed(whole) : without_leading(whole, composition.leading);
}

}  // namespace detail

}  // namespace heed
