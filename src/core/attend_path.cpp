#include <c10/util/Exception.h>
#include <heed/attend_path.h>

namespace heed {

std::string_view to_string(AttendPath path) {
  switch (path) {
    case AttendPath::decode:
      return "decode";
    case AttendPath::fused:
      return "fused";
    case AttendPath::block:
      return "block";
    case AttendPath::flash:
      return "flash";
    case AttendPath::efficient:
      return "efficient";
    case AttendPath::query_blocks:
      return "query_blocks";
    case AttendPath::math:
      return "math";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown AttendPath");
}

}  // namespace heed
