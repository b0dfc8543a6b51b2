// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/pretrained/blueprint.h"
#include "models/pretrained/config.h"

namespace heed::detail {

/// The first of architectures; empty if there is none.
std::string read_architecture(const Config& config);

/// Whether an architecture is a decoder without a head, such as "Qwen3Model".
bool is_without_head(const std::string& architecture);

/// An architecture with another end: "Qwen3ForCausalLM" and "Model" make "Qwen3Model".
std::string with_end(const std::string& architecture, std::string_view end);

/// Gives a family's blueprint the head for a task. Leaves it as it is if there is none for the
/// task in the family. Throws c10::ValueError when a field is not supported.
void add_head(const Config& config, Task task, Blueprint& blueprint);

/// Takes the head from the blueprint of a decoder.
void remove_head(Blueprint& blueprint);

/// The names of heads in files of decoders.
const std::vector<std::string>& names_of_heads();

}  // namespace heed::detail
