// SPDX-License-Identifier: BSD-3-Clause
#include <heed/name_maps.h>

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/checks.h"
#include "weights/dotted_names.h"
#include "weights/formats/equal_values.h"
#include "weights/formats/file_tensors.h"
#include "weights/module_tensors.h"
#include "weights/stacks.h"
#include "weights/translation.h"

namespace heed {

namespace {

using detail::find_part;
using detail::Surroundings;
using detail::transposed;
using detail::with_leading;

constexpr auto kSubmodule = "NameMap::submodule";

}  // namespace

/// The name in the module of a name of `within` to which all entries have been applied: only paths
/// are left to replace.
std::string NameMap::in_module(const std::string& within, std::string name) const {
  for (const auto& path : paths_) {
    if (path.within != within) continue;
    if (const auto where = find_part(path.theirs, name)) name = where->around(path.ours);
  }
  return within.empty() || name.empty() ? name : within + "." + name;
}

/// The state of a map that is applied to a file: the file's tensors, those that an entry has used,
/// and those that have the module's names already.
struct NameMap::Applied {
  const NamedTensors& theirs;
  const detail::ModuleTensors& module;
  const NameMap& map;
  std::map<std::string, std::string> used = {};  // names in the file, and the entry that used each
  NamedTensors ours = {};
  std::map<std::string, std::vector<std::string>> origins = {};
  std::map<std::string, std::vector<at::Tensor>> packed = {};
  std::vector<detail::Tied> tied = {};
  std::set<std::string> stand_ins = {};  // names in the module of tensors that a tied one replaces

  void apply(const Entry& entry) {
    const auto text = c10::Join(", ", entry.theirs) + " -> " + c10::Join(", ", entry.ours);
    bool found = false;
    for (const auto& candidate : entry.theirs) {
      for (const auto& [name, tensor] : theirs) {
        const auto where = find_part(candidate, name);
        if (!where || used.count(name) > 0) continue;
        found = true;
        translate(entry, text, *where, name, tensor);
      }
    }
    const bool optional = entry.kind == Kind::drop || entry.kind == Kind::tied;
    if (found || optional || !module_lacks(entry)) return;
    check_chain(entry, text);
    HEED_CHECK(false, "name map: {}: the file holds no {}", text, c10::Join(", ", entry.theirs));
  }

  /// Throws if an earlier entry has taken, or made, a name that this entry looks for.
  void check_chain(const Entry& entry, const std::string& text) const {
    const auto is_meant = [&](const std::string& name) {
      return std::any_of(entry.theirs.begin(), entry.theirs.end(),
                         [&](const auto& theirs) { return find_part(theirs, name).has_value(); });
    };
    for (const auto& [name, earlier] : used) {
      HEED_CHECK(!is_meant(name),
                 "name map: {}: an earlier entry, {}, has taken {}: entries do not chain", text,
                 earlier, name);
    }
    for (const auto& [name, origin] : origins) {
      HEED_CHECK(!is_meant(name),
                 "name map: {}: the file holds no {}; an earlier entry, {}, has made it of {}: "
                 "entries do not chain",
                 text, name, used.at(origin[0]), c10::Join(", ", origin));
    }
  }

  /// Whether a tensor of the module has one of the entry's names, at any depth, and no tied one is
  /// its stand-in.
  bool module_lacks(const Entry& entry) const {
    return std::any_of(module.begin(), module.end(), [&](const auto& item) {
      return stand_ins.count(item.key()) == 0 &&
             std::any_of(entry.ours.begin(), entry.ours.end(), [&](const std::string& name) {
               return find_ours(entry, name, item.key()).has_value();
             });
    });
  }

  /// Adds a tensor under its name in the module, which it returns.
  std::string add(const std::string& text, const std::string& within, const std::string& name_here,
                  const at::Tensor& tensor, const std::vector<std::string>& origin) {
    auto name = map.in_module(within, name_here);
    HEED_CHECK(!name.empty(), "name map: {}: a tensor must keep a name", text);
    const bool added = ours.emplace(name, tensor).second;
    HEED_CHECK(added, "name map: {}: {} has been given a tensor already", text, name);
    origins.emplace(name, origin);
    return name;
  }

