// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace heed::test {

/// Why Python wrote no cases into the folder; empty if it did.
std::string why_no_cases(const std::string& folder);

nlohmann::json read_cases(const std::string& path);

/// Expects of a tokenizer what Python computed in `path`.cases: ids, text and streams of text.
void expect_cases(const examples::Tokenizer& tokenizer, const std::string& path);

/// Expects the ids and types of the pairs of texts in `path`.pairs.
void expect_pairs(const examples::Tokenizer& tokenizer, const std::string& path);

}  // namespace heed::test
