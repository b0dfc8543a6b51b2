#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>

namespace heed::examples {

/// Runs the body of a program; an exception becomes one line on stderr and exit status 1.
template <typename Body>
int run_main(const char* program, Body&& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    std::cerr << program << ": " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << program << ": " << error.what() << '\n';
  }
  return 1;
}

}  // namespace heed::examples