  void translate(const Entry& entry, const std::string& text, const Surroundings& where,
                 const std::string& name, const at::Tensor& tensor) {
    if (entry.kind == Kind::tied) return translate_tied(entry, text, where, name);
    const bool is_reshaped = entry.kind != Kind::rename && entry.kind != Kind::transpose &&
                             entry.kind != Kind::unsqueeze && entry.kind != Kind::drop;
    if (is_reshaped && lacks_values(entry, where)) return;  // and keeps its name
    used.emplace(name, text);
    switch (entry.kind) {
      case Kind::rename:
        add(text, entry.within, where.around(entry.ours[0]), tensor, {name});
        return;
      case Kind::transpose:
        add(text, entry.within, where.around(entry.ours[0]), transposed(tensor), {name});
        return;
      case Kind::unsqueeze:
        add(text, entry.within, where.around(entry.ours[0]), with_leading(tensor, entry.heads),
            {name});
        return;
      case Kind::pack:
        return pack(entry, text, where);
      case Kind::split:
      case Kind::transpose_split:
        return split(entry, text, where, name, tensor);
      case Kind::split_heads:
        return split_heads(entry, text, where, name, tensor);
      case Kind::unstack:
        return unstack(entry, text, where, name, tensor);
      case Kind::drop:
      case Kind::tied:
        return;
    }
  }

  /// Whether one of the entry's tensors is undefined.
  bool lacks_values(const Entry& entry, const Surroundings& where) const {
    return std::any_of(entry.theirs.begin(), entry.theirs.end(), [&](const auto& part) {
      const auto found = theirs.find(where.around(part));
      return found != theirs.end() && !found->second.defined();
    });
  }

  /// Leaves out a tensor that must equal another one of the file. If the file has no such other
  /// one, the tensor stands in for it.
  void translate_tied(const Entry& entry, const std::string& text, const Surroundings& where,
                      const std::string& name) {
    const auto here = map.in_module(entry.within, name);
    if (module.contains(here)) return;  // not tied here
    const auto head = find_part("head.weight", here);
    const bool is_head = head && module.contains(head->around("token_embedding.weight"));
    for (const auto& original : entry.ours) {
      const auto found = theirs.find(where.around(original));
      if (found == theirs.end()) continue;
      if (!theirs.at(name).defined() || !found->second.defined()) return;
      tied.push_back({text, name, found->first, is_head});
      used.emplace(name, text);
      return;
    }
    for (const auto& original : entry.ours) {
      const auto ours_names = detail::translated_name(map, where.around(original));
      if (ours_names.size() != 1 || !module.contains(ours_names[0])) continue;
      if (!ours.emplace(ours_names[0], theirs.at(name)).second) continue;
      origins.emplace(ours_names[0], std::vector{name});
      stand_ins.insert(ours_names[0]);
      used.emplace(name, text);
      return;
    }
  }

  void pack(const Entry& entry, const std::string& text, const Surroundings& where) {
    std::vector<at::Tensor> parts, shapes;
    std::vector<std::string> origin;
    for (const auto& part : entry.theirs) {
      const auto found = theirs.find(where.around(part));
      HEED_CHECK(found != theirs.end(), "name map: {}: the file holds no {}", text,
                 where.around(part));
      HEED_CHECK(found->second.dim() >= 1 &&
                     (parts.empty() || found->second.sizes().slice(1) == parts[0].sizes().slice(1)),
                 "name map: {}: {} {} must equal the others in all but dim 0", text, found->first,
                 detail::shape(found->second));
      used.emplace(found->first, text);
      origin.push_back(found->first);
      parts.push_back(found->second);
      shapes.push_back(detail::shape_alone(found->second));
    }
    const auto name = add(text, entry.within, where.around(entry.ours[0]), at::cat(shapes), origin);
    packed.emplace(name, std::move(parts));
  }

  void split(const Entry& entry, const std::string& text, const Surroundings& where,
             const std::string& name, const at::Tensor& tensor) {
    std::vector<int64_t> rows;
    int64_t total = 0;
    for (const auto& part : entry.ours) {
      const auto name_there = map.in_module(entry.within, where.around(part));
      const auto* const found = module.find(name_there);
      HEED_CHECK(found, "name map: {}: the module holds no {}", text, name_there);
      rows.push_back(found->dim() >= 1 ? found->size(0) : 0);
      total += rows.back();
    }
    const bool by_column = entry.kind == Kind::transpose_split && tensor.dim() == 2;
    const auto whole = by_column ? tensor.t() : tensor;
    HEED_CHECK(whole.dim() >= 1 && whole.size(0) == total,
               "name map: {}: {} {} must have {} {}, those of its parts together", text, name,
               detail::shape(tensor), total, by_column ? "columns" : "rows");
    const auto parts = whole.split_with_sizes(rows);
    for (size_t i = 0; i < parts.size(); ++i) {
      add(text, entry.within, where.around(entry.ours[i]), parts[i], {name});
    }
  }

