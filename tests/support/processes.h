// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace heed::test {

/// Runs `child` in a process of its own, `parent` here meanwhile, and says which signal ended the
/// child; 0 where it came to its end.
template <typename Child, typename Parent>
int signal_that_ends(Child&& child, Parent&& parent) {
  const auto process = ::fork();
  if (process == 0) {
    child();
    ::_exit(0);
  }
  parent(process);
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace heed::test
