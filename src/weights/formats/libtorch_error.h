// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace heed::detail {

/// LibTorch's error message, without the place in its source and the advice that follows.
std::string first_sentence(std::string text);

}  // namespace heed::detail