  void unstack(const Entry& entry, const std::string& text, const Surroundings& where,
               const std::string& name, const at::Tensor& tensor) {
    const auto count = tensor.dim() == 0 ? 0 : tensor.size(0);
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int64_t> rows;
      for (const auto& part : entry.ours) {
        const auto name_there =
            map.in_module(entry.within, where.around(detail::name_in_list(entry.list, i, part)));
        const auto* const found = module.find(name_there);
        HEED_CHECK(found, "name map: {}: the module holds no {}", text, name_there);
        rows.push_back(found->dim() >= 1 ? found->size(0) : 0);
      }
      const auto parts = detail::unstacked(tensor, i, rows, entry.layout);
      HEED_CHECK(!parts.empty(), "name map: {}: {} {} must have slices of {} rows{}", text, name,
                 detail::shape(tensor), fmt::join(rows, " and "),
                 entry.layout.transposed() ? " that are transposed" : "");
      for (size_t part = 0; part < parts.size(); ++part) {
        add(text, entry.within, where.around(detail::name_in_list(entry.list, i, entry.ours[part])),
            parts[part], {name});
      }
    }
  }

  void split_heads(const Entry& entry, const std::string& text, const Surroundings& where,
                   const std::string& name, const at::Tensor& tensor) {
    const auto count = static_cast<int64_t>(entry.ours.size());
    const auto parts = detail::head_parts(tensor, entry.heads, count);
    HEED_CHECK(!parts.empty(), "name map: {}: {} {} must have rows for {} parts of {} heads", text,
               name, detail::shape(tensor), count, entry.heads);
    for (size_t i = 0; i < parts.size(); ++i) {
      auto sizes = tensor.sizes().vec();
      sizes[0] /= count;
      const auto shape = detail::shape_alone(tensor).new_empty(sizes);
      packed.emplace(add(text, entry.within, where.around(entry.ours[i]), shape, {name}), parts[i]);
    }
  }
};

std::optional<Surroundings> NameMap::find_ours(const Entry& entry, const std::string& ours,
                                               const std::string& name) {
  return entry.kind == Kind::unstack ? detail::find_in_list(entry.list, ours, name)
                                     : find_part(ours, name);
}

NameMap& NameMap::rename(std::string theirs, std::string ours) {
  return rename_any({std::move(theirs)}, std::move(ours));
}

NameMap& NameMap::rename_any(std::vector<std::string> theirs, std::string ours) {
  entries_.push_back({Kind::rename, std::move(theirs), {std::move(ours)}});
  return *this;
}

NameMap& NameMap::pack(std::vector<std::string> theirs, std::string ours) {
  entries_.push_back({Kind::pack, std::move(theirs), {std::move(ours)}});
  return *this;
}

NameMap& NameMap::split(std::string theirs, std::vector<std::string> ours) {
  entries_.push_back({Kind::split, {std::move(theirs)}, std::move(ours)});
  return *this;
}

NameMap& NameMap::split_heads(std::string theirs, std::vector<std::string> ours, int64_t heads) {
  detail::check_positive("NameMap::split_heads", "heads", heads);
  entries_.push_back({Kind::split_heads, {std::move(theirs)}, std::move(ours), heads});
  return *this;
}

NameMap& NameMap::transpose(std::string theirs, std::string ours) {
  entries_.push_back({Kind::transpose, {std::move(theirs)}, {std::move(ours)}});
  return *this;
}

NameMap& NameMap::transpose_split(std::string theirs, std::vector<std::string> ours) {
  entries_.push_back({Kind::transpose_split, {std::move(theirs)}, std::move(ours)});
  return *this;
}

NameMap& NameMap::unstack(std::string theirs, std::string list, std::vector<std::string> ours,
                          const StackLayout& layout) {
  entries_.push_back(
      {Kind::unstack, {std::move(theirs)}, std::move(ours), 0, {}, std::move(list), layout});
  return *this;
}

NameMap& NameMap::unsqueeze(std::string theirs, std::string ours, int64_t dims) {
  detail::check_positive("NameMap::unsqueeze", "dims", dims);
  entries_.push_back({Kind::unsqueeze, {std::move(theirs)}, {std::move(ours)}, dims});
  return *this;
}

NameMap& NameMap::inside(std::string theirs, std::string ours) {
  paths_.push_back({std::move(theirs), std::move(ours)});
  return *this;
}

NameMap& NameMap::drop(std::string theirs) {
  entries_.push_back({Kind::drop, {std::move(theirs)}, {}});
  return *this;
}

