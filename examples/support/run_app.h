#pragma once

#include <CLI/CLI.hpp>

#include "run_main.h"

namespace heed::examples {

/// Parses the arguments of a program, then runs its body with run_main.
template <typename Body>
int run_app(CLI::App& app, int argc, char** argv, Body&& body) {
  return run_main(app.get_name(), [&]() -> int {
    CLI11_PARSE(app, argc, argv);
    return body();
  });
}

}  // namespace heed::examples
