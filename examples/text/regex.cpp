// SPDX-License-Identifier: BSD-3-Clause
#define PCRE2_CODE_UNIT_WIDTH 8

#include "pattern.h"

#include <pcre2.h>

#include <array>
#include <stdexcept>

#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

// Steps that a search may take at each place where it begins. Known patterns take fewer, but for
// long rows of spaces.
constexpr uint32_t kMostSteps = 64;
constexpr uint32_t kMostMoreSteps = 1'000'000'000;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(error, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

}  // namespace

Regex::Regex(const std::string& pattern, int64_t repetitions)
    : cost_(1 + (static_cast<int64_t>(pattern.size()) + repetitions) / 64) {
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t place = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_POSSESS,
                            &error, &place, context.get()),
              pcre2_code_free);
  if (!code_) throw std::runtime_error(message_of(error));
  // Where this processor has no just-in-time compiler, PCRE2 interprets.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

bool Regex::matches_empty() const {
  uint32_t matches = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &matches);
  return matches != 0;
}

void Regex::for_each_match(std::string_view text,
                           const std::function<void(size_t, size_t)>& report) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const auto match = [&](size_t begin, uint32_t options, uint32_t most_steps) {
    pcre2_set_match_limit(context.get(), most_steps);
    const auto run = [&](uint32_t more) {
      return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                         PCRE2_NO_UTF_CHECK | options | more, data.get(), context.get());
    };
    const auto found = run(0);
    return found == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : found;
  };
  // The limit is on each place where PCRE2 tries to match, so these are tried one by one.
  const auto match_in_many_steps = [&](size_t begin) {
    auto found = PCRE2_ERROR_NOMATCH;
    for (; begin < text.size() && found == PCRE2_ERROR_NOMATCH; next_character(text, begin)) {
      auto most = kMostSteps;
      found = match(begin, PCRE2_ANCHORED, most);
      while (found == PCRE2_ERROR_MATCHLIMIT && most < kMostMoreSteps) {
        most *= 8;
        WorkLimit::spend(most * cost_);
        found = match(begin, PCRE2_ANCHORED, most);
      }
    }
    return found;
  };
  const auto* place = pcre2_get_ovector_pointer(data.get());
  for (size_t begin = 0; begin < text.size();) {
    auto found = match(begin, 0, kMostSteps);
    if (found == PCRE2_ERROR_MATCHLIMIT) found = match_in_many_steps(begin);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      throw std::runtime_error("the text cannot be split: " + message_of(found));
    }
    const auto end = found == PCRE2_ERROR_NOMATCH ? text.size() : place[1];
    WorkLimit::spend(static_cast<int64_t>(end - begin) * kMostSteps * cost_);
    if (found == PCRE2_ERROR_NOMATCH) return;
    begin = end;
    report(place[0], end);
  }
}

}  // namespace heed::examples::text
