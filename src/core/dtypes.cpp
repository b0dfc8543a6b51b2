// SPDX-License-Identifier: BSD-3-Clause
#include "core/dtypes.h"

#include <vector>

namespace heed::detail {

std::string attention_dtypes() {
#define HEED_NAME(name, type, compute_type, torch_name) #torch_name,
  const std::vector<std::string> names = {HEED_ELEMENT_TYPES(HEED_NAME)};
#undef HEED_NAME
  std::string text = names.front();
  for (size_t i = 1; i < names.size(); ++i) {
    text += (i + 1 < names.size() ? ", " : " or ") + names[i];
  }
  return text;
}

}  // namespace heed::detail
