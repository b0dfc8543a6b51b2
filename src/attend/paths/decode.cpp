#include "cpu/decode/decode.h"

#include "attend/paths/paths.h"

namespace heed::detail {

at::Tensor attend_decode(const Problem& problem) { return decode(problem); }

}  // namespace heed::detail
