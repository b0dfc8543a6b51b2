#include <heed/memory.h>

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace heed {

#ifdef __GLIBC__

bool reuse_memory(bool on) {
  constexpr int kMappedBlocks = 65536;  // glibc's default
  constexpr int kMegabyte = 1 << 20;
  // Some versions of glibc take no M_MMAP_THRESHOLD above 32 MB; M_MMAP_MAX = 0 has no such limit.
  if (on) return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1;
  const bool is_set = mallopt(M_MMAP_MAX, kMappedBlocks) == 1 &&
                      mallopt(M_MMAP_THRESHOLD, 32 * kMegabyte) == 1 &&
                      mallopt(M_TRIM_THRESHOLD, 64 * kMegabyte) == 1;
  malloc_trim(0);
  return is_set;
}

#else

bool reuse_memory(bool /*on*/) { return false; }

#endif

}  // namespace heed
