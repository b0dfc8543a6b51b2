// SPDX-License-Identifier: BSD-3-Clause
#include "work_limit.h"

#include <limits>
#include <stdexcept>

namespace heed::examples::text {

namespace {

constexpr int64_t kStepsOfText = 5000;  // for each byte of it, and a few beside
constexpr size_t kBytesBeside = 64;
constexpr int64_t kMostAtOnce = std::numeric_limits<int64_t>::max() / 4;

thread_local WorkLimit* innermost = nullptr;

}  // namespace

WorkLimit WorkLimit::of_text(size_t bytes) {
  return WorkLimit(static_cast<int64_t>(bytes + kBytesBeside) * kStepsOfText);
}

WorkLimit::WorkLimit(int64_t steps) : outer_(innermost), left_(steps) { innermost = this; }

WorkLimit::~WorkLimit() { innermost = outer_; }

void WorkLimit::spend(int64_t steps) {
  if (innermost == nullptr) return;
  innermost->left_ -= steps < kMostAtOnce ? steps : kMostAtOnce;
  if (innermost->left_ < 0) {
    throw std::runtime_error("the text takes too many steps of the tokenizer's rules");
  }
}

void WorkLimit::spend_bytes(size_t bytes) { spend(static_cast<int64_t>(bytes) * kStepsOfByte); }

}  // namespace heed::examples::text
