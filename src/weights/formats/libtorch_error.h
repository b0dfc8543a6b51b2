#pragma once

#include <string>

namespace heed::detail {

/// What LibTorch says, without the place in its source and the advice that follows.
std::string first_sentence(std::string text);

}  // namespace heed::detail
