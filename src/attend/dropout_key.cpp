#include "attend/dropout_key.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace heed::detail {

uint64_t draw_dropout_key(double dropout) {
  if (dropout == 0.0) return 0;
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace heed::detail
