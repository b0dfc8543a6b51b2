// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/name_maps.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weights/dotted_names.h"

/// Tensors of all modules of a list that are one tensor of a file, as StackLayout says.

namespace heed::detail {

/// The name of a tensor, or of a module, in module `index` of a list.
std::string name_in_list(const std::string& list, int64_t index, const std::string& name);

/// Finds `part` in any module of `list` in the dotted `name`: what is before the list, and what is
/// after the part.
std::optional<Surroundings> find_in_list(const std::string& list, const std::string& part,
                                         const std::string& name);

/// Views of the tensors of module `index` in a stack. They have `rows` rows. Empty if the rows of
/// the stack are others.
std::vector<at::Tensor> unstacked(const at::Tensor& stack, int64_t index,
                                  const std::vector<int64_t>& rows, const StackLayout& layout);

/// The stack of `count` modules, of which each has as many of the tensors, one module's after the
/// other's.
at::Tensor stacked(const std::vector<at::Tensor>& tensors, int64_t count,
                   const StackLayout& layout);

}  // namespace heed::detail
