// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <benchmark/benchmark.h>
#include <torch/version.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "rows.h"
#include "support/harness.h"

namespace {

void describe_machine() {
  benchmark::AddCustomContext("isa", at::get_cpu_capability());
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  benchmark::AddCustomContext("libtorch", TORCH_VERSION);
  benchmark::AddCustomContext("compiler", HEED_BENCH_COMPILER);
}

/// Takes `--<name>=<value>` from the arguments.
std::string take_option(const char* name, std::string value, int* argc, char** argv) {
  const auto flag = std::string("--") + name + "=";
  int kept = 0;
  for (int i = 0; i < *argc; ++i) {
    const std::string argument = argv[i];
    if (argument.compare(0, flag.size(), flag) == 0) {
      value = argument.substr(flag.size());
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  return value;
}

/// The rows of `device`, as given by --device; without it, those that are measured on the CPU. Rows
/// of a device are tiny on the CPU, and with --sizes=tiny on any device.
heed::bench::Rows all_rows(const std::string& device, const std::string& sizes) {
  heed::bench::Rows rows;
  if (!device.empty()) {
    const at::Device place(device);
    heed::bench::add_device_rows(rows, place, sizes == "tiny" || place.is_cpu());
    return rows;
  }
  heed::bench::add_attend_rows(rows);
  heed::bench::add_decode_rows(rows);
  heed::bench::add_block_rows(rows);
  heed::bench::add_length_rows(rows);
  heed::bench::add_packed_rows(rows);
  heed::bench::add_paged_rows(rows);
  heed::bench::add_mask_rows(rows);
  heed::bench::add_reach_rows(rows);
  heed::bench::add_linear_rows(rows);
  heed::bench::add_loss_rows(rows);
  heed::bench::add_module_rows(rows);
  heed::bench::add_expert_rows(rows);
  heed::bench::add_optimizer_rows(rows);
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  const auto seconds = std::strtod(take_option("row_seconds", "2", &argc, argv).c_str(), nullptr);
  const auto device = take_option("device", "", &argc, argv);
  const auto rows = all_rows(device, take_option("sizes", "full", &argc, argv));
  if (argc == 2 && std::string(argv[1]) == "--turns") {
    heed::bench::answer_turns(rows);
    return EXIT_SUCCESS;
  }
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
