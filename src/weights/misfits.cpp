// SPDX-License-Identifier: BSD-3-Clause
#include "weights/misfits.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "core/checks.h"
#include "weights/dotted_names.h"
#include "weights/formats/bytes.h"
#include "weights/formats/other_files.h"
#include "weights/named.h"
#include "weights/shards.h"
#include "weights/similar_names.h"

namespace heed::detail {

namespace {

using Names = std::vector<std::string>;

/// Missing names, each followed by the most similar unexpected name of the file if one is similar.
Names with_nearest(const Names& missing, const std::vector<Unexpected>& unexpected) {
  // A longer list shows its pattern by itself.
  if (missing.size() * unexpected.size() > kMostComparedNames) return missing;
  Names result;
  for (const auto& name : missing) {
    const Unexpected* nearest = nullptr;
    auto least = least_unlike(name);
    for (const auto& other : unexpected) {
      const auto distance = unlikeness(name, other.name, least);
      if (!distance) continue;
      least = *distance;
      nearest = &other;
    }
    result.push_back(nearest == nullptr ? name
                                        : fmt::format("{} (nearest in the file: {})", name,
                                                      c10::Join(", ", nearest->in_file)));
  }
  return result;
}

Names with_translation(const std::vector<Unexpected>& unexpected) {
  Names result;
  for (const auto& [name, in_file, note] : unexpected) {
    auto theirs = c10::Join(", ", in_file);
    if (!ends_with(theirs, name)) theirs += fmt::format(" (by the name map {})", name);
    result.push_back(note.empty() ? theirs : fmt::format("{} ({})", theirs, note));
  }
  return result;
}

/// Where the first number between dots begins and ends in a word, text[from, to).
std::optional<std::pair<size_t, size_t>> find_number(const std::string& text, size_t from,
                                                     size_t to) {
  const auto is_digit = [&](size_t i) { return text[i] >= '0' && text[i] <= '9'; };
  for (size_t first = from; first < to;) {
    auto last = first;
    while (last < to && is_digit(last)) ++last;
    const bool fits = last > first && last - first < 10;  // an int64_t
    if (fits && last < to && text[last] == '.') return std::pair(first, last);
    while (last < to && text[last] != '.') ++last;
    first = std::min(last + 1, to);
  }
  return std::nullopt;
}

/// A line split at the number of its layer: the texts around its places, and the number.
struct Folded {
  Names parts;
  std::string layer;  // empty where there is none
};

/// Splits a line at the number of its layer: the first number of the first word that has one.
/// Later words may hold another name of the same tensor, with the same number.
Folded without_layer(const std::string& line) {
  Folded folded;
  size_t done = 0, end = 0;
  for (size_t word = 0; word < line.size(); word = end + 1) {
    end = std::min(line.find(' ', word), line.size());
    const auto place = find_number(line, word, end);
    if (!place) continue;
    const auto number = line.substr(place->first, place->second - place->first);
    if (folded.layer.empty()) folded.layer = number;
    if (number != folded.layer) continue;
    folded.parts.push_back(line.substr(done, place->first - done));
    done = place->second;
  }
  folded.parts.push_back(line.substr(done));
  return folded;
}

/// Writes layers as "{0..3,7}", and a single one as its number.
std::string ranges(const std::vector<int64_t>& layers) {
  if (layers.size() == 1) return std::to_string(layers[0]);
  Names runs;
  for (size_t i = 0; i < layers.size();) {
    auto last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    runs.push_back(last == i ? std::to_string(layers[i])
                             : fmt::format("{}..{}", layers[i], layers[last]));
    i = last + 1;
  }
  return "{" + c10::Join(",", runs) + "}";
}

/// Joins lines that differ only in the number of a layer: "blocks.{0..11}.norm.weight".
Names fold(const Names& lines) {
  std::vector<std::pair<Names, std::vector<int64_t>>> groups;
  std::map<Names, size_t> known;
  for (const auto& line : lines) {
    const auto [parts, layer] = without_layer(line);
    const auto [group, is_new] = known.emplace(parts, groups.size());
    if (is_new) groups.push_back({parts, {}});
    if (!layer.empty()) groups[group->second].second.push_back(std::stoll(layer));
  }
  Names result;
  for (auto& [parts, layers] : groups) {
    std::sort(layers.begin(), layers.end());
    result.push_back(layers.empty() ? parts[0] : c10::Join(ranges(layers), parts));
  }
  return result;
}

/// Parts of names, with the number of names that each would make fit.
using Counts = std::map<std::string, size_t>;

/// The prefixes that names of the file have before missing names, before more of them than there
/// are names that need no prefix, and so would no longer fit.
Counts missing_prefixes(const Misfits& misfits) {
  const std::set<std::string_view> missing(misfits.missing.begin(), misfits.missing.end());
  std::ptrdiff_t most_dots = 0;  // in a missing name: the end of a name that has more is none
  for (const auto& name : missing) {
    most_dots = std::max(most_dots, std::count(name.begin(), name.end(), '.'));
  }
  Counts found;
  for (const auto& other : misfits.unexpected) {
    const std::string_view theirs = other.name;
    auto dot = theirs.rfind('.');
    for (std::ptrdiff_t dots = 0; dots <= most_dots && dot != std::string_view::npos && dot > 0;
         ++dots, dot = theirs.rfind('.', dot - 1)) {
      if (missing.count(theirs.substr(dot + 1)) == 0) continue;
      const auto prefix = misfits.prefix + std::string(theirs.substr(0, dot + 1));
      if (begins_with(other.in_file[0], prefix)) ++found[prefix];
    }
  }
  Counts better;
  for (const auto& [prefix, count] : found) {
    if (count > misfits.present) better.emplace(prefix, count);
  }
  return better;
}

/// The submodules in which the names of the file are missing names, all of them.
Counts missing_submodules(const Misfits& misfits) {
  if (!misfits.may_be_inside || misfits.unexpected.empty()) return {};
  const std::set<std::string> missing(misfits.missing.begin(), misfits.missing.end());
  const auto end = "." + misfits.unexpected[0].name;
  Counts found;
  for (const auto& name : misfits.missing) {
    if (name.size() <= end.size()) continue;
    const auto submodule = name.substr(0, name.size() - end.size());
    const bool has_all =
        ends_with(name, end) &&
        std::all_of(misfits.unexpected.begin(), misfits.unexpected.end(), [&](const auto& other) {
          return missing.count(submodule + "." + other.name) > 0;
        });
    if (has_all) found[submodule] = misfits.unexpected.size();
  }
  return found;
}

/// A name from the file or the module as advice shows it: whole, so that it can be copied.
std::string whole_in_quotes(const std::string& name) { return in_quotes(name, std::string::npos); }

/// The names with the greatest count, in quotes between two texts: some, if there are many.
std::string best_of(const Counts& counts, const char* before = "", const char* after = "") {
  constexpr size_t kMostShown = 3;
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  Names names;
  for (const auto& [name, count] : counts) {
    if (count == most->second && names.size() < kMostShown) {
      names.push_back(before + whole_in_quotes(name) + after);
    }
  }
  return c10::Join(" or ", names);
}

/// Whether a prefix makes all missing names fit.
bool make_all_fit(const Counts& prefixes, const Misfits& misfits) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const auto& prefix) { return prefix.second == misfits.missing.size(); });
}

