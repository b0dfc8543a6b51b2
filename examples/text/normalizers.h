#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "json_fields.h"

namespace heed::examples::text {

/// Changes text before it is split.
using Normalizer = std::function<std::string(std::string_view)>;

/// From the field "normalizer", which may be null. Throws std::runtime_error that names what is
/// not understood.
Normalizer read_normalizer(const Json* normalizer);

/// The fields "pattern" and "content" of what replaces each match by a text.
Normalizer read_replacement(JsonFields& fields);

struct BertNormalizerOptions {
  bool clean_text = true;            ///< control characters are left out, spaces become ' '
  bool handle_chinese_chars = true;  ///< Chinese characters get spaces around them
  bool strip_accents = true;
  bool lowercase = true;
};

/// What BERT does before it splits text (Devlin et al. 2019, arXiv:1810.04805).
std::string normalize_for_bert(std::string_view text, const BertNormalizerOptions& options = {});

}  // namespace heed::examples::text
