// SPDX-License-Identifier: BSD-3-Clause
#include "support/harness.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <optional>

#include "support/kernel_count.h"
#include "support/peak_memory.h"
#include "support/timing.h"

namespace heed::bench {

namespace {

int failures = 0;

struct Measured {
  Samples samples;
  int64_t peak_bytes;
  std::optional<int64_t> kernels;
  double share = 1.0;  // of the work, that ours must do
};

struct RowState {
  Row row;
  double seconds;
  std::vector<Measured> measured;     // as row.entries; empty until measured
  std::vector<std::string> refusals;  // as row.entries; empty where there is none
  std::string label;
  std::string error;
};

/// Largest difference over largest value that rounding may leave.
double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-10;
    case at::kFloat:
      return 1e-4;
    case at::kHalf:
      return 1e-2;
    default:
      return 5e-2;
  }
}

at::Tensor seeded_result(const Row::Entry& entry) {
  at::manual_seed(0);
  const auto result = entry.run();
  return entry.as_ours ? entry.as_ours(result) : result;
}

/// Why the peer does not take its inputs, if it may refuse them; else {} and its result.
std::string result_or_refusal(const Row::Entry& peer, at::Tensor* result) {
  if (!peer.may_refuse) {
    *result = seeded_result(peer);
    return {};
  }
  try {
    *result = seeded_result(peer);
    return {};
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    return "refused: " + reason.substr(0, reason.find('\n'));
  }
}

/// Returns the refusals.
std::vector<std::string> check_agreement(const Row& row) {
  std::vector<std::string> refusals(row.entries.size());
  const auto ours = seeded_result(row.entries.front()).detach();
  for (size_t i = 1; i < row.entries.size(); ++i) {
    const auto& peer = row.entries[i];
    at::Tensor result;
    refusals[i] = result_or_refusal(peer, &result);
    if (!result.defined()) continue;
    const auto theirs = result.detach();
    TORCH_CHECK(ours.sizes() == theirs.sizes(), peer.name, " gives ", theirs.sizes(), ", ours ",
                ours.sizes());
    if (row.traits.random) continue;
    const auto difference = (ours - theirs).abs().max().item<double>();
    const auto allowed = tolerance(ours.scalar_type()) * theirs.abs().max().item<double>();
    TORCH_CHECK(difference <= allowed, peer.name, " differs from ours by ", difference,
                ", more than ", allowed);  // also when either is NaN
  }
  return refusals;
}

void measure_row(RowState& state) {
  const auto& row = state.row;
  const c10::InferenceMode inference(!row.traits.training);
  const at::AutoGradMode grad(row.traits.training);
  state.refusals = check_agreement(row);
  if (row.label) state.label = row.label();
  std::vector<Call> calls;
  for (size_t i = 0; i < row.entries.size(); ++i) {
    if (state.refusals[i].empty()) calls.emplace_back([&row, i] { row.entries[i].run(); });
  }
  auto samples = row.traits.peak_limit > 0 ? std::vector<Samples>{{time_batch(calls.front(), 1)}}
                                           : time_interleaved(calls, state.seconds);
  for (size_t i = 0, timed = 0; i < row.entries.size(); ++i) {
    state.measured.emplace_back();
    if (!state.refusals[i].empty()) continue;
    const auto& call = calls[timed];
    const auto& share = row.entries[i].share;
    state.measured.back() = {std::move(samples[timed++]), peak_memory(call), kernels_launched(call),
                             share ? share() : 1.0};
  }
}

/// Leaves the reason in `error` when the row cannot be measured.
void try_measure(RowState& state) {
  state.measured.clear();
  state.refusals.clear();
  state.error.clear();
  try {
    state.row.make_inputs();
    measure_row(state);
  } catch (const c10::Error& error) {
    state.error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    state.error = error.what();
  }
  state.row.drop_inputs();
  if (!state.error.empty()) ++failures;
}

void report(benchmark::State& benchmark_state, RowState& state, size_t index) {
  if (index == 0 || (state.measured.empty() && state.error.empty())) try_measure(state);
  if (!state.error.empty()) {
    benchmark_state.SkipWithError(state.error.c_str());
    return;
  }
  if (const auto& refusal = state.refusals[index]; !refusal.empty()) {
    benchmark_state.SkipWithError(refusal.c_str());
    return;
  }
  const auto& measured = state.measured[index];
  const auto seconds = median(measured.samples);
  for (auto iteration : benchmark_state) {
    static_cast<void>(iteration);
    benchmark_state.SetIterationTime(seconds);
  }
  auto& counters = benchmark_state.counters;
  const auto& traits = state.row.traits;
  counters["rounds"] = static_cast<double>(measured.samples.size());
  counters["peak_bytes"] = static_cast<double>(measured.peak_bytes);
  if (traits.flops > 0) counters["FLOP/s"] = traits.flops / seconds;
  if (traits.bytes > 0) counters["bytes/s"] = traits.bytes / seconds;
  if (measured.kernels) counters["kernels"] = static_cast<double>(*measured.kernels);
  if (index == 0) {
    benchmark_state.SetLabel(state.label);
    if (traits.peak_limit > 0) counters["peak_limit"] = traits.peak_limit;
    return;
  }
  const auto ratio = ratio_of_medians(measured.samples, state.measured.front().samples);
  counters["ratio"] = measured.share * ratio.value;
  counters["ratio_low"] = measured.share * ratio.low;
  counters["ratio_high"] = measured.share * ratio.high;
  if (state.row.entries[index].share) counters["share"] = measured.share;
  const auto target = state.row.entries[index].target;
  if (target > 0) counters["target"] = target;
}

}  // namespace

void register_rows(const Rows& rows, double seconds) {
  for (const auto& row : rows) {
    const auto state = std::make_shared<RowState>(RowState{row, seconds, {}, {}, {}, {}});
    for (size_t i = 0; i < row.entries.size(); ++i) {
      const auto name = row.name + "/" + row.entries[i].name;
      benchmark::RegisterBenchmark(name.c_str(),
                                   [state, i](benchmark::State& s) { report(s, *state, i); })
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

void answer_turns(const Rows& rows) {
  std::string name;
  auto row = rows.end();
  for (int samples = 0, calls = 0; std::cin >> name >> samples >> calls;) {
    if (row == rows.end() || row->name != name) {
      if (row != rows.end()) row->drop_inputs();
      row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
      TORCH_CHECK(row != rows.end(), "there is no row ", name);
      row->make_inputs();
    }
    const c10::InferenceMode inference(!row->traits.training);
    const at::AutoGradMode grad(row->traits.training);
    const Call ours = [&] { row->entries.front().run(); };
    ours();  // wakes the threads
    Samples seconds(samples);
    for (auto& sample : seconds) sample = time_batch(ours, calls);
    std::cout << median(std::move(seconds)) << std::endl;
  }
}

int failed_rows() { return failures; }

}  // namespace heed::bench