std::string help(const Misfits& misfits, const Counts& prefixes, const Counts& submodules) {
  if (misfits.quantized) {
    return fmt::format(
        "\n  The weights were quantized by {}, which heed does not read: load those of which they "
        "were made, and call pack_weights",
        *misfits.quantized);
  }
  Names options;
  const auto& known = misfits.known;
  const bool has_map = known && !make_all_fit(prefixes, misfits);
  if (has_map) {
    if (!known->prefix.empty()) {
      options.push_back(fmt::format("prefix ({})", whole_in_quotes(known->prefix)));
    }
    options.push_back(fmt::format("name_map ({}, for {})", known->map, known->module));
  } else if (!prefixes.empty()) {
    options.push_back(fmt::format("prefix ({})", best_of(prefixes)));
  } else if (!submodules.empty()) {
    options.push_back(
        fmt::format("name_map ({})", best_of(submodules, "NameMap().rename(\"\", ", ")")));
  }
  const bool others = !misfits.missing.empty() && !misfits.unexpected.empty();
  if (!has_map && (misfits.transposed || (others && options.empty()))) {
    options.emplace_back("name_map");
  }
  if (misfits.dtype) options.push_back(fmt::format("dtype ({})", *misfits.dtype));
  auto text = options.empty() ? "" : "\n  LoadOptions that may help: " + c10::Join(", ", options);
  if (misfits.untied_head) text += "\n  DecoderOptions that may help: tied_head(false)";
  if (has_map && misfits.folder) {
    text += fmt::format("\n  load_pretrained (\"{}\") may make the model of this file",
                        *misfits.folder);
  }
  return text;
}

