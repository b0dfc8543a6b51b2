// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/checkpoint.h>

#include <functional>
#include <vector>

namespace heed::detail {

/// `checkpoint` for a function of heed's: errors begin with `caller`, and call the inputs `names`.
at::Tensor checkpoint_named(
    const char* caller, std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs, std::vector<const char*> names);

}  // namespace heed::detail
