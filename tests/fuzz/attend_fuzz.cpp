// SPDX-License-Identifier: BSD-3-Clause
// Calls attend, its modules and the mask builders in random ways. A call either gives the float64
// reference's numbers within a tolerance or, where it is invalid, throws c10::ValueError in our
// wording; all else is a find, which shrinks to a case that --replay takes.

#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>

#include <unistd.h>

#include "attend_verdict.h"
#include "support/poison.h"
#include "unit/routes.h"

namespace heed::fuzz {

namespace {

/// LibTorch's kernel rounds scores of half precision to it where no BLAS has sums in float32 for
/// it.
#ifdef __aarch64__
constexpr bool kFusedRoundsScores = true;
#else
constexpr bool kFusedRoundsScores = false;
#endif

bool is_half(const Case& c) {
  const auto dtype = dtype_of(c.dtype);
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

/// The route that a case asks for, as far as this machine and the path can.
test::Route route_of(const Case& c) {
  test::Route route;
  const auto& sets = detail::instruction_sets();
  const char* const held = std::getenv("HEED_CPU_CAPABILITY");
  if (c.capability > 0 && (held == nullptr || *held == '\0')) {
    route.instruction_set = sets[static_cast<size_t>(c.capability) % sets.size()];
  }
  if (c.small_tiles != 0) route.block_sizes = detail::BlockSizes{4, 16};
  // LibTorch's kernel has no second derivative, and sums over many keys less exactly.
  const bool fused = c.softcap == 0 && c.sinks == 0 && c.target != kDerivative &&
                     c.target != kFar && !(kFusedRoundsScores && is_half(c));
  if (c.path == 1 && fused) route.path = AttendPath::fused;
  // LibTorch's backward pass takes what it subtracts from the rounded output.
  if (c.path == 2 || c.mean != 0) route.path = AttendPath::block;
  return route;
}

/// One of each Target, in its order.
constexpr std::array<void (*)(const Case&), kTargets> kChecks = {
    check_attend,       check_attend, check_varlen, check_module,      check_module,
    check_cached,       check_masks,  check_far,    check_derivative,  check_training,
    check_kv_cache,     check_file,   check_paged,  check_paged_cache, check_rotary,
    check_rotary_cache, check_loss,   check_packed};

void check(const Case& c) {
  at::manual_seed(static_cast<uint64_t>(c.seed));
  const test::ScopedRoute in_force(route_of(c));
  std::optional<c10::InferenceMode> inference;
  if (c.inference == 2 && c.target <= kFar) inference.emplace(true);
  const bool on_meta = c.device != 0 && c.target <= kAttendVarlen;
  (on_meta ? check_meta : kChecks.at(static_cast<size_t>(c.target)))(c);
}

/// For a crash, which nothing can shrink.
char running[1024];

void show_running(int signal) {  // SIGALRM: it hangs
  constexpr char kCrashed[] = "crashed in case: ";
  const bool written = ::write(STDERR_FILENO, kCrashed, sizeof kCrashed - 1) > 0 &&
                       ::write(STDERR_FILENO, running, std::strlen(running)) > 0 &&
                       ::write(STDERR_FILENO, "\n", 1) > 0;
  ::_exit(written ? 128 + signal : 1);
}

/// The text of the find; empty if nothing was found.
std::string find_of(const Case& c) {
  constexpr unsigned kSeconds = 60;
  ::alarm(kSeconds);
  std::strncpy(running, describe(c).c_str(), sizeof running - 1);
  try {
    check(c);
  } catch (const Find& find) {
    return find.what();
  } catch (const c10::Error& error) {  // in a backward pass, or in what makes the case
    return error.what_without_backtrace();
  }
  return "";
}

std::string call_of(const Case& c) {
  if (c.target > kAttendVarlen) return "";
  at::manual_seed(static_cast<uint64_t>(c.seed));
  return describe(make_call(c));
}

/// Whether nothing was found.
bool replay(const Case& c) {
  const auto find = find_of(c);
  if (find.empty()) return true;
  std::cout << find << " (" << detail::instruction_set().name << ")\n  --replay \"" << describe(c)
            << "\"\n"
            << call_of(c) << std::flush;
  return false;
}

/// With a target, of these cases only those that call it.
int run(uint64_t seed, int64_t cases, std::optional<int64_t> target) {
  for (int64_t i = 0; i < cases; ++i) {
    const auto c = random_case(seed * 1'000'000'007 + static_cast<uint64_t>(i));
    if (c.target != target.value_or(c.target) || find_of(c).empty()) continue;
    std::cout << "case " << i << " of seed " << seed << ": ";
    replay(shrink(c, [](const Case& candidate) { return !find_of(candidate).empty(); }));
    return 1;
  }
  std::cout << cases << " cases of seed " << seed << ": " << tally.taken
            << " calls gave what they must, " << tally.refused << " were rightly refused\n";
  return 0;
}

int main(int argc, char** argv) {
  constexpr auto kUsage =
      "usage: attend_fuzz [--cases N] [--seed S] [--target T] | --replay CASE | "
      "--instruction-sets\n";
  int64_t cases = 1000;
  uint64_t seed = 1;
  std::optional<int64_t> target;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--instruction-sets") {
      for (const auto* set : detail::instruction_sets()) std::cout << set->name << '\n';
      return 0;
    }
    if (option == "--replay") return replay(parse(value)) ? 0 : 1;
    if (value.empty() || (option != "--cases" && option != "--seed" && option != "--target")) {
      std::cerr << kUsage;
      return 2;
    }
    if (option == "--cases") cases = std::stoll(value);
    if (option == "--seed") seed = std::stoull(value);
    if (option == "--target") target = std::stoll(value);
  }
  return run(seed, cases, target);
}

}  // namespace

}  // namespace heed::fuzz

int main(int argc, char** argv) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}) {
    std::signal(signal, heed::fuzz::show_running);
  }
  heed::test::poison_memory();
  try {
    return heed::fuzz::main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