/// The dtype to which a tensor of the file is converted before it is compared with the module's.
at::ScalarType converted(const at::Tensor& theirs, const HeldTensor& ours,
                         const LoadOptions& options) {
  const auto dtype = theirs.scalar_type(), own = ours.whole.scalar_type();
  if (!options.dtype() || !at::isFloatingType(dtype)) return dtype;
  return ours.keeps_dtype && at::isFloatingType(own) ? own : *options.dtype();
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()), shape(tensor));
}

}  // namespace

std::string describe(const Misfits& misfits) {
  std::string text;
  const auto add = [&](const char* kind, const Names& names) {
    for (const auto& name : fold(names)) text += fmt::format("\n  {}: {}", kind, name);
  };
  const auto prefixes = missing_prefixes(misfits), submodules = missing_submodules(misfits);
  const bool are_found = make_all_fit(prefixes, misfits) || !submodules.empty() || misfits.known;
  add("missing", are_found ? misfits.missing : with_nearest(misfits.missing, misfits.unexpected));
  add("unexpected", with_translation(misfits.unexpected));
  add("misshapen", misfits.misshapen);
  return text.empty() ? text : text + help(misfits, prefixes, submodules);
}

Comparison::Comparison(const Contents& contents, const Translation& translation,
                       const LoadOptions& options)
    : module_(contents.ours), file_(contents.theirs), translation_(translation), options_(options) {
  std::set<std::string> ours;
  for (const auto& held : contents.ours) {
    compare(held);
    ours.insert(held.name);
  }
  for (const auto& [name, tensor] : translation_.tensors) {
    if (ours.count(name) == 0) add_unexpected(name);
  }
  for (const auto& [name, what] : file_.others) {
    if (ours.count(name) + file_.unheld.count(name) == 0) report_.passed_over.push_back(name);
  }
  std::sort(report_.passed_over.begin(), report_.passed_over.end());
  report_.missing = misfits_.missing;
  report_.misshapen = misfits_.misshapen;
  std::set<std::string> unexpected;
  for (const auto& each : misfits_.unexpected) {
    unexpected.insert(each.in_file.begin(), each.in_file.end());
  }
  report_.unexpected.assign(unexpected.begin(), unexpected.end());
}

std::string Comparison::misfits(bool can_untie) const {
  auto misfits = misfits_;
  misfits.prefix = options_.prefix();
  misfits.present = module_.size() - misfits.missing.size();
  misfits.untied_head = can_untie && has_untied_head();
  if (!misfits.missing.empty()) misfits.quantized = known_quantization(file_.tensors);
  if (!options_.name_map().empty()) return describe(misfits);
  misfits.may_be_inside = report_.loaded.empty() && misfits.misshapen.empty();
  if (!misfits.missing.empty() && !misfits.unexpected.empty()) {
    misfits.known = known_names(file_.tensors, misfits.missing);
  }
  if (!misfits.known) return describe(misfits);
  if (!misfits.known->prefix.empty()) misfits.known->prefix.insert(0, misfits.prefix);
  if (misfits.known->is_family) misfits.folder = pretrained_folder();
  return describe(misfits);
}

/// The folder of a model whose weights are this file.
std::optional<std::string> Comparison::pretrained_folder() const {
  const auto& file = file_.files.front();
  if (!file.is_file()) return std::nullopt;
  const auto parent = std::filesystem::path(file.path()).parent_path().string();
  const auto folder = parent.empty() ? "." : parent;
  const auto weights = weights_in(folder);
  std::error_code error;  // a file that cannot be looked at is none
  const bool is_whole = weights && std::filesystem::equivalent(*weights, file.path(), error) &&
                        std::filesystem::exists(folder + "/config.json", error);
  return is_whole ? std::optional(folder) : std::nullopt;
}

/// Whether the file has the embedding and the head of a Decoder whose own head is its embedding.
bool Comparison::has_untied_head() const {
  const std::string head = "head.weight";
  return std::any_of(
      misfits_.unexpected.begin(), misfits_.unexpected.end(), [&](const auto& other) {
        const auto where = find_part(head, other.name);
        if (!where || !where->after.empty()) return false;
        const auto embedding = where->around("token_embedding.weight");
        if (translation_.tensors.count(embedding) == 0) return false;
        const auto& theirs = translation_.tensors.at(other.name);
        return std::any_of(module_.begin(), module_.end(), [&](const auto& held) {
          return held.name == embedding && theirs.defined() && held.whole.sizes() == theirs.sizes();
        });
      });
}