NameMap& NameMap::tied(std::string theirs, std::vector<std::string> originals) {
  entries_.push_back({Kind::tied, {std::move(theirs)}, std::move(originals)});
  return *this;
}

NameMap& NameMap::submodule(std::string ours, const NameMap& names) {
  HEED_CHECK(!ours.empty(), "{}: ours must not be empty", kSubmodule);
  HEED_CHECK(submodule_.empty() && names.submodule_.empty(),
             "{}: ours ({}) must be the only submodule of the map; it has {}", kSubmodule, ours,
             submodule_.empty() ? names.submodule_ : submodule_);
  for (auto entry : names.entries_) {
    entry.within = ours;
    entries_.push_back(std::move(entry));
  }
  for (auto path : names.paths_) {
    path.within = ours;
    paths_.push_back(std::move(path));
  }
  submodule_ = std::move(ours);
  return *this;
}

NamedTensors NameMap::apply(const NamedTensors& tensors, const torch::nn::Module& module) const {
  auto applied = detail::translate(*this, tensors, detail::weights_of(module));
  detail::check_tied(applied, tensors, {});
  for (auto& [name, parts] : applied.packed) {
    for (auto& part : parts) part = detail::with_values(part);
    applied.tensors[name] = at::cat(parts);
  }
  return std::move(applied.tensors);
}

