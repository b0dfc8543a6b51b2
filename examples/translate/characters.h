#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace heed::examples {

/// Text as tokens: a character's token is its ASCII code, and ASCII's own control characters mark
/// where a text begins and ends.
constexpr int64_t kPadding = 0;
constexpr int64_t kBegin = 2;  // STX
constexpr int64_t kEnd = 3;    // ETX
constexpr int64_t kVocabulary = 128;

/// One text per row, each between kBegin and kEnd, padded with kPadding: [B, L], int64.
/// Throws std::runtime_error when a text is not ASCII or holds control characters.
at::Tensor to_tokens(const std::vector<std::string>& texts);

/// The text before kEnd in each row of tokens [B, L], without kBegin.
std::vector<std::string> to_texts(const at::Tensor& tokens);

}  // namespace heed::examples
