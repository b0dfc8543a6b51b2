// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <heed/memory.h>

#include <chrono>
#include <iostream>
#include <string>

namespace heed::bench {

/// The main function of a program NAME FOLDER THREADS FORMAT: makes a Model of FOLDER and FORMAT,
/// and answers each word of standard input with a number: "start" with the seconds that this took,
/// others by model.answer(word).
template <typename Model>
int answer_lines(const char* name, int argc, char** argv) {
  constexpr int kArguments = 4;
  if (argc != kArguments) {
    std::cerr << name << " needs FOLDER THREADS FORMAT\n";
    return 2;
  }
  reuse_memory();
  at::set_num_threads(std::stoi(argv[2]));
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Model model(argv[1], argv[3]);
  const std::chrono::duration<double> seconds = Clock::now() - start;
  for (std::string work; std::cin >> work;) {
    std::cout << (work == "start" ? seconds.count() : model.answer(work)) << std::endl;
  }
  return 0;
}

}  // namespace heed::bench