namespace detail {

std::vector<std::vector<at::Tensor>> head_parts(const at::Tensor& whole, int64_t heads,
                                                int64_t count) {
  const auto all = whole.dim() == 0 ? 0 : whole.size(0);
  if (all == 0 || all % heads != 0 || all / heads % count != 0) return {};
  const auto rows = all / heads / count;
  std::vector<std::vector<at::Tensor>> parts(static_cast<size_t>(count));
  for (int64_t row = 0; row < all;) {
    for (auto& part : parts) {
      part.push_back(whole.narrow(0, row, rows));
      row += rows;
    }
  }
  return parts;
}

Translation translate(const NameMap& map, const NamedTensors& theirs, const ModuleTensors& module) {
  NameMap::Applied applied{theirs, module, map};
  for (const auto& entry : map.entries_) applied.apply(entry);
  for (const auto& [name, tensor] : theirs) {
    if (applied.used.count(name) > 0) continue;
    applied.add("names kept", map.submodule_, name, tensor, {name});
  }
  return {std::move(applied.ours), std::move(applied.origins), std::move(applied.packed),
          std::move(applied.tied)};
}

std::vector<std::string> translated_name(const NameMap& map, const std::string& theirs) {
  for (const auto& entry : map.entries_) {
    if (entry.kind == NameMap::Kind::tied) continue;  // where a module has it, it keeps its name
    for (const auto& candidate : entry.theirs) {
      const auto where = find_part(candidate, theirs);
      if (!where) continue;
      std::vector<std::string> names;
      names.reserve(entry.ours.size());
      for (const auto& part : entry.ours) {
        const bool is_stack = entry.kind == NameMap::Kind::unstack;
        const auto name = is_stack ? name_in_list(entry.list, 0, part) : part;
        names.push_back(map.in_module(entry.within, where->around(name)));
      }
      return names;
    }
  }
  return {map.in_module(map.submodule_, theirs)};
}

NameMap without_prefix(NameMap map, const std::string& prefix) {
  const auto strip = [&](std::string& name) {
    if (name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
  };
  for (auto& entry : map.entries_) {
    for (auto& name : entry.theirs) strip(name);
    if (entry.kind != NameMap::Kind::tied) continue;
    for (auto& original : entry.ours) strip(original);
  }
  for (auto& path : map.paths_) strip(path.theirs);
  return map;
}

NameMap without_modules(NameMap map, const std::vector<std::string>& theirs) {
  const auto is_left_out = [&](const std::string& name) {
    return std::any_of(theirs.begin(), theirs.end(), [&](const auto& module) {
      const auto where = find_part(module, name);
      return where && where->before.empty();
    });
  };
  NameMap result;
  for (const auto& module : theirs) result.drop(module);
  for (auto& entry : map.entries_) {
    if (!std::all_of(entry.theirs.begin(), entry.theirs.end(), is_left_out)) {
      result.entries_.push_back(std::move(entry));
    }
  }
  for (auto& path : map.paths_) {
    if (!is_left_out(path.theirs)) result.paths_.push_back(std::move(path));
  }
  result.submodule_ = std::move(map.submodule_);
  return result;
}

std::string tied_unequally(const Translation& translation, const NamedTensors& theirs,
                           const TensorShards& shards, const char* advice) {
  for (const auto& [entry, name, original, is_head] : translation.tied) {
    auto one = theirs.at(name), other = theirs.at(original);
    for (const auto& [ours, shard] : shards) {
      const auto found = translation.tensors.find(ours);
      const bool is_it = found != translation.tensors.end() &&
                         translation.origins.at(ours) == std::vector{original} &&
                         found->second.sizes() == theirs.at(original).sizes();
      if (!is_it || one.sizes() != other.sizes()) continue;
      one = part_of(one, shard);
      other = part_of(other, shard);
    }
    // When a map is inverted, the two are one tensor without values, which equals itself.
    if (!have_equal_values(one, other)) {
      return fmt::format("name map: {}: {} must equal {}, to which it is tied in the module{}",
                         entry, name, original, is_head ? advice : "");
    }
  }
  return "";
}

void check_tied(const Translation& translation, const NamedTensors& theirs,
                const TensorShards& shards) {
  const auto unequal = tied_unequally(translation, theirs, shards,
                                      "; with DecoderOptions::tied_head(false) it is not");
  HEED_CHECK(unequal.empty(), "{}", unequal);
}

}  // namespace detail

namespace name_maps {

namespace {

NameMap projections(const char* query, const char* key, const char* value, const char* output) {
  return NameMap()
      .rename(query, "fc_q")
      .rename(key, "fc_k")
      .rename(value, "fc_v")
      .rename(output, "fc_out");
}

/// The names that the layers of torch.nn.TransformerEncoder and TransformerDecoder share.
NameMap transformer() {
  return NameMap()
      .split("self_attn.in_proj_weight",
             {"attention.fc_q.weight", "attention.fc_k.weight", "attention.fc_v.weight"})
      .split("self_attn.in_proj_bias",
             {"attention.fc_q.bias", "attention.fc_k.bias", "attention.fc_v.bias"})
      .rename("self_attn.out_proj", "attention.fc_o")
      .rename("linear1", "feed_forward.fc_in")
      .rename("linear2", "feed_forward.fc_out")
      .rename("norm1", "attention_norm")
      .rename("norm", "final_norm")
      .inside("layers", "blocks");
}

}  // namespace

NameMap w_q_w_o() { return projections("W_q", "W_k", "W_v", "W_o"); }

NameMap q_linear_out() { return projections("q_linear", "k_linear", "v_linear", "out"); }

NameMap w_q_fc() { return projections("W_Q", "W_K", "W_V", "fc"); }

NameMap w_qs_fc() {
  return NameMap()
      .rename("w_qs", "attention.fc_q")
      .rename("w_ks", "attention.fc_k")
      .rename("w_vs", "attention.fc_v")
      .rename("fc", "attention.fc_out");
}

NameMap query_proj() {
  return NameMap()
      .rename("query_proj", "fc_q")
      .rename("key_proj", "fc_k")
      .rename_any({"value_proj", "valye_proj"}, "fc_v");
}

NameMap proj() { return NameMap().rename("proj", "qkv"); }

NameMap packed_proj() {
  return NameMap().split("packed_proj", {"fc_q", "fc_k", "fc_v"}).rename("out_proj", "fc_out");
}

NameMap q_proj() { return projections("q_proj", "k_proj", "v_proj", "out_proj"); }

NameMap in_proj() {
  return NameMap()
      .split("in_proj_weight", {"fc_q.weight", "fc_k.weight", "fc_v.weight"})
      .split("in_proj_bias", {"fc_q.bias", "fc_k.bias", "fc_v.bias"})
      .rename("out_proj", "fc_out");
}

NameMap in_proj_separate() {
  return NameMap()
      .rename("q_proj_weight", "fc_q.weight")
      .rename("k_proj_weight", "fc_k.weight")
      .rename("v_proj_weight", "fc_v.weight")
      .split("in_proj_bias", {"fc_q.bias", "fc_k.bias", "fc_v.bias"})
      .rename("out_proj", "fc_out");
}

NameMap transformer_encoder() { return transformer().rename("norm2", "feed_forward_norm"); }

NameMap transformer_decoder() {
  return transformer()
      .split("multihead_attn.in_proj_weight",
             {"cross_attention.fc_q.weight", "cross_attention.fc_k.weight",
              "cross_attention.fc_v.weight"})
      .split(
          "multihead_attn.in_proj_bias",
          {"cross_attention.fc_q.bias", "cross_attention.fc_k.bias", "cross_attention.fc_v.bias"})
      .rename("multihead_attn.out_proj", "cross_attention.fc_o")
      .rename("norm2", "cross_attention_norm")
      .rename("norm3", "feed_forward_norm");
}

}  // namespace name_maps

}  // namespace heed
