#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "json_fields.h"

namespace heed::examples::text {

/// The special tokens around a text.
struct Surroundings {
  std::vector<int64_t> before;
  std::vector<int64_t> behind;
};

/// From the field "post_processor", which may be null. Throws std::runtime_error that names what is
/// not understood, or an id for which `is_id` is false.
Surroundings read_post_processor(const Json* post_processor,
                                 const std::function<bool(int64_t)>& is_id);

}  // namespace heed::examples::text
