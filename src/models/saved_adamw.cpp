// SPDX-License-Identifier: BSD-3-Clause
#include "models/saved_adamw.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <heed/fused_adamw.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

namespace heed::detail {

namespace {

using c10::IValue;
using torch::optim::AdamWOptions;
using torch::serialize::InputArchive;

/// Whether the archive holds a value of this name and kind.
bool holds(InputArchive& archive, const std::string& name, bool (IValue::*is_kind)() const) {
  IValue value;
  return archive.try_read(name, value) && (value.*is_kind)();
}

/// Whether the archive holds a tensor of this name, or nothing.
bool may_hold_tensor(InputArchive& archive, const std::string& name) {
  IValue value;
  return !archive.try_read(name, value) || value.isTensor();
}

/// Opens the archive of this name in another one. Returns false if there is none.
bool open_archive(InputArchive& archive, const std::string& name, InputArchive& inner) {
  if (!holds(archive, name, &IValue::isModule)) return false;
  archive.read(name, inner);
  return true;
}

/// Whether LibTorch can read the options of a group.
bool holds_options(InputArchive& archive) {
  IValue betas;
  if (!archive.try_read("betas", betas) || !betas.isTuple()) return false;
  const auto& both = betas.toTupleRef().elements();
  return both.size() == 2 && both[0].isDouble() && both[1].isDouble() &&
         holds(archive, "lr", &IValue::isDouble) && holds(archive, "eps", &IValue::isDouble) &&
         holds(archive, "weight_decay", &IValue::isDouble) &&
         holds(archive, "amsgrad", &IValue::isBool);
}

/// Whether LibTorch can read the state of a parameter.
bool holds_state(InputArchive& archive) {
  const auto names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master"};
  return holds(archive, "step", &IValue::isInt) &&
         std::all_of(names.begin(), names.end(),
                     [&](const char* name) { return may_hold_tensor(archive, name); });
}

/// The number of parts that LibTorch writes as a tensor.
std::optional<int64_t> count_in(InputArchive& archive, const std::string& name) {
  IValue value;
  if (!archive.try_read(name, value) || !value.isTensor()) return std::nullopt;
  const auto& count = value.toTensor();
  if (!count.defined() || count.scalar_type() != at::kLong || count.numel() != 1) {
    return std::nullopt;
  }
  return count.item<int64_t>();
}

/// The address that LibTorch writes as a name.
std::optional<void*> address_of(const std::string& name) {
  uintptr_t address = 0;
  const auto* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, address);
  if (error != std::errc() || stop != end) return std::nullopt;
  return reinterpret_cast<void*>(address);  // NOLINT: LibTorch's way
}

bool read_states(InputArchive& archive, SavedAdamW& saved) {
  for (const auto& name : archive.keys()) {
    const auto address = address_of(name);
    InputArchive of_state;
    if (!address || !open_archive(archive, name, of_state) || !holds_state(of_state)) return false;
    auto state = std::make_unique<FusedAdamWParamState>();
    state->serialize(of_state);
    saved.states[*address] = std::move(state);
  }
  return true;
}

bool read_group(InputArchive& archive, SavedAdamW& saved) {
  const auto count = count_in(archive, "params/size");
  InputArchive of_options;
  if (!count || !open_archive(archive, "options", of_options) || !holds_options(of_options))
    return false;
  auto& addresses = saved.addresses.emplace_back();
  for (int64_t i = 0; i < *count; ++i) {
    IValue name;
    const bool is_there = archive.try_read(fmt::format("params/{}", i), name) && name.isString();
    const auto address = is_there ? address_of(name.toStringRef()) : std::nullopt;
    if (!address) return false;
    addresses.push_back(*address);
  }
  auto options = std::make_unique<AdamWOptions>();
  options->serialize(of_options);
  saved.options.push_back(std::move(options));
  return true;
}

bool read_groups(InputArchive& archive, SavedAdamW& saved) {
  const auto count = count_in(archive, "param_groups/size");
  if (!count) return false;
  for (int64_t i = 0; i < *count; ++i) {
    InputArchive group;
    if (!open_archive(archive, fmt::format("param_groups/{}", i), group)) return false;
    if (!read_group(group, saved)) return false;
  }
  return true;
}

}  // namespace

std::optional<SavedAdamW> read_adamw(InputArchive& archive) {
  SavedAdamW saved;
  InputArchive states, groups;
  const bool is_adamws = open_archive(archive, "state", states) && read_states(states, saved) &&
                         open_archive(archive, "param_groups", groups) &&
                         read_groups(groups, saved);
  return is_adamws ? std::optional(std::move(saved)) : std::nullopt;
}

}  // namespace heed::detail
