// SPDX-License-Identifier: BSD-3-Clause
#include <heed/speculative.h>

#include <utility>

#include "core/checks.h"
#include "core/draft_tree.h"
#include "core/offsets.h"
#include "core/to_device.h"

namespace heed {

AcceptedDraft accept_draft(const at::Tensor& tokens, at::IntArrayRef parents,
                           const at::Tensor& chosen) {
  constexpr auto kName = "accept_draft";
  const auto count = static_cast<int64_t>(parents.size());
  HEED_CHECK(count >= 1, "{}: parents must not be empty", kName);
  for (const auto& [name, tensor] : {std::pair("tokens", tokens), std::pair("chosen", chosen)}) {
    detail::check_numbers(kName, name, tensor);
    HEED_CHECK(tensor.sizes() == at::IntArrayRef({count}), "{}: {} {} must be [{}], as parents",
               kName, name, detail::shape(tensor), count);
  }
  detail::check_parents(kName, "parents", 0, parents);
  for (int64_t i = 1; i < count; ++i) {
    HEED_CHECK(parents[i] >= 0, "{}: parents[{}] (-1) must be at least 0: only the first has none",
               kName, i);
  }
  const auto drafted = detail::to_host(tokens), choices = detail::to_host(chosen);
  AcceptedDraft accepted{{0}, choices[0]};
  for (int64_t i = 1; i < count; ++i) {  // parents come before children
    if (parents[i] != accepted.path.back() || drafted[i] != accepted.next) continue;
    accepted.path.push_back(i);
    accepted.next = choices[i];
  }
  return accepted;
}

}  // namespace heed
