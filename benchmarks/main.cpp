#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <benchmark/benchmark.h>
#include <torch/version.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "rows.h"
#include "support/harness.h"

namespace {

/// The processor's name as Linux tells it, or "unknown".
std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  const std::string key = "model name";
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.compare(0, key.size(), key) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

void describe_machine() {
  benchmark::AddCustomContext("cpu", cpu_model());
  benchmark::AddCustomContext("isa", at::get_cpu_capability());
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  benchmark::AddCustomContext("libtorch", TORCH_VERSION);
  benchmark::AddCustomContext("compiler", HEED_BENCH_COMPILER);
}

/// Takes `--row_seconds=<number>`, the time given to each row, from the arguments.
double take_row_seconds(int* argc, char** argv) {
  const std::string flag = "--row_seconds=";
  double seconds = 2.0;
  int kept = 0;
  for (int i = 0; i < *argc; ++i) {
    const std::string argument = argv[i];
    if (argument.compare(0, flag.size(), flag) == 0) {
      seconds = std::strtod(argument.c_str() + flag.size(), nullptr);
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  return seconds;
}

heed::bench::Rows all_rows() {
  heed::bench::Rows rows;
  heed::bench::add_attend_rows(rows);
  heed::bench::add_decode_rows(rows);
  heed::bench::add_block_rows(rows);
  heed::bench::add_length_rows(rows);
  heed::bench::add_packed_rows(rows);
  heed::bench::add_module_rows(rows);
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  const auto rows = all_rows();
  if (argc == 2 && std::string(argv[1]) == "--turns") {
    heed::bench::answer_turns(rows);
    return EXIT_SUCCESS;
  }
  const auto seconds = take_row_seconds(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return EXIT_FAILURE;
  describe_machine();
  heed::bench::register_rows(rows, seconds);
  const auto runs = benchmark::RunSpecifiedBenchmarks();
  if (heed::bench::failed_rows() > 0) {
    std::cerr << "heed_bench: " << heed::bench::failed_rows() << " rows could not be measured\n";
  }
  return runs > 0 && heed::bench::failed_rows() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
