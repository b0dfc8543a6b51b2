// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace heed::test {

/// Collects LibTorch's warnings of this thread while it lives.
class Warnings : c10::WarningHandler {
 public:
  const std::vector<std::string>& messages() const { return messages_; }

 private:
  void process(const c10::Warning& warning) override { messages_.push_back(warning.msg()); }

  std::vector<std::string> messages_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace heed::test
