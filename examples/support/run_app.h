#pragma once

#include <CLI/CLI.hpp>

#include "run_main.h"

namespace heed::examples {

/// Runs the body of a program by run_main once its arguments are read.
template <typename Body>
int run_app(CLI::App& app, int argc, char** argv, Body&& body) {
  return run_main(app.get_name(), [&]() -> int {
    CLI11_PARSE(app, argc, argv);
    return body();
  });
}

}  // namespace heed::examples