void Comparison::compare(const HeldTensor& held) {
  const auto& name = held.name;
  const auto& ours = held.whole;
  const auto found = translation_.tensors.find(name);
  if (found != translation_.tensors.end()) {
    const auto& theirs = found->second;
    if (const auto what = unheld(name); !what.empty()) {
      return add_misshapen(held, what + " in the file" + origin_note(name));
    }
    const bool same_dtype = ours.scalar_type() == converted(theirs, held, options_);
    if (ours.sizes() == theirs.sizes() && same_dtype) {
      report_.loaded.push_back(name);
    } else {
      add_misshapen(held, describe_in_file(held, theirs));
      note_help(ours, theirs);
    }
  } else if (const auto other = file_.others.find(name); other != file_.others.end()) {
    add_misshapen(held, other->second + " in the file");
  } else {
    misfits_.missing.push_back(name);
  }
}

/// Notes a tensor that the module does not have. A program's constants are passed over: it
/// computes with more than a module's weights.
void Comparison::add_unexpected(const std::string& name) {
  const auto& origin = translation_.origins.at(name);
  const bool is_constant = std::all_of(origin.begin(), origin.end(), [&](const auto& each) {
    return file_.constants.count(each) > 0;
  });
  if (is_constant) {
    report_.passed_over.insert(report_.passed_over.end(), origin.begin(), origin.end());
  } else {
    misfits_.unexpected.push_back({name, in_file(name), unheld(name)});
  }
}

void Comparison::add_misshapen(const HeldTensor& held, const std::string& theirs) {
  auto ours = describe(held.tensor) + " in the module";
  if (held.shard) ours += ", a part of " + shape(held.whole);
  misfits_.misshapen.push_back(fmt::format("{} ({}, {})", held.name, ours, theirs));
}

void Comparison::note_help(const at::Tensor& ours, const at::Tensor& theirs) {
  if (ours.sizes() != theirs.sizes()) {
    misfits_.transposed |= ours.dim() == 2 && theirs.dim() == 2 && ours.size(0) == theirs.size(1) &&
                           ours.size(1) == theirs.size(0);
  } else if (at::isFloatingType(ours.scalar_type()) && at::isFloatingType(theirs.scalar_type())) {
    misfits_.dtype = c10::toString(ours.scalar_type());
  }
}

std::string Comparison::describe_in_file(const HeldTensor& held, const at::Tensor& theirs) const {
  const auto& name = held.name;
  const auto& origin = translation_.origins.at(name);
  Names shapes;
  for (const auto& each : origin) shapes.push_back(describe(file_.tensors.at(each)));
  auto text = c10::Join(", ", shapes) + " in the file";
  text += origin_note(name);
  const auto& first = file_.tensors.at(origin[0]);
  if (first.sizes() != theirs.sizes()) {
    text += fmt::format(", by the name map {}", shape(theirs));
  }
  const auto dtype = converted(theirs, held, options_);
  if (dtype != first.scalar_type()) {
    text += fmt::format(", by dtype {}", c10::toString(dtype));
  }
  return text;
}

Names Comparison::in_file(const std::string& name) const {
  Names names;
  for (const auto& each : translation_.origins.at(name)) {
    names.push_back(options_.prefix() + each);
  }
  return names;
}

std::string Comparison::origin_note(const std::string& name) const {
  return translation_.origins.at(name) == Names{name} ? "" : ": " + c10::Join(", ", in_file(name));
}

std::string Comparison::unheld(const std::string& name) const {
  const auto& origin = translation_.origins.at(name);
  return file_.unheld.count(origin[0]) > 0 ? file_.others.at(origin[0]) : "";
}

namespace {

std::string unequal_ties(const Contents& contents, const Translation& translation,
                         const LoadOptions& options) {
  return named("load_weights", [&] {
    return tied_unequally(translation, contents.theirs.tensors, options.shards(),
                          "; PretrainedOptions::untie_head(true) keeps both");
  });
}

}  // namespace

std::string misfits(const torch::nn::Module& module, const FileEntries& file,
                    const LoadOptions& options) {
  const Contents contents(module, options, [&] { return file; });
  Translation translation;
  try {
    translation = translated(module, contents.ours, contents.theirs, options);
  } catch (const c10::ValueError& error) {
    return std::string("; ") + error.what_without_backtrace();
  }
  auto problems = Comparison(contents, translation, options).misfits(/*can_untie=*/false);
  if (!problems.empty()) return problems;
  const auto unequal = unequal_ties(contents, translation, options);
  return unequal.empty() ? unequal : "; " + unequal;
}

bool has_unequal_ties(const torch::nn::Module& module, const FileEntries& file,
                      const LoadOptions& options) {
  const Contents contents(module, options, [&] { return file; });
  try {
    const auto translation = translated(module, contents.ours, contents.theirs, options);
    return !unequal_ties(contents, translation, options).empty();
  } catch (const c10::ValueError&) {
    return false;
  }
}

}  // namespace heed::detail
