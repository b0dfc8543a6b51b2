#include "memory.h"

#include <fmt/core.h>
#include <unistd.h>

#include <stdexcept>

namespace heed::examples {

void check_memory(const std::string& what, double bytes) {
  constexpr double kGiB = 1 << 30;
  const double present =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes > present) {
    throw std::runtime_error(
        fmt::format("{} need {:.3g} GiB of memory; this machine has {:.3g} GiB", what, bytes / kGiB,
                    present / kGiB));
  }
}

}  // namespace heed::examples
