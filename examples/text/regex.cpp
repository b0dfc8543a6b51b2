#define PCRE2_CODE_UNIT_WIDTH 8

#include "regex.h"

#include <pcre2.h>

#include <array>
#include <cstdint>
#include <stdexcept>

namespace heed::examples::text {

namespace {

// Known patterns take a few steps for each character of a match.
constexpr uint32_t kMostMatchingSteps = 10'000'000;

template <typename T, void (*release)(T*)>
struct Releases {
  void operator()(T* object) const { release(object); }
};
using MatchData =
    std::unique_ptr<pcre2_match_data, Releases<pcre2_match_data, pcre2_match_data_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Releases<pcre2_match_context, pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context,
                                       Releases<pcre2_compile_context, pcre2_compile_context_free>>;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(error, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

const pcre2_code* code_of(const std::shared_ptr<void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

}  // namespace

Regex::Regex(const std::string& pattern) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t place = 0;
  auto* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get());
  if (code == nullptr) throw std::runtime_error(message_of(error));
  code_ = std::shared_ptr<void>(
      code, [](void* released) { pcre2_code_free(static_cast<pcre2_code*>(released)); });
  // Where this processor has no just-in-time compiler, PCRE2 interprets.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

bool Regex::matches_empty() const {
  uint32_t matches = 0;
  pcre2_pattern_info(code_of(code_), PCRE2_INFO_MATCHEMPTY, &matches);
  return matches != 0;
}

void Regex::for_each_match(std::string_view text,
                           const std::function<void(size_t, size_t)>& report) const {
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMostMatchingSteps);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t begin = 0; begin < text.size();) {
    auto found = pcre2_match(code_of(code_), subject, text.size(), begin, PCRE2_NO_UTF_CHECK,
                             data.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_of(code_), subject, text.size(), begin,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) throw std::runtime_error("the text cannot be split: " + message_of(found));
    const auto* match = pcre2_get_ovector_pointer(data.get());
    report(match[0], match[1]);
    begin = match[1];
  }
}

}  // namespace heed::examples::text
