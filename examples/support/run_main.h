// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>

namespace heed::examples {

/// LibTorch's allocator begins its message with a place in its source; this removes it.
inline std::string message_of(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  const auto allocator = message.find("DefaultCPUAllocator: ");
  return allocator == std::string::npos ? message : "out of memory; " + message.substr(allocator);
}

/// Whether all output has reached its file or pipe.
inline bool output_is_whole() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
}

/// Writes text to stdout at once.
inline void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) throw std::runtime_error("cannot write to standard output");
}

/// Runs the body of a program. An exception, or output that was lost, becomes one line on stderr
/// and exit status 1.
template <typename Body>
int run_main(const std::string& program, Body&& body) {
  // A file beyond `ulimit -f` is then an error like a full disk, and the process goes on.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int status = body();
    if (output_is_whole()) return status;
    std::cerr << program << ": cannot write to standard output\n";
    return status == 0 ? 1 : status;
  } catch (const c10::Error& error) {
    std::cerr << program << ": " << message_of(error) << '\n';
  } catch (const std::bad_alloc&) {
    std::cerr << program << ": out of memory\n";
  } catch (const std::exception& error) {
    std::cerr << program << ": " << error.what() << '\n';
  }
  return 1;
}

}  // namespace heed::examples
