#include "attend/dropout_key.h"

#include "core/random_state.h"

namespace heed::detail {

uint64_t draw_dropout_key(double dropout) { return dropout == 0.0 ? 0 : draw_seed(at::kCPU); }

}  // namespace heed::detail
