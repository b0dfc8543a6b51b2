#pragma once

#include <heed/attend.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/forced_path.h"
#include "cpu/block/block.h"
#include "cpu/capability.h"

namespace heed::test {

/// A way for `attend` to compute.
struct Route {
  std::string name;
  std::optional<AttendPath> path;  // none: the one that attend chooses
  std::optional<detail::CpuCapability> capability;
  std::optional<detail::BlockSizes> block_sizes;
};

/// How GoogleTest shows a route.
inline void PrintTo(const Route& route, std::ostream* stream) { *stream << route.name; }

/// As HEED_CPU_CAPABILITY has it.
inline std::string name(detail::CpuCapability capability) {
  switch (capability) {
    case detail::CpuCapability::baseline:
      return "baseline";
    case detail::CpuCapability::avx2:
      return "avx2";
    case detail::CpuCapability::avx512:
      return "avx512";
    case detail::CpuCapability::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

/// The chosen path, LibTorch's kernel, and ours on all instruction sets that the machine has and in
/// tiles so small that short sequences have many.
inline std::vector<Route> routes() {
  std::vector<Route> result = {{"chosen", {}, {}, {}}, {"fused", AttendPath::fused, {}, {}}};
  for (const auto capability : detail::cpu_capabilities()) {
    result.push_back({"block_" + name(capability), AttendPath::block, capability, {}});
  }
  result.push_back({"block_in_small_tiles", AttendPath::block, {}, detail::BlockSizes{4, 16}});
  return result;
}

/// Puts a route in force while it lives.
class ScopedRoute {
 public:
  explicit ScopedRoute(const Route& route) : capability_(detail::cpu_capability()) {
    if (route.path) path_.emplace(*route.path);
    if (route.block_sizes) block_sizes_.emplace(*route.block_sizes);
    if (route.capability) detail::set_cpu_capability(*route.capability);
  }
  ~ScopedRoute() { detail::set_cpu_capability(capability_); }
  ScopedRoute(const ScopedRoute&) = delete;
  ScopedRoute& operator=(const ScopedRoute&) = delete;

 private:
  std::optional<detail::ScopedPath> path_;
  std::optional<detail::ScopedBlockSizes> block_sizes_;
  detail::CpuCapability capability_;
};

}  // namespace heed::test
