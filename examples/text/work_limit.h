// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed::examples::text {

/// While it exists, what this thread does to a text may take so many steps: some ten times as many
/// as the rules of known tokenizers take. The rules are a file's, and the file may be anybody's.
///
/// A step takes some nanoseconds. Each byte that a rule writes counts as kStepsOfByte of them.
class WorkLimit {
 public:
  static constexpr int64_t kStepsOfByte = 32;

  /// For a text of so many bytes.
  static WorkLimit of_text(size_t bytes);
  explicit WorkLimit(int64_t steps);
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

  /// Throws std::runtime_error when this thread has a limit that is reached.
  static void spend(int64_t steps);
  static void spend_bytes(size_t bytes);

 private:
  WorkLimit* outer_;
  int64_t left_;
};

}  // namespace heed::examples::text
